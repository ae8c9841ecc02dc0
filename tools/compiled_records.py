"""What dataclasses of a compiled build have in common, where `dataclass` would write each its own.

`compiled_build.py` brings this module along as `stepahead__records`, and has it called behind each
class; see `spelled_out` there. What `dataclass` writes is compiled by Python at import, at each
start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, NoReturn


def complete_dataclass(
    kind: type[Any], annotations: dict[str, str], *, frozen: bool, eq: bool
) -> None:
    """Give a class what ``dataclass(frozen=frozen, eq=eq)`` would, but for its `__init__`.

    Args:
        kind: the class.
        annotations: of its fields, at least one; all are shown and compared.
        frozen: its fields cannot be set.
        eq: it compares by its fields.
    """
    found: Callable[[object], Any] = attrgetter(*annotations)

    def alone(record: object) -> tuple[Any]:
        return (found(record),)

    values = found if len(annotations) > 1 else alone

    @recursive_repr()
    def shown(record: object) -> str:
        told = ", ".join(f"{name}={getattr(record, name)!r}" for name in annotations)
        return f"{type(record).__qualname__}({told})"

    def equal(record: object, other: object) -> bool:
        return values(record) == values(other) if type(other) is type(record) else NotImplemented

    def hashed(record: object) -> int:
        return hash(values(record))

    methods: dict[str, Any] = {"__annotations__": annotations, "__repr__": shown}
    if eq:
        methods |= {"__eq__": equal, "__hash__": hashed if frozen else None}
    if frozen:
        methods |= {"__setattr__": _not_set, "__delattr__": _not_deleted}
    for name, method in methods.items():
        setattr(kind, name, method)


def _not_set(_record: object, name: str, _value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _not_deleted(_record: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
