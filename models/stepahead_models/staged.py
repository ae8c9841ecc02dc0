"""The staged device: a step is a chain of compiled stages, as the RNGD runs Llama.

Per layer one dense stage over all tokens (padded to a compiled token bucket) and attention stages:
decode rows that share a power-of-two KV bucket in one or more compiled batches, whichever is
fastest, and one stage per prefill chunk (padded to a multiple of 128). Then one head stage over the
sampled positions. When every row of a decode step falls into one KV bucket and fits one compiled
batch, the fused pipeline may run instead, which saves time per layer.

A row that verifies drafts counts with every token in the dense stage and with every sampled
position in the head, but as one decode row in attention, which reads the row's KV once for all its
positions; and it never runs fused. An assumption: no measurement of such rows was found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepahead.arrays import Ints
from stepahead_models.npu import BatchShape, DeviceModelError, Polyline

_ROWS_TABULATED: Final = 513


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBucket:
    """Decode attention of one KV bucket, per layer.

    Args:
        size: KV tokens at most, the row's own token included.
        group_ns: one execution of a group.
        sequence_ns: each (padded) sequence of a group.
        group_rows_max: the largest compiled batch; more rows take several executions.
    """

    size: int
    group_ns: int
    sequence_ns: int
    group_rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The numbers of a staged device; times in ns, per layer unless said otherwise.

    Args:
        layers: layers of the model.
        dense_ns: compiled token bucket -> dense stage.
        fused_one_ns: dense part of a layer when one row runs fused.
        fused_saving_ns: what a layer saves when two or more rows run fused.
        decode: KV buckets, ascending.
        decode_batches: compiled batch sizes of decode attention, ascending.
        prefill_ns: padded chunk -> ((attention size, time), ...); the first entry of each is the
            chunk without history (size = chunk).
        chunk_multiple: prefill chunks are padded to a multiple of it.
        extend_size_min: with history the attention size is padded to this times a power of two.
        head_ns: (sampling rows, whole head), not per layer.
    """

    layers: int
    dense_ns: Mapping[int, int]
    fused_one_ns: int
    fused_saving_ns: int
    decode: Sequence[DecodeBucket]
    decode_batches: Sequence[int]
    prefill_ns: Mapping[int, Sequence[tuple[int, int]]]
    chunk_multiple: int
    extend_size_min: int
    head_ns: Sequence[tuple[int, int]]


