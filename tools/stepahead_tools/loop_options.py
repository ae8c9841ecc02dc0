"""Options: what a loop does beyond the product: dead rows, and selection just in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from stepahead_tools.engine_options import SCHEDULING


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """None stands for a default that depends on the device."""

    prune: Annotated[
        bool | None,
        typer.Option(
            "--prune/--no-prune",
            help="Drop the rows of ended requests from a prepared batch before its dispatch, where "
            "the device takes a changed batch; mask them otherwise. Default: where it is free.",
            show_default=False,
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    late_joiners: Annotated[
        bool,
        typer.Option(
            "--late-joiners/--no-late-joiners",
            help="Just-in-time: select early, and prepare again for a new arrival where that is "
            "still hidden.",
            rich_help_panel=SCHEDULING,
        ),
    ] = False
    late_share: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="Just-in-time: share of preparations that may outlast the device step.",
            rich_help_panel=SCHEDULING,
        ),
    ] = 1.0
