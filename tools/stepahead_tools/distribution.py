"""Exact statistics of integer nanoseconds with integer weights.

A percentile is what `numpy.percentile` (linear interpolation) gives on the sample in which every
value stands as often as its weight says, computed in integers and rounded once, half to even, to
whole nanoseconds. So the same run gives the same digits on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

PERCENTILES: Final = (25, 50, 75, 90, 95, 99)
_SPLIT: Final = 1 << 20
_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles in whole ns; ``count`` is how many values stand behind them.

    ``percentiles_ns`` are in the order of `PERCENTILES`.
    """

    count: int
    mean_ns: int
    percentiles_ns: tuple[int, ...]

    def at(self, percent: int) -> int:
        """Return one of the `PERCENTILES`, ns."""
        return self.percentiles_ns[PERCENTILES.index(percent)]


def distribution(values: Ints, weights: Ints | None = None) -> Distribution | None:
    """Return the statistics of a sample, or None of an empty one.

    Args:
        values: ns; shape ``(entries,)``.
        weights: how often each value stands in the sample, 0 or more; once when None.
    """
    if weights is None:
        weights = np.ones(len(values), dtype=np.int64)
    used = weights > 0
    if np.count_nonzero(used) < len(used):
        values, weights = values[used], weights[used]
    if not len(values):
        return None
    total = weighted_sum(values, weights)
    order = np.argsort(values, kind="stable")
    values, ends = values[order], weights[order]
    np.cumsum(ends, out=ends)
    count = int(ends[-1])
    return Distribution(
        count=count,
        mean_ns=round(Fraction(total, count)),
        percentiles_ns=tuple(_percentile(values, ends, count, percent) for percent in PERCENTILES),
    )


def weighted_sum(values: Ints, weights: Ints) -> int:
    """Return the sum of ``values * weights``, exact although it may exceed 64 bits.

    Values are split in two, so that 2**38 values below 2**45 ns (ten hours) fit.
    """
    total = 0
    # Piece by piece, so that a sample of millions needs no second one for the parts.
    for start in range(0, len(values), _PIECE):
        piece, counts = values[start : start + _PIECE], weights[start : start + _PIECE]
        high, low = np.divmod(piece, _SPLIT)
        total += int(np.dot(high, counts)) * _SPLIT + int(np.dot(low, counts))
    return total


def _percentile(values: Ints, ends: Ints, count: int, percent: int) -> int:
    """Interpolate at rank (count - 1) * percent / 100, counted from 0."""
    rank, hundredths = divmod((count - 1) * percent, 100)
    below = int(values[np.searchsorted(ends, rank, side="right")])
    if not hundredths:
        return below
    above = int(values[np.searchsorted(ends, rank + 1, side="right")])
    return round(Fraction(below * (100 - hundredths) + above * hundredths, 100))
