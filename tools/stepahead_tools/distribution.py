"""Exact statistics of integer nanoseconds with integer weights.

A percentile is what `numpy.percentile` (linear interpolation) gives on the sample in which every
value stands as often as its weight says, computed in integers and rounded once, half to even, to
whole nanoseconds. So the same run gives the same digits on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Weights = NDArray[np.integer[Any]]

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


def distribution(values: Ints, weights: Weights | None = None) -> Distribution | None:
    """Return the statistics of a sample, or None of an empty one.

    Args:
        values: ns; shape ``(entries,)``.
        weights: how often each value stands in the sample, 0 or more; once when None.
    """
    if weights is not None:
        used = weights > 0
        if np.count_nonzero(used) < len(used):
            values, weights = values[used], weights[used]
    if not len(values):
        return None
    total = weighted_sum(values, weights)
    # Arrays of a long run are large: weighted values are not copied into their order.
    if weights is None:
        sample = _Sample(np.sort(values), None, None, len(values))
    else:
        order = values.argsort()
        ends = weights[order].cumsum(dtype=np.int64)
        sample = _Sample(values, order, ends, int(ends[-1]))
    return Distribution(
        count=sample.count,
        mean_ns=round(Fraction(total, sample.count)),
        percentiles_ns=tuple(_percentile(sample, percent) for percent in PERCENTILES),
    )


def weighted_sum(values: Ints, weights: Weights | None) -> int:
    """Return the sum of ``values * weights``, exact although it may exceed 64 bits.

    Values are split in two, so that 2**38 values below 2**45 ns (ten hours) fit. Without weights
    each value counts once.
    """
    total = 0
    # Piece by piece, so that a sample of millions needs no second one for the parts.
    for start in range(0, len(values), _PIECE):
        high, low = np.divmod(values[start : start + _PIECE], _SPLIT)
        if weights is not None:
            counts = weights[start : start + _PIECE]
            high, low = high * counts, low * counts
        total += int(high.sum()) * _SPLIT + int(low.sum())
    return total


@dataclass(slots=True)
class _Sample:
    """Values by rank: sorted ones, or any with their ``order`` and the rank that ends each."""

    values: Ints
    order: Ints | None
    ends: Ints | None
    count: int

    def at(self, rank: int) -> int:
        """Return the value of a rank, counted from 0."""
        if self.order is None or self.ends is None:
            return int(self.values[rank])
        return int(self.values[self.order[self.ends.searchsorted(rank, side="right")]])


def _percentile(sample: _Sample, percent: int) -> int:
    """Interpolate at rank (count - 1) * percent / 100, counted from 0."""
    rank, hundredths = divmod((sample.count - 1) * percent, 100)
    below = sample.at(rank)
    if not hundredths:
        return below
    return round(Fraction(below * (100 - hundredths) + sample.at(rank + 1) * hundredths, 100))
