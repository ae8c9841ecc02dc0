"""In one sentence: does preparing ahead pay on this load, and what does it cost in TTFT?"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from stepahead_tools.distribution import Distribution
from stepahead_tools.metrics import RunMetrics

#: A change below half a percent is called none.
NOTICEABLE: Final = Fraction(1, 200)
_NS_PER_MS: Final = 1_000_000


def verdict(reference: tuple[str, RunMetrics], other: tuple[str, RunMetrics]) -> str:
    """Return the sentence about ``other`` against ``reference``, each a loop's name and figures.

    A loop pays when it changes output tokens/s or mean TPOT for the better by a noticeable amount
    and neither for the worse. Nothing is claimed about TTFT where a run was overloaded: it then
    tells how long the trace is.
    """
    (_, before), (name, after) = reference, other
    rate = _change(before.output_tokens_per_s, after.output_tokens_per_s)
    tpot = _change(_mean(before.tpot), _mean(after.tpot))
    gains = [rate >= NOTICEABLE, tpot <= -NOTICEABLE]
    losses = [rate <= -NOTICEABLE, tpot >= NOTICEABLE]
    if any(gains) and not any(losses):
        answer = f"{name.capitalize()} pays on this load"
    elif any(gains):
        answer = f"Whether {name} pays on this load depends on what you want"
    else:
        answer = f"{name.capitalize()} does not pay on this load"
    return (
        f"{answer}: output tokens/s {_percent(rate)}, mean TPOT {_percent(tpot)}; "
        f"{_first_token(before, after)}."
    )


def _first_token(before: RunMetrics, after: RunMetrics) -> str:
    if before.overloaded or after.overloaded:
        return (
            "the waiting line grows to the end (overloaded), so nothing is said about TTFT; "
            "try --load 0.6"
        )
    if before.ttft is None or after.ttft is None:
        return "no request completed, so there is no TTFT"
    parts: list[str] = []
    for percent in (50, 99):
        cost_ns = after.ttft.at(percent) - before.ttft.at(percent)
        change = _change(Fraction(before.ttft.at(percent)), Fraction(after.ttft.at(percent)))
        parts.append(f"{cost_ns / _NS_PER_MS:+z.1f} ms ({_percent(change)}) at p{percent}")
    return f"TTFT changes by {' and '.join(parts)}"


def _mean(figures: Distribution | None) -> Fraction | None:
    return None if figures is None else Fraction(figures.mean_ns)


def _change(before: Fraction | None, after: Fraction | None) -> Fraction:
    return after / before - 1 if before and after is not None else Fraction(0)


def _percent(change: Fraction) -> str:
    return f"{float(change) * 100:+z.1f} %"
