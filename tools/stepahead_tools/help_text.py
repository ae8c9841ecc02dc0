"""Help as plain text: paragraphs, whole names, defaults."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import MISSING
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from stepahead_tools.declared import Declared

_PLACEHOLDERS: Final[dict[Any, str]] = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
_PLACES: Final = {None: "{}", "?": "[{}]", "*": "[{} ...]"}


class Help(argparse.HelpFormatter):
    """Wraps each paragraph by itself, and cuts no name of an option at its hyphens."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = cleandoc(text).split("\n\n")
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in paragraphs)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)


def usage(actions: Iterable[argparse.Action]) -> str:
    """Return the line that says how to call a command, its options left out."""
    places = [action for action in actions if not action.option_strings]
    words = [_PLACES[place.nargs].format(place.metavar) for place in places]  # type: ignore[index]
    return " ".join(["%(prog)s [OPTIONS]", *words])


def summary(text: str | None) -> str:
    """Return the sentence that a docstring begins with."""
    return cleandoc(text or "").partition("\n")[0]


def explained(declared: Declared, default: object) -> str:
    """Return the sentence about an option, with its default."""
    told = declared.help
    shown = default is not MISSING and default is not None and not isinstance(default, bool)
    if shown and declared.show_default:
        told += f" [default: {default}]"
    return told.replace("%", "%%")


def placeholder(kind: Any) -> str | None:  # noqa: ANN401 # a type
    """Return what stands for a value of a type; None where nothing does."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"{{{','.join(kind)}}}"
    return _PLACEHOLDERS.get(kind)
