"""How long the NPU executes a batch: the protocol, and the roofline device.

Pure functions of integers: no clock, no state that changes an answer. A model is asked for one
batch (`NpuModel.step_ns`) or for a stretch of decode steps (`NpuModel.repeat_ns`); both answers are
equal to the nanosecond, which a property test holds. The staged device and the device known by a
table of measurements have modules of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from stepahead.arrays import Ints, arange, maximum, quick
from stepahead.errors import StepaheadError


class DeviceModelError(StepaheadError):
    """A device model was asked for something outside its numbers, or built from unusable ones."""


class BatchShape:
    """What a batch costs by: sizes only, no identity.

    Args:
        positions: KV tokens that stand before each row; shape ``(rows,)``.
        token_counts: tokens that each row computes, at least 1; shape ``(rows,)``.
        sampling_rows: rows that return a sampled token.
        new_blocks: KV blocks that the batch adds to block tables.
        tokens: sum of ``token_counts``; counted here when left at -1. As many tokens as rows means
            that every row computes one token, that is a decode-only batch.
        drafts: how many of each row's tokens are drafts that it verifies, shape ``(rows,)``; None
            where no row has any.
    """

    __slots__ = (
        "drafts", "new_blocks", "positions", "rows", "samples", "sampling_rows", "token_counts",
        "tokens",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - the sizes of a batch
        self,
        positions: Ints,
        token_counts: Ints,
        sampling_rows: int,
        new_blocks: int = 0,
        tokens: int = -1,
        *,
        drafts: Ints | None = None,
    ) -> None:
        self.drafts = drafts
        self.positions = positions
        self.token_counts = token_counts
        self.sampling_rows = sampling_rows
        self.new_blocks = new_blocks
        self.tokens = sum(token_counts.tolist()) if tokens < 0 else tokens
        #: Rows of the batch.
        self.rows = len(positions)
        #: Positions that are sampled from: one per sampling row, and every draft.
        self.samples = sampling_rows if drafts is None else sampling_rows + int(drafts.sum())

    def after(self, turns: int, new_blocks: int = 0) -> BatchShape:
        """Return the shape of the batch that computes as many tokens per row ``turns`` later."""
        positions = self.positions + turns * self.token_counts
        return BatchShape(positions, self.token_counts, self.sampling_rows, new_blocks, self.tokens)


class NpuModel(Protocol):
    """Device time of batches, in integer nanoseconds."""

    def step_ns(self, shape: BatchShape) -> int:
        """Return how long the NPU executes one batch."""
        ...

    def repeat_ns(self, positions: Ints, steps: int) -> Ints:
        """Return how long each of ``steps`` decode steps in a row takes.

        Args:
            positions: KV tokens before each row at the *first* of these steps; every row computes
                and samples one token per step, so step k runs at ``positions + k``.
            steps: how many.

        Returns:
            Device time per step; shape ``(steps,)``.
        """
        ...


_UNITS_PER_NS: Final = 1024
#: By as many bits a number is shifted, as an array for NumPy.
_UNIT_BITS: Final = np.array(_UNITS_PER_NS.bit_length() - 1)
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineNpu:
    """A device that is limited by arithmetic or by memory reads, whichever takes longer.

    ``step = max(compute, memory) + step overhead``. Compute grows with tokens, memory with the KV
    tokens read (each row reads its whole history once, chunks included); weights are read once per
    step. The cost per token is rounded once, to 1/1024 ns; sums stay integers.

    Args:
        compute_units_per_token: 1/1024 ns of arithmetic per computed token.
        weights_ns: reading the weights once.
        memory_units_per_kv_token: 1/1024 ns per KV token read.
        overhead_ns: fixed cost of a step.
    """

    compute_units_per_token: int
    weights_ns: int
    memory_units_per_kv_token: int
    overhead_ns: int

    @classmethod
    def from_rates(  # noqa: PLR0913 - the six numbers of a roofline, by keyword
        cls,
        *,
        flops_per_s: float,
        bytes_per_s: float,
        flops_per_token: float,
        weights_bytes: int,
        kv_bytes_per_token: int,
        overhead_ns: int,
    ) -> RooflineNpu:
        """Build the model from rates; sizes are in bytes, rates per second."""
        return cls(
            compute_units_per_token=round(
                flops_per_token * _NS_PER_S * _UNITS_PER_NS / flops_per_s
            ),
            weights_ns=round(weights_bytes * _NS_PER_S / bytes_per_s),
            memory_units_per_kv_token=round(
                kv_bytes_per_token * _NS_PER_S * _UNITS_PER_NS / bytes_per_s
            ),
            overhead_ns=overhead_ns,
        )

    def step_ns(self, shape: BatchShape) -> int:
        """Return how long the NPU executes one batch."""
        tokens = shape.tokens
        compute = tokens * self.compute_units_per_token
        # As a list: most batches have a handful of rows.
        positions: list[int] = shape.positions.tolist()
        kv_tokens = sum(positions) + tokens
        memory = self.weights_ns * _UNITS_PER_NS + kv_tokens * self.memory_units_per_kv_token
        return max(compute, memory) // _UNITS_PER_NS + self.overhead_ns

    def repeat_ns(self, positions: Ints, steps: int) -> Ints:
        """Return how long each of ``steps`` decode steps in a row takes; see `NpuModel`."""
        rows = len(positions)
        kv_tokens = sum(positions.tolist()) + rows
        overhead = self.overhead_ns * _UNITS_PER_NS
        memory = self.weights_ns * _UNITS_PER_NS + kv_tokens * self.memory_units_per_kv_token
        compute = rows * self.compute_units_per_token
        growth = rows * self.memory_units_per_kv_token
        first = memory + overhead
        if growth:
            units: Ints = arange(first, first + steps * growth, growth)
        else:
            units = quick(np.full(steps, first))
        if compute > memory:  # memory takes longer from step to step
            units = maximum(units, compute + overhead)
        units >>= _UNIT_BITS
        return units


class Polyline:
    """A piecewise linear function through measured points, continued by its last segments.

    Args:
        points: (x, y) with x ascending, at least one; a single point is a constant.

    Raises:
        DeviceModelError: no point, or x does not ascend.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        if not points or any(before[0] >= after[0] for before, after in pairwise(points)):
            raise DeviceModelError(
                f"points {list(points)} do not ascend; sort them by their first value"
            )
        self._x = [x for x, _ in points]
        self._y = [y for _, y in points]

    def __call__(self, value: float) -> float:
        """Return the value of the function."""
        if len(self._x) == 1:
            return self._y[0]
        low = min(max(bisect_right(self._x, value) - 1, 0), len(self._x) - 2)
        share = (value - self._x[low]) / (self._x[low + 1] - self._x[low])
        return self._y[low] + (self._y[low + 1] - self._y[low]) * share
