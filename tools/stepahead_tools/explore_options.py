"""The options of `stepahead explore`: names, defaults and help, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from stepahead_tools.declared import Option

_BOUNDS = "Bounds (the search is complete within them)"
_KERNEL = "Options of the kernel"
_FAULTS = "Faults and operators"
_SEARCH = "Search"


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """What `explore` takes."""

    requests: Annotated[int, Option(help="Requests that arrive at most.", group=_BOUNDS)] = 2
    blocks: Annotated[int, Option(help="KV blocks.", group=_BOUNDS)] = 3
    tokens: Annotated[int, Option(help="Output tokens per request at most.", group=_BOUNDS)] = 3
    prompts: Annotated[
        str,
        Option(
            metavar="N,N,...",
            help="Prompt lengths, repeated over the requests. Default: 1 and 2 in turn, "
            "where 2 fits.",
            show_default=False,
            group=_BOUNDS,
        ),
    ] = ""
    priorities: Annotated[
        str,
        Option(
            metavar="N,N,...",
            help="Priorities, repeated over the requests. Default: first come, first served.",
            show_default=False,
            group=_BOUNDS,
        ),
    ] = ""
    lookahead: Annotated[int, Option(help="Batches prepared ahead; 0 is eager.", group=_KERNEL)] = 1
    block_size: Annotated[int, Option(help="Tokens per KV block.", group=_KERNEL)] = 1
    rows: Annotated[
        int,
        Option(help="Rows per batch at most; 0: as many as requests.", group=_KERNEL),
    ] = 0
    budget: Annotated[int, Option(help="Tokens per batch at most.", group=_KERNEL)] = 1024
    row_tokens: Annotated[int, Option(help="Tokens per row at most.", group=_KERNEL)] = 1024
    prefill_first: Annotated[
        bool,
        Option(
            "--prefill-first",
            help="Prompts get the token budget before decode rows.",
            group=_KERNEL,
        ),
    ] = False
    caching: Annotated[
        bool,
        Option(
            "--caching",
            help="Prefix caching; all prompts share one prefix.",
            group=_KERNEL,
        ),
    ] = False
    prune: Annotated[
        bool,
        Option(
            "--prune",
            help="Rows whose request has ended are dropped before the dispatch.",
            group=_KERNEL,
        ),
    ] = False
    drafts: Annotated[
        int,
        Option(
            help="Draft tokens per decode row at most; with --lookahead 0.",
            group=_KERNEL,
        ),
    ] = 0
    refusals: Annotated[
        bool,
        Option("--refusals", help="The host may refuse to build a batch.", group=_FAULTS),
    ] = False
    failures: Annotated[
        bool,
        Option("--failures", help="The device may fail.", group=_FAULTS),
    ] = False
    pauses: Annotated[
        bool,
        Option(
            "--pauses",
            help="Somebody may ask for a pause, end it, or reset the cache.",
            group=_FAULTS,
        ),
    ] = False
    probe: Annotated[
        bool,
        Option(
            "--probe",
            help="Report in every state what cannot have happened; it must be refused.",
            group=_SEARCH,
        ),
    ] = False
    states_max: Annotated[int, Option(help="Stop, unfinished, beyond N states.", group=_SEARCH)] = (
        1_000_000
    )
    seconds_max: Annotated[
        float | None,
        Option(metavar="N", help="Stop, unfinished, after N seconds.", group=_SEARCH),
    ] = None
    journal: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the run that violates as a journal, for `stepahead replay`.",
            group=_SEARCH,
        ),
    ] = None
