"""The options of `stepahead explore`: names, defaults and help, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_BOUNDS = "Bounds (the search is complete within them)"
_KERNEL = "Options of the kernel"
_FAULTS = "Faults and operators"
_SEARCH = "Search"


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """What `explore` takes."""

    requests: Annotated[
        int, typer.Option(help="Requests that arrive at most.", rich_help_panel=_BOUNDS)
    ] = 2
    blocks: Annotated[int, typer.Option(help="KV blocks.", rich_help_panel=_BOUNDS)] = 3
    tokens: Annotated[
        int, typer.Option(help="Output tokens per request at most.", rich_help_panel=_BOUNDS)
    ] = 3
    prompts: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Prompt lengths, repeated over the requests. Default: 1 and 2 in turn, "
            "where 2 fits.",
            show_default=False,
            rich_help_panel=_BOUNDS,
        ),
    ] = ""
    priorities: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Priorities, repeated over the requests. Default: first come, first served.",
            show_default=False,
            rich_help_panel=_BOUNDS,
        ),
    ] = ""
    lookahead: Annotated[
        int, typer.Option(help="Batches prepared ahead; 0 is eager.", rich_help_panel=_KERNEL)
    ] = 1
    block_size: Annotated[
        int, typer.Option(help="Tokens per KV block.", rich_help_panel=_KERNEL)
    ] = 1
    rows: Annotated[
        int,
        typer.Option(
            help="Rows per batch at most; 0: as many as requests.", rich_help_panel=_KERNEL
        ),
    ] = 0
    budget: Annotated[
        int, typer.Option(help="Tokens per batch at most.", rich_help_panel=_KERNEL)
    ] = 1024
    row_tokens: Annotated[
        int, typer.Option(help="Tokens per row at most.", rich_help_panel=_KERNEL)
    ] = 1024
    prefill_first: Annotated[
        bool,
        typer.Option(
            "--prefill-first",
            help="Prompts get the token budget before decode rows.",
            rich_help_panel=_KERNEL,
        ),
    ] = False
    caching: Annotated[
        bool,
        typer.Option(
            "--caching",
            help="Prefix caching; all prompts share one prefix.",
            rich_help_panel=_KERNEL,
        ),
    ] = False
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Rows whose request has ended are dropped before the dispatch.",
            rich_help_panel=_KERNEL,
        ),
    ] = False
    drafts: Annotated[
        int,
        typer.Option(
            help="Draft tokens per decode row at most; with --lookahead 0.",
            rich_help_panel=_KERNEL,
        ),
    ] = 0
    refusals: Annotated[
        bool,
        typer.Option(
            "--refusals", help="The host may refuse to build a batch.", rich_help_panel=_FAULTS
        ),
    ] = False
    failures: Annotated[
        bool,
        typer.Option("--failures", help="The device may fail.", rich_help_panel=_FAULTS),
    ] = False
    pauses: Annotated[
        bool,
        typer.Option(
            "--pauses",
            help="Somebody may ask for a pause, end it, or reset the cache.",
            rich_help_panel=_FAULTS,
        ),
    ] = False
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Report in every state what cannot have happened; it must be refused.",
            rich_help_panel=_SEARCH,
        ),
    ] = False
    states_max: Annotated[
        int, typer.Option(help="Stop, unfinished, beyond N states.", rich_help_panel=_SEARCH)
    ] = 1_000_000
    seconds_max: Annotated[
        float | None,
        typer.Option(help="Stop, unfinished, after N seconds.", rich_help_panel=_SEARCH),
    ] = None
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the run that violates as a journal, for `stepahead replay`.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
