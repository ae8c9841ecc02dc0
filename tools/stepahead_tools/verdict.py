"""In one sentence: does preparing ahead pay on this load, and what does it cost in TTFT?"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from stepahead_tools.distribution import Distribution
from stepahead_tools.metrics import RunMetrics

#: A change below half a percent is called none.
NOTICEABLE: Final = Fraction(1, 200)
_NS_PER_MS: Final = 1_000_000
#: At which TTFT is told and weighed.
_PERCENTS: Final = (50, 99)


def verdict(reference: tuple[str, RunMetrics], other: tuple[str, RunMetrics]) -> str:
    """Return the sentence about ``other`` against ``reference``, each a loop's name and figures.

    A loop pays when something is noticeably better and output tokens/s, mean TPOT and mean E2EL are
    not worse. A later first token is weighed against faster ones by the time of whole answers: it
    is paid for where mean E2EL is noticeably better. Nothing is claimed about TTFT and E2EL where a
    run was overloaded: they then tell how long the trace is.
    """
    (_, before), (name, after) = reference, other
    rate = _change(before.output_tokens_per_s, after.output_tokens_per_s)
    tpot = _mean_change(before.tpot, after.tpot)
    told = f"output tokens/s {_percent(rate)}, mean TPOT {_percent(tpot)}"
    answer_time, firsts = Fraction(0), [Fraction(0)]
    if before.overloaded or after.overloaded:
        told += (
            "; the waiting line grows to the end (overloaded), so nothing is said about TTFT; "
            "try --load 0.6"
        )
    elif before.ttft is None or after.ttft is None:
        told += "; no request completed, so there is no TTFT"
    else:
        answer_time = _mean_change(before.e2el, after.e2el)
        firsts = [_change(before.ttft.at(p), after.ttft.at(p)) for p in _PERCENTS]
        costs = " and ".join(
            f"{(after.ttft.at(p) - before.ttft.at(p)) / _NS_PER_MS:+z.1f} ms "
            f"({_percent(change)}) at p{p}"
            for p, change in zip(_PERCENTS, firsts, strict=True)
        )
        told += f", mean E2EL {_percent(answer_time)}; TTFT changes by {costs}"
    return f"{_answer(name, (-rate, tpot, answer_time), firsts)}: {told}."


def _answer(name: str, times: tuple[Fraction, Fraction, Fraction], firsts: list[Fraction]) -> str:
    """Return the verdict on relative changes: per token of the system, TPOT, E2EL; and of TTFT."""
    later = max(firsts) >= NOTICEABLE
    earlier = min(firsts) <= -NOTICEABLE and not later
    better = min(times) <= -NOTICEABLE or earlier
    worse = max(times) >= NOTICEABLE or (later and times[-1] > -NOTICEABLE)
    if not better:
        return f"{name.capitalize()} does not pay on this load"
    if worse:
        return f"Whether {name} pays on this load depends on what you want"
    return f"{name.capitalize()} pays on this load"


def _mean_change(before: Distribution | None, after: Distribution | None) -> Fraction:
    if before is None or after is None:
        return Fraction(0)
    return _change(before.mean_ns, after.mean_ns)


def _change(before: Fraction | int | None, after: Fraction | int | None) -> Fraction:
    return Fraction(after) / before - 1 if before and after is not None else Fraction(0)


def _percent(change: Fraction) -> str:
    return f"{float(change) * 100:+z.1f} %"
