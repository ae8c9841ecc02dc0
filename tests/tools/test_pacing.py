"""When requests arrive."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from stepahead_models.traces import Trace, read_trace
from stepahead_tools.errors import OptionError
from stepahead_tools.pacing import Pacing, pace

BEYOND = "moves the last arrival beyond 2**62 ns (146 years)"


@pytest.fixture
def trace(tiny_trace: Path) -> Trace:
    """24 requests, one every 7 ms."""
    return read_trace(tiny_trace)


@pytest.mark.parametrize("pacing", [Pacing("recorded"), Pacing("concurrency", 4)])
def test_recorded_times_stay(trace: Trace, pacing: Pacing) -> None:
    """A closed loop ignores times, so it need not change them either."""
    assert pace(trace, pacing, 0, None) is trace


def test_speed_divides_the_times(trace: Trace) -> None:
    """Twice the speed is half the span."""
    assert pace(trace, Pacing("speed", 2), 0, None).span_ns == trace.span_ns // 2


def test_load_brings_requests_at_a_share_of_the_capacity(trace: Trace) -> None:
    """At load 0.5 of 10 requests/s, 23 gaps take 4.6 s."""
    assert pace(trace, Pacing("load", 0.5), 0, Fraction(10)).span_ns == 4_600_000_000


def test_load_without_a_capacity_is_a_mistake_of_ours(trace: Trace) -> None:
    """Nothing is assumed about what a device can do."""
    with pytest.raises(ValueError, match=r"^pacing by load needs the capacity; measure it first$"):
        pace(trace, Pacing("load", 0.5), 0, None)


@pytest.mark.parametrize(
    ("pacing", "reason"),
    [
        (
            Pacing("speed", 1e-300),
            f"speed 1e-300 {BEYOND}",
        ),
        (
            Pacing("rate", 1e-300),
            f"rate 1e-300/s {BEYOND}",
        ),
        (Pacing("load", 1e308), "integer division result too large for a float"),
    ],
)
def test_what_no_clock_can_hold_is_refused_by_option(
    trace: Trace, pacing: Pacing, reason: str
) -> None:
    """The sentence names the option and the trace."""
    with pytest.raises(OptionError) as caught:
        pace(trace, pacing, 0, Fraction(10**9))
    assert str(caught.value) == (
        f"--{pacing.kind} {pacing.value:g} is out of range for trace {trace.name!r}: {reason}"
    )


def test_random_arrivals_follow_the_seed(trace: Trace) -> None:
    """The same seed gives the same times, another one others."""
    first, again, other = (pace(trace, Pacing("rate", 3), seed, None) for seed in (1, 1, 2))
    assert first.digest == again.digest != other.digest


@pytest.mark.parametrize("kind", ["speed", "load"])
def test_a_burst_cannot_be_scaled(trace: Trace, kind: str) -> None:
    """Where all requests arrive at once there are no times to scale."""
    sentence = (
        "all 1 requests taken from trace 'tiny' arrive at once, so there are no times that "
        f"--{kind} could scale (the demo runs at a --load); take more with --limit, or use --rate "
        "or --concurrency"
    )
    pacing = Pacing("speed", 2) if kind == "speed" else Pacing("load", 2)
    with pytest.raises(OptionError, match=f"^{re.escape(sentence)}$"):
        pace(trace.limit(1), pacing, 0, Fraction(1))


@pytest.mark.parametrize(
    ("pacing", "words"),
    [
        (Pacing("recorded"), "as recorded"),
        (Pacing("speed", 2), "recorded times divided by 2"),
        (Pacing("load", 0.6), "scaled to 0.6 of the eager capacity"),
        (Pacing("rate", 2.5), "Poisson, 2.5 requests/s"),
        (Pacing("concurrency", 16), "closed loop of 16"),
    ],
)
def test_pacing_is_said_in_words(pacing: Pacing, words: str) -> None:
    """A person reads how requests arrive above every table."""
    assert pacing.words() == words
