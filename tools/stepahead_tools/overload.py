"""Whether more requests came than the machine could begin: did the waiting line grow?

Looked at is the second half of the time from the first arrival to the last. The line's trend there
is the straight line of least squares through it, over continuous time. A run is overloaded when
that trend grows, over the half, by at least one request in twenty that arrived in it, and by at
least four: a stable line wanders, one that cannot be served grows with every arrival.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from stepahead_tools.distribution import Ints

SHARE_MIN: Final = Fraction(1, 20)
REQUESTS_MIN: Final = 4


def grows(arrivals_ns: Ints, times_ns: Ints, counts: Ints) -> bool:
    """Tell whether the waiting line grew.

    Args:
        arrivals_ns: arrivals, in order; shape ``(requests,)``.
        times_ns: when the line changed, never decreasing; shape ``(changes,)``.
        counts: its length from each of these times on; shape ``(changes,)``.
    """
    first, last = int(arrivals_ns[0]), int(arrivals_ns[-1])
    half = first + (last - first) // 2
    if last <= half or not len(times_ns):
        return False
    arrived = int((arrivals_ns > half).sum())
    growth = trend_growth(times_ns, counts, half, last)
    return growth >= SHARE_MIN * arrived and growth >= REQUESTS_MIN


def trend_growth(times_ns: Ints, counts: Ints, begin: int, end: int) -> Fraction:
    """Return by how much the least-squares line through the waiting line rises from begin to end.

    For a function w on [0, T] the slope of that line is 12 / T**3 times the integral of
    (t - T / 2) w(t); the integrals of a step function are sums over its steps.
    """
    inside = (times_ns > begin) & (times_ns < end)
    before = np.flatnonzero(times_ns <= begin)
    entry = int(counts[before[-1]]) if len(before) else 0
    edges = [begin, *times_ns[inside].tolist(), end]
    levels = [entry, *counts[inside].tolist()]
    span = end - begin
    moment = 0
    for level, left, right in zip(levels, edges[:-1], edges[1:], strict=True):
        # Twice the integral of (t - T / 2) over the step, t counted from begin.
        moment += level * (right - left) * (left + right - 2 * begin - span)
    return Fraction(6 * moment, span * span)
