"""The options of the commands that replay traces: names, defaults and help, and nothing else.

A command's options are the fields of a dataclass, so that two commands share them without repeating
them and code below sees one typed value. What the options mean together is the business of
`stepahead_tools.settings`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from stepahead_tools.engine_options import (
    SCHEDULING,
    LoopChoice,
    ProductOptions,
    SchedulingOptions,
    SpeculativeOptions,
    TierOptions,
)
from stepahead_tools.help_text import GroupedHelp
from stepahead_tools.load_options import EndOptions, LoadOptions
from stepahead_tools.loop_options import LoopOptions
from stepahead_tools.machine_options import (
    DraftOptions,
    MachineOptions,
    OutputOptions,
    RemoteOptions,
)


@dataclass(frozen=True, kw_only=True)
class RunOptions(
    OutputOptions,
    ProductOptions,
    DraftOptions,
    RemoteOptions,
    MachineOptions,
    SpeculativeOptions,
    TierOptions,
    LoopOptions,
    SchedulingOptions,
    EndOptions,
    LoadOptions,
):
    """What `replay` and `compare` have in common; None stands for a default that depends."""

    trace: Annotated[
        str,
        typer.Argument(
            help="A request trace (Mooncake, Azure, BurstGPT, ServeGen, Bailian or our own format; "
            "plain, .gz or .zst), or `demo` for the one that ships with the package.",
            show_default=False,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(RunOptions):
    """What `replay` takes."""

    loop: Annotated[
        LoopChoice | None,
        typer.Option(
            help="The loop. Default: eager.", show_default=False, rich_help_panel=SCHEDULING
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """What `compare` takes."""

    loops: Annotated[
        str,
        typer.Option(
            help="Loops to compare, separated by commas; changes are against the first.",
            rich_help_panel=SCHEDULING,
        ),
    ] = "eager,overlap"


OptionsT = TypeVar("OptionsT")


def unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that a terminal can wrap it."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def make_command(
    name: str,
    options: type[OptionsT],
    run: Callable[[OptionsT], None],
    *,
    unlisted: Collection[str] = (),
) -> Any:  # noqa: ANN401 # a click command, of whichever click typer brings
    """Return a command whose parameters are the fields of the dataclass ``options``.

    The docstring of ``run`` is its help. ``unlisted`` fields are not in it: ``run`` refuses them,
    in a sentence that says more than that there is no such option.
    """
    hints = get_type_hints(options, include_extras=True)
    for field in unlisted:
        hints[field] = _unlisted(hints[field])
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]  # typing has no dataclass bound
    ]

    def command(**chosen: Any) -> None:  # noqa: ANN401 # typer has checked the types
        try:
            run(options(**chosen))
        except Exception as error:
            from stepahead_tools.failures import failure  # noqa: PLC0415 # not needed for help

            told = failure(error)
            if told is None:
                raise
            typer.echo(told[0], err=True)
            raise typer.Exit(told[1]) from error

    command.__doc__ = unwrapped(run.__doc__ or "")
    command.__annotations__ = {}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=GroupedHelp)(command)
    return typer.main.get_command(alone)


def _unlisted(hint: Any) -> Any:  # noqa: ANN401 # a type as written in an annotation
    kind, option = get_args(hint)
    option = copy.copy(option)
    option.hidden = True
    return Annotated[kind, option]
