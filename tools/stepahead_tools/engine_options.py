"""Options: how the engine schedules and caches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

SCHEDULING: Final = "Scheduling"


class OrderChoice(StrEnum):
    """Order of the waiting line."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PreferChoice(StrEnum):
    """Which rows get the token budget first."""

    DECODE = "decode"
    PREFILL = "prefill"


class LoopChoice(StrEnum):
    """A scheduling loop."""

    EAGER = "eager"
    OVERLAP = "overlap"
    JUST_IN_TIME = "just-in-time"


@dataclass(frozen=True, kw_only=True)
class SchedulingOptions:
    """What the scheduler is told."""

    enable_overlap_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--enable-overlap-scheduling/--no-enable-overlap-scheduling",
            help="Choose the overlap or the eager loop by the product's option "
            "(--enable-overlap-scheduling).",
            show_default=False,
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    lookahead: Annotated[
        int | None,
        typer.Option(
            help="Batches prepared ahead in the overlap loop; more than 1 is for tests.",
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    npu_queue_limit: Annotated[
        int,
        typer.Option(
            help="Batches in the hardware queue; must be 1 under overlap.",
            rich_help_panel=SCHEDULING,
        ),
    ] = 1
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens per batch. Default: the largest prompt chunk of the device.",
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            help="Rows per batch. Default: the largest batch of the device.",
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Prompt and output tokens of one request; may only lower that of the device.",
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    order: Annotated[
        OrderChoice, typer.Option(help="Order of the waiting line.", rich_help_panel=SCHEDULING)
    ] = OrderChoice.FCFS
    prefer: Annotated[
        PreferChoice,
        typer.Option(help="Which rows get the token budget first.", rich_help_panel=SCHEDULING),
    ] = PreferChoice.DECODE
    block_size: Annotated[
        int, typer.Option(help="Tokens per KV block.", rich_help_panel=SCHEDULING)
    ] = 16
    num_blocks: Annotated[
        int | None,
        typer.Option(
            help="KV blocks. Default: what the memory of the device holds.",
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the KV blocks of equal prompt prefixes.",
            rich_help_panel=SCHEDULING,
        ),
    ] = True
