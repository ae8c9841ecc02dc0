"""Requests as a reader found them: in line order, in ns, one list per column.

Owns the step from lists in line order to a `Trace` in arrival order. Knows no file layout.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from stepahead_models.traces.columns import NONE_GIVEN, Trace
from stepahead_models.traces.problems import BadLine

# Lengths fit the int32 columns of a kernel; no context window comes near.
TOKENS_MAX: Final = 2**31 - 1
TOKENS_EXPECTED: Final = f"a whole number from 1 to {TOKENS_MAX}"


class FoundRequests(Struct, kw_only=True):
    """Columns in line order; an empty optional column means that the format has none.

    Times are ns on the file's own clock. ``hash_ids`` has those of all requests behind each other,
    ``hash_counts`` how many of them each request has.
    """

    format_name: str
    times_ns: list[int] = []
    input_lengths: list[int] = []
    output_lengths: list[int] = []
    request_ids: list[str] = []
    max_tokens: list[int] = []
    cancel_after_ns: list[int] = []
    cancel_after_tokens: list[int] = []
    priorities: list[int] = []
    hash_ids: array[int] = field(default_factory=lambda: array("q"))
    hash_counts: list[int] = []
    hash_block_size: int = 0

    def in_order_of_arrival(self, name: str, bad_lines: tuple[BadLine, ...]) -> Trace:
        """Build the trace: sorted by arrival, equal times in line order, the first arrival at 0."""
        count = len(self.times_ns)
        times = _int64(self.times_ns)
        order = np.argsort(times, kind="stable")
        places: list[int] = order.tolist()
        ids = self.request_ids or [f"r{index}" for index in range(count)]
        flat, offsets = self._ragged(order)

        def column(values: list[int], default: int) -> NDArray[np.int64]:
            if not values:
                return np.full(count, default, dtype=np.int64)
            return _int64(values)[order]

        return Trace(
            request_ids=tuple(ids[index] for index in places),
            arrivals_ns=times[order] - times.min(),
            input_lengths=column(self.input_lengths, 0),
            output_lengths=column(self.output_lengths, 0),
            max_tokens=column(self.max_tokens, NONE_GIVEN),
            cancel_after_ns=column(self.cancel_after_ns, NONE_GIVEN),
            cancel_after_tokens=column(self.cancel_after_tokens, NONE_GIVEN),
            priorities=column(self.priorities, 0),
            hash_offsets=offsets,
            hash_ids=flat,
            hash_block_size=self.hash_block_size,
            name=name,
            format_name=self.format_name,
            bad_lines=bad_lines,
        )

    def _ragged(self, order: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        offsets = np.zeros(len(self.times_ns) + 1, dtype=np.int64)
        if not self.hash_ids:
            return offsets[:0], offsets
        flat = np.frombuffer(self.hash_ids, dtype=np.int64)
        counts = _int64(self.hash_counts)
        begins = (counts.cumsum() - counts)[order]
        counts = counts[order]
        np.cumsum(counts, out=offsets[1:])
        if np.all(begins == offsets[:-1]):
            return flat, offsets
        return flat[np.arange(len(flat)) + (begins - offsets[:-1]).repeat(counts)], offsets


def _int64(values: list[int]) -> NDArray[np.int64]:
    """Return what `np.array` would, which takes six times as long to see that all are integers."""
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), dtype=np.int64)
