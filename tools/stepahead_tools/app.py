"""The command line as typer reads it: help, mistakes, and words that may mean anything.

The options are those of `stepahead_tools.commands`. Most command lines never come here, see
`stepahead_tools.words`.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from stepahead_tools.commands import COMMANDS, Command, carry_out
from stepahead_tools.declared import Argument, Declared
from stepahead_tools.help_text import GroupedHelp


class _Commands(TyperGroup):
    """The commands, made when they are asked for: the options of one alone take a while."""

    # Some releases of typer bring a click of their own, so neither's types can be named.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return one of them; all are made when there is none, for the sentence that names them."""
        for name in (cmd_name,) if cmd_name in COMMANDS else tuple(COMMANDS):
            if name not in self.commands:
                self.commands[name] = _made(name, COMMANDS[name])
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help, see stepahead_tools.help_text
    help="Replay request traces under eager and overlap scheduling, in simulated time.",
)


@app.callback()
def _root() -> None:
    """Make typer build a group, although no command is there yet."""


def unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that a terminal can wrap it."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _made(name: str, command: Command) -> Any:  # noqa: ANN401 # of whichever click typer brings
    """Return a command whose parameters are the fields of its options."""
    options, unlisted = command.options(), command.unlisted_fields()
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_annotation(hints[field.name], hidden=field.name in unlisted),
        )
        for field in fields(options)
    ]

    def run(**chosen: Any) -> None:  # noqa: ANN401 # typer has checked the types
        if code := carry_out(command, options(**chosen)):
            raise typer.Exit(code)

    run.__doc__ = unwrapped(command.run.__doc__ or "")
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=GroupedHelp)(run)
    return typer.main.get_command(alone)


def _annotation(hint: Any, *, hidden: bool) -> Any:  # noqa: ANN401 # a type and what typer calls it
    kind: Any
    declared: Declared
    kind, declared = get_args(hint)
    make: Any = typer.Argument if isinstance(declared, Argument) else typer.Option
    return Annotated[
        kind,
        make(
            *declared.flags,
            help=declared.help,
            rich_help_panel=declared.group,
            metavar=declared.metavar,
            show_default=declared.show_default,
            hidden=hidden,
        ),
    ]
