"""Events and commands as JSON, strictly and in one canonical form.

An object is ``{"type": name, field: value, ...}`` with every field present. Arrays are (nested)
lists, enums their values, tuples lists. The canonical bytes have sorted keys, no spaces and ASCII
only, so that they depend on no Python version and no hash seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from types import NoneType
from typing import Any, Final, TypeAlias, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from stepahead import commands, events
from stepahead.commands import Command
from stepahead.config import KernelConfig
from stepahead.events import Event
from stepahead_models.errors import JournalError

Json: TypeAlias = "bool | int | str | list[Json] | dict[str, Json] | None"
_Decoder: TypeAlias = Callable[[object], object]


def canonical(value: Json) -> bytes:
    """Return the one way to write ``value``."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def encode(value: Event | Command | KernelConfig) -> dict[str, Json]:
    """Return an event, a command or a configuration as JSON."""
    kind = type(value)
    encoded: dict[str, Json] = {"type": kind.__name__}
    for name in _FIELDS[kind]:
        encoded[name] = _plain(getattr(value, name))
    return encoded


def _plain(value: object) -> Json:
    if isinstance(value, np.ndarray):
        listed: Json = value.tolist()
        return listed
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, tuple):
        return [_plain(entry) for entry in cast("tuple[object, ...]", value)]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise JournalError(
        f"{value!r} has no form in a journal; give integers, text or arrays of integers"
    )


def decode_event(value: object) -> Event:
    """Return the event that `encode` wrote.

    Raises:
        JournalError: anything is missing, unknown or of another type.
    """
    event: Event = _decode(value, _EVENTS, "event")
    return event


def decode_command(value: object) -> Command:
    """Return the command that `encode` wrote; raises as `decode_event` does."""
    command: Command = _decode(value, _COMMANDS, "command")
    return command


def decode_config(value: object) -> KernelConfig:
    """Return the configuration that `encode` wrote; raises as `decode_event` does."""
    config: KernelConfig = _decode(value, {"KernelConfig": KernelConfig}, "configuration")
    return config


def _decode(value: object, kinds: dict[str, Any], what: str) -> Any:  # noqa: ANN401 - one of many types
    if not isinstance(value, dict):
        raise JournalError(f"{value!r} is no {what}; expected an object with a type")
    given = cast("dict[str, object]", value)
    name_given = given.get("type")
    kind = kinds.get(name_given) if isinstance(name_given, str) else None
    if kind is None:
        raise JournalError(
            f"{name_given!r} is no type of {what}; expected one of {', '.join(kinds)}"
        )
    decoders = _FIELDS[kind]
    if (found := set(given) - {"type"}) != set(decoders):
        wrong = ", ".join(sorted(found ^ set(decoders)))
        raise JournalError(f"{what} {kind.__name__} lacks or does not know the fields {wrong}")
    arguments: dict[str, object] = {}
    for name, decoder in decoders.items():
        try:
            arguments[name] = decoder(given[name])
        except (TypeError, ValueError, OverflowError) as error:
            raise JournalError(
                f"{what} {kind.__name__} has {name}={given[name]!r}, which is not of its type"
            ) from error
    return kind(**arguments)


# -- types ------------------------------------------------------------------------------------


def _exactly(kind: type) -> _Decoder:
    def decode(value: object) -> object:
        if type(value) is not kind:
            raise TypeError
        return value

    return decode


def _array(scalar: type[np.generic]) -> _Decoder:
    leaf = bool if scalar is np.bool_ else int

    def check(value: object) -> None:
        if isinstance(value, list):
            for entry in cast("list[object]", value):
                check(entry)
        elif type(value) is not leaf:
            raise TypeError

    def decode(value: object) -> NDArray[np.generic]:
        if not isinstance(value, list):
            raise TypeError
        check(cast("list[object]", value))
        return np.array(value, dtype=scalar)

    return decode


def _tuple_of_ints(value: object) -> object:
    if not isinstance(value, list):
        raise TypeError
    entries = cast("list[object]", value)
    if any(type(entry) is not int for entry in entries):
        raise TypeError
    return tuple(entries)


def _optional(decoder: _Decoder) -> _Decoder:
    return lambda value: None if value is None else decoder(value)


def _decoder(hint: Any) -> _Decoder:  # noqa: ANN401 - a type as written in an annotation
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        return _array(get_args(arguments[1])[0])
    if origin is tuple:
        return _tuple_of_ints
    if NoneType in arguments:
        (inner,) = (entry for entry in arguments if entry is not NoneType)
        return _optional(_decoder(inner))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return _exactly(cast("type[object]", hint))


def _kinds(union: object) -> dict[str, Any]:
    return {kind.__name__: kind for kind in get_args(union)}


_EVENTS: Final = _kinds(events.Event)
_COMMANDS: Final = _kinds(commands.Command)
_FIELDS: Final[dict[Any, dict[str, _Decoder]]] = {
    kind: {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}
    for kind in (*_EVENTS.values(), *_COMMANDS.values(), KernelConfig)
}
