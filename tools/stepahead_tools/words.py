"""Reads the words of a command line that has nothing unusual in it.

Most have not, and importing typer and what it stands on takes longer than importing the kernel. So
this reads flags and values that can mean one thing only. Whatever else is there, a request for help
or a mistake, is left to typer, which reads the same options (`stepahead_tools.app`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from stepahead_tools.declared import Argument, Declared, Option

T = TypeVar("T")
_WHOLE: Final = re.compile(r"\d{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)


class UnusualWords(Exception):  # no error: they are for typer to read
    """Something is there that may mean anything."""


class _Field(NamedTuple):
    """A field of the options; ``kind`` is its type, None left out."""

    name: str
    kind: Any
    declared: Declared


def read_words(options: type[T], words: Sequence[str]) -> T:
    """Return the options that the words behind the name of a command stand for.

    Raises:
        UnusualWords: only typer can tell.
    """
    if os.name == "nt":
        raise UnusualWords  # a word may be a pattern there
    chosen: dict[str, Any] = {}
    for field, word in _pairs(_fields(options), words):
        value = word if isinstance(word, bool) else _value(field.kind, word)
        if field.kind == list[str]:
            chosen.setdefault(field.name, []).append(value)
        elif field.name in chosen:
            raise UnusualWords
        else:
            chosen[field.name] = value
    needed = {entry.name for entry in fields(options) if entry.default is MISSING}  # type: ignore[arg-type]  # typing has no dataclass bound
    if not needed <= chosen.keys():
        raise UnusualWords
    return options(**chosen)


def _fields(options: type) -> list[_Field]:
    found: list[_Field] = []
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, declared = get_args(hint)
        some = [part for part in get_args(kind) if part is not NoneType]
        found.append(_Field(name, some[0] if NoneType in get_args(kind) else kind, declared))
    return found


def _pairs(options: Sequence[_Field], words: Sequence[str]) -> Iterator[tuple[_Field, str | bool]]:
    """Give each value its field; a flag for a truth value is one by itself."""
    places = (field for field in options if isinstance(field.declared, Argument))
    flags: dict[str, tuple[_Field, bool]] = {}
    for field in options:
        if isinstance(field.declared, Option):
            for spelled in field.declared.flags or (f"--{field.name.replace('_', '-')}",):
                yes, *no = spelled.split("/")
                flags |= {flag: (field, flag == yes) for flag in (yes, *no)}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag not in flags:
            yield _next(places), word
            continue
        field, truth = flags[flag]
        if field.kind is bool and not equals:
            yield field, truth
        else:
            yield field, value if equals else _next(rest)


def _next(values: Iterator[T]) -> T:
    for value in values:
        return value
    raise UnusualWords


def _value(kind: Any, word: str) -> Any:  # noqa: ANN401 # of that type
    if word == "-" or not word.startswith("-"):
        if kind in {str, list[str]} and word:
            return word
        if kind is Path and word:
            return Path(word)
        if kind is int and _WHOLE.fullmatch(word):
            return int(word)
        if kind is float and _NUMBER.fullmatch(word):
            return float(word)
        if isinstance(kind, type) and issubclass(kind, StrEnum) and word in {*kind}:
            return kind(word)
    raise UnusualWords
