"""Standard output for people: lines, and tables of aligned columns, with colours on a terminal.

For what every replay prints; the other commands draw with rich, whose import takes as long as that
of the kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final, Literal, NamedTuple

Style = Literal["", "bold", "dim", "green", "red"]
_CODES: Final = {"bold": 1, "dim": 2, "green": 32, "red": 31}
_BETWEEN: Final = "  "


class Cell(NamedTuple):
    """A word of a table, and how it looks on a terminal."""

    text: str
    style: Style = ""


class Screen:
    """Standard output, or nothing at all when it is ``quiet``."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet: Final = quiet

    @property
    def width(self) -> int:
        """Count the columns, 80 where there is no terminal."""
        return get_terminal_size().columns

    def line(self, text: str = "") -> None:
        """Print a line as it is."""
        if not self._quiet:
            sys.stdout.write(f"{text}\n")

    def paragraph(self, text: str, style: Style = "") -> None:
        """Print lines no longer than the screen is wide; a number keeps its percent sign."""
        for line in wrap(text.replace(" %", "\0%"), self.width):
            self.line(_painted(Cell(line.replace("\0", " "), style)))

    def table(self, header: Sequence[str], sections: Sequence[Sequence[Sequence[Cell]]]) -> None:
        """Print a table; its first column holds labels, the others figures."""
        for line in _table([Cell(name, "bold") for name in header], sections):
            self.line(line)


def _table(header: Sequence[Cell], sections: Sequence[Sequence[Sequence[Cell]]]) -> Iterator[str]:
    rows = [header, *(row for section in sections for row in section)]
    widths = [max(len(cell.text) for cell in column) for column in zip(*rows, strict=True)]
    inside = sum(widths) + len(_BETWEEN) * (len(widths) - 1)
    blank = " " * (inside + 2)
    yield blank
    yield _row(header, widths)
    yield f" {('─' if _is_unicode() else '-') * inside} "
    for place, section in enumerate(filter(None, sections)):
        if place:
            yield blank
        for row in section:
            yield _row(row, widths)
    yield blank


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def _row(cells: Sequence[Cell], widths: Sequence[int]) -> str:
    padded = [
        _painted(Cell(cell.text.rjust(width) if place else cell.text.ljust(width), cell.style))
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f" {_BETWEEN.join(padded)} "


def _painted(cell: Cell) -> str:
    if not cell.style or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return cell.text
    return f"\x1b[{_CODES[cell.style]}m{cell.text}\x1b[0m"
