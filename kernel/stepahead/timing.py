"""When to select: as early as lookahead allows, or just in time.

Selecting early hides the preparation, but closes the batch to whoever arrives while the device
still runs. `JustInTime` asks to be woken at the predicted end of the running batch, minus the
predicted preparation, minus a margin. It predicts only from times in events, and it learns only
from the first turn of a row set, so stretched and single-stepped runs learn the same. While it
knows nothing about a shape, or has been late too often, it selects early: plain overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from stepahead.batches import Batch

Shape: TypeAlias = tuple[int, ...]

_MILLION: Final = 1_000_000
_MARGIN_MIN: Final = 5_000
_MARGIN_START: Final = 30_000
_MARGIN_MAX: Final = 500_000
_MARGIN_STEP: Final = 20_000
_SHAPES_MAX: Final = 4096


@dataclass(slots=True)
class Estimate:
    """A running mean and mean deviation of one duration, ns (the estimator of RFC 6298)."""

    mean: int
    deviation: int = 0

    def learn(self, observed: int) -> None:
        """Move towards ``observed``."""
        error = observed - self.mean
        self.mean += error // 8
        self.deviation += (abs(error) - self.deviation) // 4


@dataclass(slots=True)
class JustInTime:
    """What was learnt about durations, ns.

    ``late_share`` (parts per million) is the share of preparations that may end after the device
    does. ``margin`` (parts per million of the device's span) is steered to it: one that is late
    raises it, one in time lowers it by as much less as it is more frequent.
    """

    late_share: int
    margin: int = _MARGIN_START
    spans: dict[Shape, Estimate] = field(default_factory=dict[Shape, Estimate])
    preparations: dict[Shape, Estimate] = field(default_factory=dict[Shape, Estimate])
    last: tuple[Shape, int] = ((), 0)

    def delay(self, batch: Batch) -> int:
        """Return how long after the dispatch of ``batch`` to select the next one; 0: at once."""
        if self.margin >= _MARGIN_MAX:
            return 0
        shape = shape_of(batch)
        span = self.spans.get(shape)
        preparation = self.preparations.get(shape[:1])
        if span is None or preparation is None:
            return 0
        known, observed = self.last
        lasts = observed if known == shape else span.mean - 2 * span.deviation
        takes = preparation.mean + 2 * preparation.deviation
        return max(0, lasts - takes - lasts * self.margin // _MILLION)

    def prepared(self, batch: Batch) -> None:
        """Learn how long the preparation of a new row set took."""
        if batch.fresh:
            _learn(self.preparations, shape_of(batch)[:1], batch.prepared_at - batch.selected_at)

    def executed(self, batch: Batch, ended_at: int, *, late: bool) -> None:
        """Learn how long a new row set kept the device, and whether its successor was late."""
        if not batch.fresh:
            return
        span = ended_at - batch.dispatched_at
        shape = shape_of(batch)
        _learn(self.spans, shape, span)
        self.last = (shape, span)
        relief = _MARGIN_STEP * self.late_share // (_MILLION - self.late_share)
        self.margin += _MARGIN_STEP if late else -relief
        self.margin = min(max(self.margin, _MARGIN_MIN), _MARGIN_MAX)

    def copy(self) -> JustInTime:
        """Return an independent copy."""
        return replace(
            self,
            spans={shape: replace(known) for shape, known in self.spans.items()},
            preparations={shape: replace(known) for shape, known in self.preparations.items()},
        )


def shape_of(batch: Batch) -> Shape:
    """Return what durations are kept by: rows, then tokens and KV tokens, each within 1/8."""
    rows, tokens, kv_tokens = batch.volume
    return rows.bit_length(), rows, _rough(tokens), _rough(kv_tokens)


def _rough(number: int) -> int:
    """Number the eighth of its octave in which ``number`` lies."""
    octave = max(number.bit_length() - 4, 0)
    return (octave << 4) + (number >> octave)


def _learn(estimates: dict[Shape, Estimate], shape: Shape, observed: int) -> None:
    known = estimates.get(shape)
    if known is None:
        if len(estimates) >= _SHAPES_MAX:
            del estimates[next(iter(estimates))]
        estimates[shape] = Estimate(observed)
    else:
        known.learn(observed)
