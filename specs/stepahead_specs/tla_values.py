"""Values of TLA+ as text: numbers, booleans, strings, sequences, sets and records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

#: Sequences are read as tuples, sets as frozensets, records as dicts.
Value: TypeAlias = "int | str | Sequence[Value] | AbstractSet[Value] | Mapping[str, Value]"

_TOKEN: Final = re.compile(r'\s*(<<|>>|\|->|[\[\]{},]|"[^"]*"|-?\d+|\w+)')
_WORDS: Final[Mapping[str, bool]] = {"TRUE": True, "FALSE": False}


def write_value(value: Value) -> str:
    """Return a value as a TLA+ expression."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case Mapping():
            return f"[{', '.join(f'{name} |-> {write_value(v)}' for name, v in value.items())}]"
        case AbstractSet():
            return f"{{{', '.join(sorted(write_value(entry) for entry in value))}}}"
        case _:
            return f"<<{', '.join(write_value(entry) for entry in value)}>>"


def read_value(text: str) -> Value:
    """Read a value as TLC prints it.

    Raises:
        ValueError: the text is no value.
    """
    tokens = iter([*_TOKEN.findall(text), ""])
    value = _read(next(tokens), tokens)
    if next(tokens):
        raise ValueError(f"more than one value in {text!r}")
    return value


def _read(token: str, tokens: Iterator[str]) -> Value:
    if token == "<<":  # noqa: S105 - a bracket, no secret
        return tuple(_list(tokens, ">>"))
    if token == "{":  # noqa: S105
        return frozenset(_list(tokens, "}"))
    if token == "[":  # noqa: S105
        return _record(tokens)
    if token.startswith('"'):
        return token[1:-1]
    if token in _WORDS:
        return _WORDS[token]
    return int(token)


def _list(tokens: Iterator[str], end: str) -> Iterator[Value]:
    token = next(tokens)
    while token != end:
        yield _read(token, tokens)
        token = next(tokens)
        if token == ",":  # noqa: S105
            token = next(tokens)


def _record(tokens: Iterator[str]) -> Mapping[str, Value]:
    fields: dict[str, Value] = {}
    name = next(tokens)
    while name != "]":
        next(tokens)  # the arrow
        fields[name] = _read(next(tokens), tokens)
        if next(tokens) == "]":
            break
        name = next(tokens)
    return fields


def entries(value: Value) -> list[Mapping[str, Value]]:
    """Return a sequence of records.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{value!r} is no sequence")
    records = [entry for entry in value if isinstance(entry, Mapping)]
    if len(records) != len(value):
        raise TypeError(f"{value!r} does not consist of records")
    return records


def number(value: Value) -> int:
    """Return an integer or a truth value.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def triples(value: Value) -> frozenset[tuple[int, int, int]]:
    """Return a set of sequences of three integers.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, AbstractSet):
        raise TypeError(f"{value!r} is no set")
    found: set[tuple[int, int, int]] = set()
    for entry in value:
        if isinstance(entry, str) or not isinstance(entry, Sequence):
            raise TypeError(f"{entry!r} is no sequence")
        one, two, three = (number(part) for part in entry)
        found.add((one, two, three))
    return frozenset(found)
