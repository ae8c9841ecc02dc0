"""Options: which requests arrive when, how they end, and what is measured of them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from stepahead_tools.declared import Option

_LOAD: Final = "Load (times in ms, s or as said)"
_ENDS: Final = "How requests end and what is measured"


class EndsChoice(StrEnum):
    """How requests of a trace end."""

    EOS = "eos"
    LENGTH = "length"


class SingleTokenChoice(StrEnum):
    """How a request with one output token stands to a TPOT objective."""

    MEETS = "meets"
    FAILS = "fails"
    EXCLUDE = "exclude"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LoadOptions:
    """How the requests of the trace arrive."""

    limit: Annotated[
        int | None,
        Option(help="Take the first N requests only.", group=_LOAD),
    ] = None
    speed: Annotated[
        float | None,
        Option(help="Divide the arrival times by X.", group=_LOAD),
    ] = None
    load: Annotated[
        float | None,
        Option(
            help="Scale the arrival times so that requests arrive at X times the capacity: the "
            "requests/s of an eager run of the same requests that all arrive at time 0.",
            group=_LOAD,
        ),
    ] = None
    rate: Annotated[
        float | None,
        Option(metavar="R", help="Poisson arrivals at R requests/s.", group=_LOAD),
    ] = None
    concurrency: Annotated[
        int | None,
        Option(
            metavar="C",
            help="Closed loop: C requests at once, the next arrives when one ends.",
            group=_LOAD,
        ),
    ] = None
    seed: Annotated[
        int,
        Option(help="Of Poisson arrivals, noise and sampled tokens.", group=_LOAD),
    ] = 0
    skip_bad_lines: Annotated[
        bool,
        Option(
            "--skip-bad-lines",
            help="Leave bad lines of the trace out, count and report them.",
            group=_LOAD,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EndOptions:
    """How they end, and the statistics."""

    ends: Annotated[
        EndsChoice,
        Option(
            help="Requests end with an EOS token that nobody knows ahead, or by max_tokens.",
            group=_ENDS,
        ),
    ] = EndsChoice.EOS
    warmup: Annotated[
        int,
        Option(help="Leave the first N requests out of the statistics.", group=_ENDS),
    ] = 0
    goodput: Annotated[
        list[str] | None,
        Option(
            metavar="NAME:MS ...",
            help="Objectives in ms, for example: ttft:200 tpot:30 e2el:10000. Goodput counts the "
            "completed requests that meet all of them.",
            group=_ENDS,
        ),
    ] = None
    goodput_single_token: Annotated[
        SingleTokenChoice,
        Option(
            help="How a request with one output token stands to a TPOT objective.",
            group=_ENDS,
        ),
    ] = SingleTokenChoice.MEETS