class StagedNpu:
    """Device time from compiled stages; a step costs the sum of its stages.

    Raises:
        DeviceModelError: a KV length above the largest bucket.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._layers = stages.layers
        self._token_buckets = sorted(stages.dense_ns)
        self._chunk_max = max(stages.prefill_ns)
        self._prefill = {
            chunk: (points[0][1], Polyline(points[1:] or points))
            for chunk, points in stages.prefill_ns.items()
        }
        self._head = Polyline(stages.head_ns)
        self._edges = np.array([bucket.size for bucket in stages.decode], dtype=np.int64)
        self._buckets = len(stages.decode)
        # Attention, dense and head of decode steps, for all layers, by row count.
        rows = range(_ROWS_TABULATED)
        self._attention_rows = [self._groups(bucket) for bucket in stages.decode]
        self._attention = np.array(self._attention_rows, dtype=np.int64)
        tables = list(zip(stages.decode, self._attention_rows, strict=True))
        self._alone = np.array(
            [[self._fused(bucket, n, groups) for n in rows] for bucket, groups in tables],
            dtype=np.int64,
        )
        self._alone_rows: list[list[int]] = self._alone.tolist()
        self._rest = [self._dense(n) * self._layers + self._head_of(n) for n in rows]

    def step_ns(self, shape: BatchShape) -> int:
        """Return how long the NPU executes one batch."""
        rows = len(shape.positions)
        if shape.tokens == rows and rows == shape.sampling_rows and rows < _ROWS_TABULATED:
            return self._decode_step(shape.positions, rows)
        return self._mixed_step(shape)

    def repeat_ns(self, positions: Ints, steps: int) -> Ints:
        """Return how long each of ``steps`` decode steps in a row takes; see `NpuModel`."""
        rows = len(positions)
        if rows == 0 or rows >= _ROWS_TABULATED:
            ones = np.ones(rows, dtype=np.int64)
            singles = [self.step_ns(BatchShape(positions + k, ones, rows)) for k in range(steps)]
            return np.array(singles, dtype=np.int64)
        self._check(int(positions.max()) + steps - 1)
        # Rows below an edge only become fewer; each moves on at a step that is known now.
        ordered = np.sort(positions)
        shift = np.arange(steps, dtype=np.int64)
        below = np.searchsorted(ordered, self._edges[:, None] - shift, side="left")
        counts = np.diff(below, axis=0, prepend=0)
        buckets = np.arange(self._buckets)[:, None]
        alone = counts == rows
        times: Ints = np.where(
            alone, self._alone[buckets, counts], self._attention[buckets, counts]
        ).sum(axis=0)
        times += self._rest[rows]
        return times

    def _decode_step(self, positions: Ints, rows: int) -> int:
        where = np.searchsorted(self._edges, positions, side="right")
        counts: list[int] = np.bincount(where).tolist()
        if len(counts) > self._buckets:
            self._check(int(positions.max()))
        total = self._rest[rows]
        for bucket, count in enumerate(counts):
            if count == rows:
                return total + self._alone_rows[bucket][rows]
            total += self._attention_rows[bucket][count]
        return total

    def _mixed_step(self, shape: BatchShape) -> int:
        counts = shape.token_counts
        decode = counts == 1
        if shape.drafts is not None:
            decode |= shape.drafts > 0
        padded = int(counts[decode].sum())
        lasts = (shape.positions + counts)[decode] - 1
        attention = self._decode_attention(lasts) if padded else 0
        prefill = ~decode
        for position, count in zip(
            shape.positions[prefill].tolist(), counts[prefill].tolist(), strict=True
        ):
            tokens, time = self._prefill_row(position, count)
            padded += tokens
            attention += time
        return (self._dense(padded) + attention) * self._layers + self._head_of(shape.samples)

    def _decode_attention(self, positions: Ints) -> int:
        self._check(int(positions.max()))
        where = np.searchsorted(self._edges, positions, side="right")
        counts: list[int] = np.bincount(where).tolist()
        total = 0
        for table, count in zip(self._attention_rows, counts, strict=False):
            # Rows beyond the table, which no compiled batch holds, go by whole tables.
            whole, rest = divmod(count, _ROWS_TABULATED - 1)
            total += whole * table[-1] + table[rest]
        return total // self._layers

    def _prefill_row(self, position: int, count: int) -> tuple[int, int]:
        """Return the padded tokens of a prefill row and its attention per layer."""
        multiple = self._stages.chunk_multiple
        tokens, attention = 0, 0
        while count > 0:
            chunk = min(count, self._chunk_max)
            padded = -(-chunk // multiple) * multiple
            fresh, extend = self._prefill[padded]
            if position == 0:
                attention += fresh
            else:
                size = self._stages.extend_size_min
                while size < position + chunk:
                    size *= 2
                attention += round(extend(size))
            tokens += padded
            position += chunk
            count -= chunk
        return tokens, attention

    def _dense(self, tokens: int) -> int:
        """Dense time per layer: whole largest buckets, then the smallest that holds the rest."""
        largest = self._token_buckets[-1]
        whole, rest = divmod(tokens, largest)
        time = whole * self._stages.dense_ns[largest]
        if rest:
            bucket = self._token_buckets[bisect_left(self._token_buckets, rest)]
            time += self._stages.dense_ns[bucket]
        return time

    def _groups(self, bucket: DecodeBucket) -> list[int]:
        """Attention of 0, 1, 2 ... rows of one KV bucket over all layers.

        Rows are cut into compiled batches so that the sum is smallest; the last one is padded.
        """
        batches = [n for n in self._stages.decode_batches if n <= bucket.group_rows_max]
        costs = [(n, self._layers * (bucket.group_ns + n * bucket.sequence_ns)) for n in batches]
        best = [0]
        for rows in range(1, _ROWS_TABULATED):
            best.append(min(cost + best[max(rows - n, 0)] for n, cost in costs))
        return best

    def _fused(self, bucket: DecodeBucket, rows: int, groups: Sequence[int]) -> int:
        """Attention when no row is in another bucket: fused in one batch, or in groups."""
        if not 0 < rows <= bucket.group_rows_max:
            return groups[rows]
        batches = self._stages.decode_batches
        padded = batches[bisect_left(batches, rows)]
        one = bucket.group_ns + padded * bucket.sequence_ns - self._saved(rows)
        return min(groups[rows], one * self._layers)

    def _saved(self, rows: int) -> int:
        """What a layer saves when ``rows`` rows run fused."""
        if rows == 1:
            return self._dense(1) - self._stages.fused_one_ns
        return self._stages.fused_saving_ns

    def _head_of(self, sampling_rows: int) -> int:
        return round(self._head(sampling_rows)) if sampling_rows else 0

    def _check(self, position: int) -> None:
        if position >= self._edges[-1]:
            raise DeviceModelError(
                f"a row stands at KV position {position}, but the largest KV bucket of the device "
                f"holds {int(self._edges[-1])} tokens; lower max_model_len to that"
            )
