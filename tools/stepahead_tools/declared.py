"""How a command declares its options: a type, a default, and one of these beside them.

They say what an option is; `stepahead_tools.command_line` reads it.
"""

from __future__ import annotations

from typing import Final


class Declared:
    """What people are told about a field of a command's options.

    Args:
        flags: where they are not ``--`` and the name of the field; ``--yes/--no`` for both values.
        help: a sentence.
        group: the heading that the option stands under.
        metavar: stands for the value; None for its type.
        show_default: whether the help tells the default.
    """

    def __init__(
        self,
        *flags: str,
        help: str,  # noqa: A002 # what everybody calls it
        group: str | None = None,
        metavar: str | None = None,
        show_default: bool = True,
    ) -> None:
        self.flags: Final = flags
        self.help: Final = help
        self.group: Final = group
        self.metavar: Final = metavar
        self.show_default: Final = show_default


class Option(Declared):
    """A field that is given by a flag."""


class Argument(Declared):
    """A field that is given by its place."""
