"""What goes wrong in a command: what was asked for, or what came out."""

from __future__ import annotations

from stepahead.errors import StepaheadError


def exact(number: float) -> str:
    """Write a number so that no digit of it is lost, and a whole one without a point."""
    return repr(number).removesuffix(".0")


class OptionError(StepaheadError):
    """Options contradict each other or are out of range; nothing has run."""


class Disagreement(StepaheadError):
    """The loops of a comparison did not do the same work, or left something behind."""


class Incomplete(StepaheadError):
    """An exploration or a journal is not whole, or shows something wrong: no pass either way."""


class Survived(StepaheadError):
    """A mutant of the kernel lives: no invariant noticed its defect."""


class RunBroken(StepaheadError):
    """An event of a checked run breaks a rule."""


class HistoryBroken(StepaheadError):
    """A line of a history breaks a rule."""
