"""A batch: its rows, fixed when they are selected, and what undoes the selection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepahead.arrays import Ints, Mask
from stepahead.blocks import Receipt
from stepahead.commands import FinishReason
from stepahead.tables import BATCH, BatchState, BatchTrigger
from stepahead.timing import Volume


@dataclass(slots=True, kw_only=True)
class Batch:
    """What the NPU executes once. Row arrays have shape ``(rows,)`` and are never written.

    ``ends`` is the first position after each row. ``fill_rows`` are the rows, numbered as they were
    selected, that wait for a sampled token. ``live`` is replaced, not written, when a request ends;
    ``dead`` remembers why. ``grant`` are the blocks popped for the batch, of the rows
    ``grant_rows``; ``hits`` are the cached prefixes of the rows that were seated by it: nobody has
    the seat of one that has ended before the batch is back; ``loads`` are the layer-wise transfers
    that it runs on. Times are those of the events that selected,
    prepared and dispatched it, ns. ``volume`` is that of the row set when it was new, kept for
    just-in-time selection only; ``fresh``: it is new with this batch.
    ``drafts``: how many positions at the end of each row are drafts, None if none is.
    """

    batch_id: int
    seats: Ints
    handles: Ints
    epochs: Ints
    positions: Ints
    ends: Ints
    samples: Mask
    fill_rows: Ints
    decode: bool
    live: Mask
    grant: Receipt
    grant_rows: Ints
    hits: dict[int, Receipt]
    selected_at: int
    volume: Volume
    fresh: bool
    loads: tuple[int, ...] = ()
    drafts: Ints | None = None
    prepared_at: int = 0
    dispatched_at: int = 0
    state: BatchState = BatchState.QUEUED
    dead: dict[int, FinishReason] = field(default_factory=dict[int, FinishReason])

    def move(self, trigger: BatchTrigger) -> None:
        """Follow the table.

        Raises:
            IllegalTransition: the batch is in no state that accepts the trigger.
        """
        self.state = BATCH.next_state(self.batch_id, self.state, trigger)

    def row_of(self, seat: int) -> int | None:
        """Return the row of the request in ``seat``, or None. A live request has at most one."""
        (rows,) = (self.seats == seat).nonzero()
        return int(rows[0]) if len(rows) else None

    def lose(self, row: int, reason: FinishReason) -> None:
        """The row's request has ended: its output will be ignored."""
        live = self.live.copy()
        live[row] = False
        self.live = live
        self.dead[row] = reason

    def drop_dead(self) -> None:
        """Leave out the rows whose requests have ended, before the dispatch."""
        live = self.live
        self.seats, self.handles, self.epochs = (
            self.seats[live],
            self.handles[live],
            self.epochs[live],
        )
        self.positions, self.ends = self.positions[live], self.ends[live]
        self.samples, self.live = self.samples[live], live[live]
        if self.drafts is not None:
            drafts = self.drafts[live]
            self.drafts = drafts if drafts.any() else None
        kept: list[int] = self.seats.tolist()
        self.hits = {seat: found for seat, found in self.hits.items() if seat in kept}
        self.dead = {}

    def copy(self) -> Batch:
        """Return an independent copy; the arrays are never written."""
        return replace(self, dead=dict(self.dead), hits=dict(self.hits))
