"""When requests arrive: as recorded, scaled, drawn at random, or in a closed loop."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, assert_never

from msgspec import Struct

from stepahead_models.traces import Trace
from stepahead_tools.errors import OptionError, exact

Kind = Literal["recorded", "speed", "load", "rate", "concurrency"]
_NS_PER_S = 1_000_000_000


class Pacing(Struct, frozen=True):
    """How requests arrive; ``value`` is a factor, requests/s, or a number of clients."""

    kind: Kind
    value: float = 1.0

    def words(self) -> str:
        """Say it for people."""
        match self.kind:
            case "recorded":
                return "as recorded"
            case "speed":
                return f"recorded times divided by {self.value:g}"
            case "load":
                return f"scaled to {self.value:g} of the eager capacity"
            case "rate":
                return f"Poisson, {self.value:g} requests/s"
            case "concurrency":
                return f"closed loop of {self.value:g}"
            case _:
                assert_never(self.kind)


def pace(trace: Trace, pacing: Pacing, seed: int, capacity_per_s: Fraction | None) -> Trace:
    """Return the trace with the arrivals that ``pacing`` asks for.

    Args:
        trace: the requests that will run.
        pacing: how they arrive; a closed loop leaves the times alone.
        seed: of random arrivals.
        capacity_per_s: requests/s that load 1 stands for; needed for "load" only.

    Raises:
        OptionError: the arrivals cannot be scaled.
    """
    if pacing.kind == "load" and capacity_per_s is None:
        raise ValueError("pacing by load needs the capacity; measure it first")
    try:
        return _paced(trace, pacing, seed, capacity_per_s or Fraction(1))
    except (ValueError, OverflowError) as error:
        raise OptionError(
            f"--{pacing.kind} {exact(pacing.value)} is out of range for trace "
            f"{trace.name!r}: {error}"
        ) from error


def _paced(trace: Trace, pacing: Pacing, seed: int, capacity_per_s: Fraction) -> Trace:
    match pacing.kind:
        case "recorded" | "concurrency":
            return trace
        case "speed":
            _need_span(trace, "speed")
            return trace.speed(pacing.value)
        case "load":
            _need_span(trace, "load")
            rate = Fraction((len(trace) - 1) * _NS_PER_S, trace.span_ns)
            return trace.speed(float(Fraction(pacing.value) * capacity_per_s / rate))
        case "rate":
            return trace.poisson(pacing.value, seed)
        case _:
            assert_never(pacing.kind)


def _need_span(trace: Trace, flag: str) -> None:
    if not trace.span_ns:
        raise OptionError(
            f"all {len(trace)} requests taken from trace {trace.name!r} arrive at once, so there "
            f"are no times that --{flag} could scale (the demo runs at a --load); take more with "
            "--limit, or use --rate or --concurrency"
        )
