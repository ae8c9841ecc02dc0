"""What can be wrong with a trace file, as located facts and as errors.

Owns the wording. Knows no format and reads nothing.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

SHOWN_CHARS_MAX: Final = 60
SKIP_HINT: Final = "correct the line, or leave it out with skip_bad_lines (--skip-bad-lines)"


class BadLine(Struct, frozen=True):
    """One line that is not a request: where it stands, what was expected, what was found.

    ``line`` counts from 1 in the decompressed file. ``field`` is the column as the file spells it,
    or "(line)" when the line as a whole cannot be read.
    """

    line: int
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        """Say it in one clause, without the file."""
        return f"line {self.line}, field {self.field}: expected {self.expected}, found {self.found}"


class TraceError(Exception):
    """A trace cannot be used; the attributes say where and why.

    Attributes:
        file: the path as the caller gave it.
        line: number of the line, from 1; None when the file as a whole is at fault.
        field: column as the file spells it; None when the file as a whole is at fault.
        expected: what would have been right.
        found: what stands there.
    """

    def __init__(self, file: str, problem: BadLine) -> None:
        super().__init__(f"{file}, {problem}; {SKIP_HINT}")
        self.file = file
        self.line: int | None = problem.line
        self.field: str | None = problem.field
        self.expected = problem.expected
        self.found = problem.found


class UnusableTrace(TraceError):
    """The file as a whole is no trace: damaged, empty, or in no known format."""

    def __init__(self, file: str, *, expected: str, found: str, remedy: str) -> None:
        Exception.__init__(self, f"{file}: expected {expected}, found {found}; {remedy}")
        self.file = file
        self.line = None
        self.field = None
        self.expected = expected
        self.found = found


class UnknownTraceFormat(UnusableTrace):
    """No known format has the columns of this file.

    Attributes:
        columns: what the file has, in order; empty when it is no table at all.
        tried: the formats and the columns that each one needs.
    """

    def __init__(self, file: str, columns: Sequence[str], tried: Sequence[str]) -> None:
        seen = f"columns {', '.join(columns)}" if columns else "neither JSON lines nor a CSV header"
        super().__init__(
            file,
            expected="a known trace format",
            found=shown(seen, 300),
            remedy=f"formats tried: {'; '.join(tried)}",
        )
        self.columns = tuple(columns)
        self.tried = tuple(tried)


class BadLines:
    """What happens to a bad line: the first one raises, or all are collected and skipped."""

    def __init__(self, file: str, *, skip: bool) -> None:
        self.file = file
        self.skip = skip
        self.skipped: list[BadLine] = []

    def report(self, line: int, field: str, expected: str, found: str) -> None:
        """Record one bad line.

        Raises:
            TraceError: bad lines are not to be skipped.
        """
        problem = BadLine(line, field, expected, shown(found))
        if not self.skip:
            raise TraceError(self.file, problem)
        self.skipped.append(problem)


def shown(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """Make a text fit for a message: cut to ``chars_max`` characters, what does not print escaped.

    A file may hold anything, also what a terminal takes for a command or cannot write.
    """
    cut = text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."
    if cut.isprintable():
        return cut
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in cut
    )
