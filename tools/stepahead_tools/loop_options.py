"""Options: what a loop does beyond the product: dead rows, and selection just in time."""

from dataclasses import dataclass
from typing import Annotated

from stepahead_tools.declared import Option
from stepahead_tools.engine_options import SCHEDULING


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LoopOptions:
    """None stands for a default that depends on the device."""

    prune: Annotated[
        bool | None,
        Option(
            "--prune/--no-prune",
            help="Drop the rows of ended requests from a prepared batch before its dispatch, where "
            "the device takes a changed batch; mask them otherwise. Default: where it is free.",
            show_default=False,
            group=SCHEDULING,
        ),
    ] = None
    late_joiners: Annotated[
        bool,
        Option(
            "--late-joiners/--no-late-joiners",
            help="Just-in-time: select early, and prepare again for a new arrival where that is "
            "still hidden. Default: no.",
            group=SCHEDULING,
        ),
    ] = False
    late_share: Annotated[
        float,
        Option(
            metavar="PERCENT",
            help="Just-in-time: share of preparations that may outlast the device step.",
            group=SCHEDULING,
        ),
    ] = 1.0
