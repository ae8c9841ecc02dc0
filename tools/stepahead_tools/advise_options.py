"""Options of `stepahead advise`: those of a run, and what is asked of the service."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from stepahead_tools.declared import Option
from stepahead_tools.options import RunOptions

_ADVICE: Final = "What is asked for"
#: Options of a run that advise chooses itself or cannot do: refused, and not in its help.
FIXED: Final = (
    "speed", "load", "rate", "concurrency", "lookahead", "enable_overlap_scheduling", "journal",
    "check", "unchecked", "print_config", "config", "experimental_speculative_config",
    "draft_acceptance", "draft_step_us", "draft_token_us",
)  # fmt: skip


class VaryChoice(StrEnum):
    """What is searched over."""

    LOAD = "load"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(RunOptions):
    """What `advise` takes."""

    limit: Annotated[
        int | None,
        Option(help="Take the first N requests only.", group=_ADVICE),
    ] = 300
    slo: Annotated[
        list[str] | None,
        Option(
            metavar="NAME_PN:MS ...",
            help="What must hold for a whole run, in ms, for example: ttft_p99:500 tpot_p90:40. "
            "Loads at which it does not are left out.",
            group=_ADVICE,
        ),
    ] = None
    preset: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Objectives and p99 of an MLPerf server scenario by name, for example "
            "llama3.1-8b-interactive; an unknown name prints all of them.",
            group=_ADVICE,
        ),
    ] = None
    vary: Annotated[
        VaryChoice,
        Option(
            help="Search over the rate of arrivals, or over the clients of a closed loop.",
            group=_ADVICE,
        ),
    ] = VaryChoice.LOAD
    poisson: Annotated[
        bool,
        Option(
            "--poisson",
            help="Draw random arrivals instead of scaling the recorded ones.",
            group=_ADVICE,
        ),
    ] = False
    seeds: Annotated[
        int,
        Option(
            help="Runs per point where the load is random; the table then shows 95 % intervals.",
            group=_ADVICE,
        ),
    ] = 3
