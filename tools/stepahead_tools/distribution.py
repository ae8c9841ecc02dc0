"""Exact statistics of integer nanoseconds with integer weights.

A percentile is what `numpy.percentile` (linear interpolation) gives on the sample in which every
value stands as often as its weight says, computed in integers and rounded once, half to even, to
whole nanoseconds. So the same run gives the same digits on every machine.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Weights = NDArray[np.integer[Any]]

PERCENTILES: Final = (25, 50, 75, 90, 95, 99)
_HALF_BITS: Final = 20
_BIN_BITS: Final = 14
#: Large samples are worked through in pieces of this length, and so many values are sorted.
_PIECE: Final = 1 << 16
_SORTED_MAX: Final = 1 << 13


class Distribution(Struct, frozen=True):
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
    count = len(values) if weights is None else int(weights.sum(dtype=np.int64))
    if not count:
        return None
    # A percentile is interpolated at rank (count - 1) * percent / 100, counted from 0.
    places = [divmod((count - 1) * percent, 100) for percent in PERCENTILES]
    ranks = {rank for rank, _ in places} | {rank + 1 for rank, hundredths in places if hundredths}
    at = _at_ranks(values, weights, ranks)
    return Distribution(
        count=count,
        mean_ns=round(Fraction(weighted_sum(values, weights), count)),
        percentiles_ns=tuple(
            round(Fraction(at[rank] * (100 - part) + at[rank + 1] * part, 100))
            if part
            else at[rank]
            for rank, part in places
        ),
    )


def weighted_sum(values: Ints, weights: Weights | None) -> int:
    """Return the sum of ``values * weights``, exact although it may exceed 64 bits.

    Values are split in two, so that 2**38 values below 2**45 ns (ten hours) fit. Without weights
    each value counts once.
    """
    total = 0
    # Piece by piece, so that a sample of millions needs no second one for the parts.
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        high, low = piece >> _HALF_BITS, piece & ((1 << _HALF_BITS) - 1)
        if weights is not None:
            counts = weights[start : start + _PIECE]
            high, low = high * counts, low * counts
        total += (int(high.sum()) << _HALF_BITS) + int(low.sum())
    return total


def _at_ranks(values: Ints, weights: Weights | None, ranks: Collection[int]) -> dict[int, int]:
    """Return the values of the sample that have these ranks, counted from 0.

    A large sample is not sorted: its values are counted in bins, and only those bins that hold one
    of the ranks are looked into, in the same way.
    """
    if len(values) <= _SORTED_MAX:
        return _in_order(values, weights, ranks)
    least = int(values.min())
    shift = max((int(values.max()) - least).bit_length() - _BIN_BITS, 0)
    counts = np.zeros(1 << _BIN_BITS, dtype=np.int64)
    bins = np.empty(len(values), dtype=np.uint16)
    for start in range(0, len(values), _PIECE):
        piece = slice(start, start + _PIECE)
        bins[piece] = (values[piece] - least) >> shift
        held = np.bincount(bins[piece], None if weights is None else weights[piece], len(counts))
        counts += held.astype(np.int64, copy=False)  # below 2**53, so exact
    ends = counts.cumsum()
    by_bin: dict[int, list[int]] = {}
    for rank in ranks:
        by_bin.setdefault(int(ends.searchsorted(rank, side="right")), []).append(rank)
    found: dict[int, int] = {}
    for number, inside in by_bin.items():
        if not shift:
            found |= dict.fromkeys(inside, least + number)
            continue
        places = (bins == number).nonzero()[0]
        before = int(ends[number] - counts[number])
        times = None if weights is None else weights[places]
        at = _at_ranks(values[places], times, [rank - before for rank in inside])
        found |= {rank + before: value for rank, value in at.items()}
    return found


def _in_order(values: Ints, weights: Weights | None, ranks: Collection[int]) -> dict[int, int]:
    if weights is None:
        ordered = np.sort(values)
        return {rank: int(ordered[rank]) for rank in ranks}
    order = values.argsort()
    ends = weights[order].cumsum(dtype=np.int64)
    places = {rank: ends.searchsorted(rank, side="right") for rank in ranks}
    return {rank: int(values[order[place]]) for rank, place in places.items()}
