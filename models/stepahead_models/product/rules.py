"""Validation rules as data, and the one place that enforces them.

A rule names the option, what is expected of it, the way out and the source; its condition is a
function of the object that carries the option. Knows no object in particular.
"""

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from stepahead_models.product.options import OTHER_VERSIONS, with_flag

S = TypeVar("S")
T = TypeVar("T", bound=Struct)

_PHRASES: Final = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "text",
    types.NoneType: "nothing",
}


class InvalidOption(ValueError):
    """One option, or one option beside another, cannot be used.

    Attributes:
        option: its dotted name in the configuration, or its keyword.
        value: what was given.
        expected: what would have been right.
        way_out: what to do about it.
    """

    def __init__(self, *, option: str, value: object, expected: str, way_out: str) -> None:
        super().__init__(f"{with_flag(option)} is {shown(value)}; expected {expected}; {way_out}")
        self.option = option
        self.value = value
        self.expected = expected
        self.way_out = way_out


class UnknownOption(InvalidOption):
    """A key that the configuration does not have.

    Attributes:
        known: the keys that may stand there.
    """

    def __init__(self, *, option: str, key: str, known: Iterable[str]) -> None:
        self.known = tuple(known)
        near = difflib.get_close_matches(key, self.known, n=1)
        if key in OTHER_VERSIONS:
            way_out = OTHER_VERSIONS[key]
        elif near:
            way_out = f"did you mean {near[0]}?"
        else:
            way_out = f"the keys here are {', '.join(self.known)}"
        ValueError.__init__(self, f"{option} is not an option; {way_out}")
        self.option = option
        self.value = None
        self.expected = "a known option"
        self.way_out = way_out


class Rule(Struct, Generic[S], frozen=True, kw_only=True):
    """One rule; ``holds`` tells of a subject whether it is kept.

    ``name`` identifies the rule in tests and documents. ``option`` is the dotted name of the field,
    whose last part is an attribute of the subject.
    """

    name: str
    option: str
    expected: str
    way_out: str
    source: str
    holds: Callable[[S], bool]
    error: type[InvalidOption] = InvalidOption


def enforce(rules: Iterable[Rule[S]], subject: S) -> None:
    """Check every rule in order.

    Raises:
        InvalidOption: the first rule that is broken, as the class that the rule names.
    """
    for rule in rules:
        if not rule.holds(subject):
            value: object = getattr(subject, rule.option.rpartition(".")[2])
            raise rule.error(
                option=rule.option, value=value, expected=rule.expected, way_out=rule.way_out
            )


def settle_types(subject: Struct, section: str) -> None:
    """Check every field against its declared type, which a constructor call does not.

    A whole number in a field for fractions becomes a float and the name of an enumeration its
    member, so that two configurations that mean the same are equal.

    Raises:
        InvalidOption: a value is not of its field's type; true is no whole number.
    """
    for field in msgspec.structs.fields(subject):
        value: object = getattr(subject, field.name)
        try:
            settled: object = msgspec.convert(value, cast("type[object]", field.type))
        except msgspec.ValidationError:
            raise InvalidOption(
                option=f"{section}.{field.name}".lstrip("."),
                value=value,
                expected=phrase(field.type),
                way_out=_way_out(field, value),
            ) from None
        msgspec.structs.force_setattr(subject, field.name, settled)


def build(kind: type[T], plain: Mapping[str, object], section: str) -> T:
    """Make a configuration object from plain values, as they come from TOML or JSON.

    Args:
        kind: the class of the object.
        plain: values by key; an inner object is a mapping.
        section: dotted name of the object, empty for the outermost.

    Raises:
        UnknownOption: a key that the object does not have.
        InvalidOption: a key is missing, or a value breaks a rule.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for key, value in plain.items():
        name = f"{section}.{key}".lstrip(".")
        if key not in fields:
            raise UnknownOption(option=name, key=key, known=fields)
        inner = _struct_of(fields[key].type)
        is_table = inner is not None and isinstance(value, Mapping)
        table = cast("Mapping[str, object]", value)
        values[key] = build(inner, table, name) if inner and is_table else value
    for field in fields.values():
        if field.required and field.name not in values:
            raise InvalidOption(
                option=f"{section}.{field.name}".lstrip("."),
                value=None,
                expected=phrase(field.type),
                way_out="it has no default, so give it",
            )
    return kind(**values)


def phrase(annotation: object) -> str:
    """Say in words what a type accepts."""
    if get_origin(annotation) in {Union, types.UnionType}:
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        return " or ".join(phrase(part) for part in parts)
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return f"one of {', '.join(str(member.value) for member in annotation)}"
        if annotation in _PHRASES:
            return _PHRASES[annotation]
    return "a table of options"


def shown(value: object) -> str:
    """Write a value for a message as TOML writes it; None is "not set"."""
    if value is None:
        return "not set"
    if isinstance(value, Enum):
        return repr(value.value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _way_out(field: FieldInfo, value: object) -> str:
    if isinstance(value, str) and value in OTHER_VERSIONS:
        return OTHER_VERSIONS[value]
    if field.required:
        return "correct it; it has no default"
    if field.default is msgspec.NODEFAULT:
        return "leave it out for the defaults"
    if field.default is None:
        return "leave it out if you have no wish"
    return f"leave it out for the default {shown(field.default)}"


def _struct_of(annotation: object) -> type[Struct] | None:
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, Struct):
            return part
    return None
