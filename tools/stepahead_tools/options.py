"""The options of the commands that replay traces: names, defaults and help, and nothing else.

A command's options are the fields of a dataclass, so that two commands share them without repeating
them and code below sees one typed value. What the options mean together is the business of
`stepahead_tools.settings`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

_LOAD = "Load (times in ms, s or as said)"
_ENDS = "How requests end and what is measured"
_LOOP = "Scheduling"
_MACHINE = "Simulated machine"
_OUTPUT = "Output"


class EndsChoice(StrEnum):
    """How requests of a trace end."""

    EOS = "eos"
    LENGTH = "length"


class OrderChoice(StrEnum):
    """Order of the waiting line."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PreferChoice(StrEnum):
    """Which rows get the token budget first."""

    DECODE = "decode"
    PREFILL = "prefill"


class SingleTokenChoice(StrEnum):
    """How a request with one output token stands to a TPOT objective."""

    MEETS = "meets"
    FAILS = "fails"
    EXCLUDE = "exclude"


class LogFormatChoice(StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


class LoopChoice(StrEnum):
    """A scheduling loop."""

    EAGER = "eager"
    OVERLAP = "overlap"
    JUST_IN_TIME = "just-in-time"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `replay` and `compare` have in common; None stands for a default that depends."""

    trace: Annotated[
        str,
        typer.Argument(
            help="A request trace (Mooncake, Azure, BurstGPT, ServeGen, Bailian or our own format; "
            "plain, .gz or .zst), or `demo` for the one that ships with the package.",
            show_default=False,
        ),
    ]
    # -- load ---------------------------------------------------------------------------------
    limit: Annotated[
        int | None,
        typer.Option(help="Take the first N requests only.", rich_help_panel=_LOAD),
    ] = None
    speed: Annotated[
        float | None,
        typer.Option(help="Divide the arrival times by X.", rich_help_panel=_LOAD),
    ] = None
    load: Annotated[
        float | None,
        typer.Option(
            help="Scale the arrival times so that requests arrive at X times the capacity: the "
            "requests/s of an eager run of the same requests that all arrive at time 0.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(help="Poisson arrivals at R requests/s.", rich_help_panel=_LOAD),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="Closed loop: C requests at once, the next arrives when one ends.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(help="Of Poisson arrivals, noise and sampled tokens.", rich_help_panel=_LOAD),
    ] = 0
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines",
            help="Leave bad lines of the trace out, count and report them.",
            rich_help_panel=_LOAD,
        ),
    ] = False
    # -- ends and statistics ------------------------------------------------------------------
    ends: Annotated[
        EndsChoice,
        typer.Option(
            help="Requests end with an EOS token that nobody knows ahead, or by max_tokens.",
            rich_help_panel=_ENDS,
        ),
    ] = EndsChoice.EOS
    warmup: Annotated[
        int,
        typer.Option(
            help="Leave the first N requests out of the statistics.", rich_help_panel=_ENDS
        ),
    ] = 0
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:MS ...",
            help="Objectives in ms, for example: ttft:200 tpot:30 e2el:10000. Goodput counts the "
            "completed requests that meet all of them.",
            rich_help_panel=_ENDS,
        ),
    ] = None
    goodput_single_token: Annotated[
        SingleTokenChoice,
        typer.Option(
            help="How a request with one output token stands to a TPOT objective.",
            rich_help_panel=_ENDS,
        ),
    ] = SingleTokenChoice.MEETS
    # -- scheduling ---------------------------------------------------------------------------
    enable_overlap_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--enable-overlap-scheduling/--no-enable-overlap-scheduling",
            help="Choose the overlap or the eager loop by the product's option "
            "(--enable-overlap-scheduling).",
            show_default=False,
            rich_help_panel=_LOOP,
        ),
    ] = None
    lookahead: Annotated[
        int | None,
        typer.Option(
            help="Batches prepared ahead in the overlap loop; more than 1 is for tests.",
            rich_help_panel=_LOOP,
        ),
    ] = None
    npu_queue_limit: Annotated[
        int,
        typer.Option(
            help="Batches in the hardware queue; must be 1 under overlap.", rich_help_panel=_LOOP
        ),
    ] = 1
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens per batch. Default: the largest prompt chunk of the device.",
            rich_help_panel=_LOOP,
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            help="Rows per batch. Default: the largest batch of the device.", rich_help_panel=_LOOP
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Prompt and output tokens of one request; may only lower that of the device.",
            rich_help_panel=_LOOP,
        ),
    ] = None
    order: Annotated[
        OrderChoice, typer.Option(help="Order of the waiting line.", rich_help_panel=_LOOP)
    ] = OrderChoice.FCFS
    prefer: Annotated[
        PreferChoice,
        typer.Option(help="Which rows get the token budget first.", rich_help_panel=_LOOP),
    ] = PreferChoice.DECODE
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.", rich_help_panel=_LOOP)] = (
        16
    )
    num_blocks: Annotated[
        int | None,
        typer.Option(
            help="KV blocks. Default: what the memory of the device holds.", rich_help_panel=_LOOP
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the KV blocks of equal prompt prefixes.",
            rich_help_panel=_LOOP,
        ),
    ] = True
    # -- machine ------------------------------------------------------------------------------
    device: Annotated[
        str,
        typer.Option(
            metavar="PROFILE",
            help="A device profile by name, or the path of a TOML file.",
            rich_help_panel=_MACHINE,
        ),
    ] = "rngd-llama-3.1-8b"
    cpu_scale: Annotated[
        float,
        typer.Option(help="Multiply every CPU cost by X.", rich_help_panel=_MACHINE),
    ] = 1.0
    npu_sampling: Annotated[
        bool,
        typer.Option(
            "--npu-sampling/--host-sampling",
            help="Where the next tokens are drawn.",
            rich_help_panel=_MACHINE,
        ),
    ] = False
    noise: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="Largest random deviation of NPU and CPU times, a function of seed and batch.",
            rich_help_panel=_MACHINE,
        ),
    ] = 0.0
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked",
            help="For speed: no KV memory and no sanitizer; tokens are a function of request and "
            "place. All times stay the same.",
            rich_help_panel=_MACHINE,
        ),
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check the invariants after each step; for small runs.",
            rich_help_panel=_MACHINE,
        ),
    ] = False
    # -- output -------------------------------------------------------------------------------
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the result as JSON (schema 1); `-`: standard output, no table.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write every event and command; compare adds the loop's name before the suffix.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    log_format: Annotated[
        LogFormatChoice,
        typer.Option(help="Log lines on standard error.", rich_help_panel=_OUTPUT),
    ] = LogFormatChoice.CONSOLE


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(RunOptions):
    """What `replay` takes."""

    loop: Annotated[
        LoopChoice | None,
        typer.Option(help="The loop. Default: eager.", show_default=False, rich_help_panel=_LOOP),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """What `compare` takes."""

    loops: Annotated[
        str,
        typer.Option(
            help="Loops to compare, separated by commas; changes are against the first.",
            rich_help_panel=_LOOP,
        ),
    ] = "eager,overlap"


OptionsT = TypeVar("OptionsT")


def unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that a terminal can wrap it."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def add_command(
    app: typer.Typer, name: str, options: type[OptionsT], run: Callable[[OptionsT], None]
) -> None:
    """Add a command whose parameters are the fields of the dataclass ``options``.

    The docstring of ``run`` is its help.
    """
    hints = get_type_hints(options, include_extras=True)
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
    app.command(name)(command)
