"""The kernel's whole state, and the few moves that every rule is made of.

Everything that changes while the kernel runs is here: columns and block pool, records of the
requests, the batches that are not retired. Rules live in `admission`, `planning`, `results` and
`stretches`; they change a request's or a batch's state only through the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, Ints, Mask, arange, quick
from stepahead.batches import Batch
from stepahead.blocks import BlockPool, PoolCopy
from stepahead.columns import Columns, ColumnsCopy
from stepahead.commands import Command, FinishReason, FinishRequest
from stepahead.config import KernelConfig, SelectionTiming
from stepahead.requests import NO_SEAT, Intent, Stay, WaitingLine
from stepahead.tables import ILLEGAL, REQUEST, BatchState, RequestState, RequestTrigger
from stepahead.timing import NO_VOLUME, JustInTime, Volume
from stepahead.transfers import Ledger

QUEUED: Final = REQUEST.number[RequestState.QUEUED]
FILLED: Final = REQUEST.number[RequestState.FILLED]
_NO_INTENT: Final[int] = Intent.NONE.value

_END_TRIGGER: Final = {
    FinishReason.STOP: RequestTrigger.FINISH,
    FinishReason.LENGTH: RequestTrigger.FINISH,
    FinishReason.ABORT: RequestTrigger.CANCEL,
    FinishReason.ERROR: RequestTrigger.FAIL,
}


@dataclass(slots=True)
class Counters:
    """What happened so far; read by hosts, never by a rule.

    ``hit_tokens`` were not computed, wherever they came from; of them ``host_tokens`` and
    ``remote_tokens`` were loaded. ``wasted_rows_*``: rows dispatched after their request had ended
    (by stop token, by cancel, by failure); ``discarded_rows``: rows on the NPU at that time.
    ``drafted_tokens`` came back in live rows, ``accepted_tokens`` of them were right.
    """

    admitted: int = 0
    refused: int = 0
    ended: int = 0
    ignored_cancels: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    wasted_rows_stop: int = 0
    wasted_rows_abort: int = 0
    wasted_rows_error: int = 0
    discarded_rows: int = 0
    refused_batches: int = 0
    host_tokens: int = 0
    remote_tokens: int = 0
    stored_blocks: int = 0
    refused_stores: int = 0
    failed_transfers: int = 0
    expired_loads: int = 0
    ignored_transfers: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def values(self) -> tuple[int, ...]:
        """Return the counts in the order of declaration."""
        return tuple(getattr(self, entry.name) for entry in fields(self))


@dataclass(slots=True)
class Growth:
    """The blocks that the coming ``turns`` selections of a row set take.

    ``block_turns``, ``rows`` and ``slots`` have shape ``(blocks,)``, in order of turn and row:
    which of the selections takes it, for which row, and its place in that row's table.
    """

    turns: int
    block_turns: Ints
    rows: Ints
    slots: Ints

    def until(self, turns: int) -> Growth:
        """Return what fewer selections take."""
        if turns == self.turns:
            return self
        count = int(self.block_turns.searchsorted(turns))
        return Growth(turns, self.block_turns[:count], self.rows[:count], self.slots[:count])


@dataclass(slots=True)
class Steady:
    """The row set of the next selections, and how many of them there are while nothing happens.

    ``counts`` are the tokens that each row computes every time, ``samples`` tells which rows return
    one, and ``fill_rows`` which also read one: all in a ``decode`` row set; or, where one row is
    the middle of a prompt, all others.
    ``turns`` counts the selections for which every row still has room. ``growth`` was computed when
    that count was ``growth_at``: each further selection changes both. ``begun``: a batch of it was
    selected. ``thinned``: somebody has given up a seat since, so that the next row set is a new
    one; it may be what is left of this.
    """

    seats: Ints
    handles: Ints
    epochs: Ints
    samples: Mask
    fill_rows: Ints
    counts: Ints
    decode: bool
    volume: Volume = field(default_factory=lambda: NO_VOLUME)
    turns: int = 0
    growth: Growth | None = None
    growth_at: int = -1
    begun: bool = False
    thinned: bool = False


@dataclass(slots=True, kw_only=True)
class Wake:
    """The wake-up that was asked for last, at time ``at`` (ns).

    ``selects``: the next selection waits for it; if not, it is the deadline of a load.
    """

    wake_id: int
    at: int
    selects: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A copy of a `State`; opaque to everybody but `State.restore`."""

    pool: PoolCopy
    pages: PoolCopy
    ledger: Ledger
    columns: ColumnsCopy
    stays: tuple[Stay, ...]
    batches: tuple[Batch, ...]
    filled: int
    order: Ints
    fenced_seats: tuple[tuple[int, int], ...]
    steady: Steady | None
    counters: tuple[int, ...]
    marks: tuple[int, int, int, int]
    flags: tuple[bool, bool, bool, bool]
    timing: JustInTime | None
    wake: Wake | None


class State:
    """Columns, pool, records and batches of one kernel."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self.block_size: Ints = np.array(config.block_size)
        # Rows of lookahead + 1 outstanding batches may belong to requests that select no more
        # rows (draining, or scheduled to their end); they keep their seats beside the running ones.
        seats = config.max_concurrency * (config.lookahead + 2)
        longest = -(-(config.max_model_len - 1) // config.block_size)
        self.columns = Columns(seats, min(longest, config.num_blocks))
        self.pool = BlockPool(config.num_blocks)
        self.pages = BlockPool(config.host_pages)
        self.ledger = Ledger()
        self.tiers = config.host_pages > 0 or config.remote
        #: Commands of this step that concern transfers; empty between steps.
        self.outbox: list[Command] = []
        self.waiting = WaitingLine()
        self.live: dict[int, Stay] = {}
        self.newest: dict[str, int] = {}
        self.seated: list[Stay | None] = [None] * seats
        self.order: Ints = EMPTY
        self.outstanding: list[Batch] = []
        self.filled: list[Batch] = []
        self.fenced_seats: list[tuple[int, int]] = []
        self.steady: Steady | None = None
        self.stop_sets = 0
        self.counters = Counters()
        just_in_time = config.timing is SelectionTiming.JUST_IN_TIME
        self.timing = (
            JustInTime(config.late_share_ppm, config.late_joiners) if just_in_time else None
        )
        self.wake: Wake | None = None
        self.joinable = False
        #: The live rows of a batch that has lost none; shape ``(rows per batch at most,)``.
        self.all_live: Mask = quick(np.ones(config.max_concurrency, dtype=bool))
        self.all_live.flags.writeable = False
        #: The numbers of as many rows, and a token for each.
        self.all_rows: Ints = arange(config.max_concurrency)
        self.all_rows.flags.writeable = False
        self.one_each: Ints = quick(np.ones(config.max_concurrency, dtype=np.int64))
        self.one_each.flags.writeable = False
        self.now = 0
        self.next_batch = 1
        self.next_handle = 1
        self.paused = False
        self.pause_due = False
        self.device_failed = False

    # -- states -------------------------------------------------------------------------------

    def move(self, seats: Ints, trigger: RequestTrigger) -> None:
        """Give each request in ``seats`` the trigger, all or none.

        Raises:
            IllegalTransition: some request is in no state that accepts it.
        """
        column = REQUEST.edges[trigger]
        before = self.columns.state[seats]
        after = column[before]
        if len(after) and after.item(row := after.argmin()) == ILLEGAL:
            handle = self.columns.handle.item(seats.item(row))
            raise REQUEST.refusal(handle, REQUEST.states[before.item(row)], trigger)
        self.columns.state[seats] = after

    def move_one(self, seat: int, trigger: RequestTrigger) -> RequestState:
        """Give the request in ``seat`` the trigger; return its new state.

        Raises:
            IllegalTransition: it is in no state that accepts it.
        """
        column = self.columns.state
        before = REQUEST.states[column.item(seat)]
        after = REQUEST.next_state(self.columns.handle.item(seat), before, trigger)
        column[seat] = REQUEST.number[after]
        return after

    def stays(self, seats: Ints) -> list[Stay]:
        """Return the live requests in ``seats``, in that order."""
        numbers: list[int] = seats.tolist()
        return [stay for seat in numbers if (stay := self.seated[seat]) is not None]

    # -- rows in flight -----------------------------------------------------------------------

    def newest_row(self, seat: int) -> int:
        """Return the newest outstanding batch with a row of this seat, or 0: the seat's fence."""
        if self._rests(seat):
            return 0
        for batch in reversed(self.outstanding):
            if batch.row_of(seat) is not None:
                return batch.batch_id
        return 0

    def lose_rows(self, seat: int, reason: FinishReason) -> int:
        """The rows of this seat are dead from now on; return its fence, as `newest_row`."""
        fence = 0
        if self._rests(seat):
            return fence
        for batch in self.outstanding:
            row = batch.row_of(seat)
            if row is not None:
                batch.lose(row, reason)
                self.counters.discarded_rows += batch.state is BatchState.DISPATCHED
                fence = batch.batch_id
        return fence

    def _rests(self, seat: int) -> bool:
        """Tell whether every row of this seat is back: each adds to both of these counts."""
        return self.columns.scheduled.item(seat) == self.columns.settled.item(seat)

    def pass_fences(self) -> None:
        """Free what waited for batches that are back."""
        oldest = self.outstanding[0].batch_id if self.outstanding else self.next_batch
        if (self.pool.pending or self.fenced_seats) and len(self.waiting):
            # What comes free may admit the first in line; the rows of last time it cannot change.
            self.steady = None
        self.pool.pass_fence(oldest - 1)
        if self.fenced_seats:
            for fence, seat in self.fenced_seats:
                if fence < oldest:
                    self.columns.free_seats.append(seat)
            self.fenced_seats = [entry for entry in self.fenced_seats if entry[0] >= oldest]

    def drop_fence(self, fence: int) -> None:
        """Rows of batch ``fence`` were dropped before the dispatch: nothing touches their seats."""
        self.pool.drop_fence(fence)
        self.columns.free_seats.extend(seat for at, seat in self.fenced_seats if at == fence)
        self.fenced_seats = [entry for entry in self.fenced_seats if entry[0] != fence]
        self.steady = None

    # -- seats --------------------------------------------------------------------------------

    def seat(self, stay: Stay, prefix: Ints) -> int:
        """Give a waiting request a seat, its columns, and the blocks that it begins with."""
        columns = self.columns
        seat = columns.free_seats.pop()
        columns.widen(stay.final - stay.prompt)
        blocks = len(prefix)
        tokens = blocks * self.config.block_size
        columns.arena[:, seat] = (
            stay.known,
            tokens,
            tokens,
            stay.prompt,
            stay.final,
            stay.floor,
            blocks,
            blocks,
            stay.eos,
            stay.sampled[-1] if len(stay.sampled) else 0,
            stay.handle,
            stay.epoch,
            stay.rank,
            QUEUED,
            _NO_INTENT,
        )
        if blocks:
            columns.table[seat, :blocks] = prefix
        if len(stay.sampled):
            columns.tokens[seat, : len(stay.sampled)] = stay.sampled
        stay.seat = seat
        self.seated[seat] = stay
        return seat

    def vacate(self, stay: Stay, fence: int) -> None:
        """Release seat and blocks, behind the fence of its newest row; twice does nothing."""
        seat = stay.seat
        if seat == NO_SEAT:
            return
        self.pool.release(self.columns.held(seat), fence)
        self.columns.blocks[seat] = 0
        self.columns.last_token[seat] = 0  # what is filled into a row of it that is dead
        self.order = self.order[self.order != seat]
        self.seated[seat] = None
        stay.seat = NO_SEAT
        if self.steady is not None:
            self.steady.turns, self.steady.thinned = 0, True
        if fence:
            self.fenced_seats.append((fence, seat))
        else:
            self.columns.free_seats.append(seat)

    def preempt(self, stay: Stay) -> None:
        """Send a request without outstanding rows back to the waiting line, at its old rank."""
        self.move_one(stay.seat, RequestTrigger.PREEMPT)
        stay.settled_before = self.columns.settled.item(stay.seat)
        self.requeue(stay, 0)
        self.counters.preemptions += 1

    def requeue(self, stay: Stay, fence: int) -> None:
        """A request that is QUEUED again begins a new epoch in the waiting line."""
        stay.sampled = self.columns.sampled(stay.seat)
        stay.epoch += 1
        self.vacate(stay, fence)
        self.waiting.add(stay)

    # -- ends ---------------------------------------------------------------------------------

    def end(self, stay: Stay, reason: FinishReason) -> FinishRequest:
        """End a request for its client: nothing of it counts from now on but rows in flight."""
        seat = stay.seat
        trigger = _END_TRIGGER[reason]
        if seat == NO_SEAT:
            stay.state = REQUEST.next_state(stay.handle, stay.state, trigger)
            outputs = len(stay.sampled)
            self.waiting.remove(stay)
            self.steady = None
        else:
            stay.state = self.move_one(seat, trigger)
            outputs = self.columns.known.item(seat) - stay.prompt
            self.vacate(stay, self.lose_rows(seat, reason))
        self.ledger.loading.pop(stay.handle, None)
        del self.live[stay.handle]
        self.stop_sets -= bool(stay.stops)
        if self.newest.get(stay.request_id) == stay.handle:
            del self.newest[stay.request_id]
        self.counters.ended += 1
        return FinishRequest(
            request_id=stay.request_id, handle=stay.handle, reason=reason, output_tokens=outputs
        )

    # -- copies -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a copy of everything, for `restore`."""
        return Snapshot(
            pool=self.pool.snapshot(),
            pages=self.pages.snapshot(),
            ledger=self.ledger.copy(),
            columns=self.columns.snapshot(),
            stays=tuple(stay.copy() for stay in self.live.values()),
            batches=tuple(batch.copy() for batch in [*self.filled, *self.outstanding]),
            filled=len(self.filled),
            order=self.order,
            fenced_seats=tuple(self.fenced_seats),
            steady=None if self.steady is None else replace(self.steady),
            counters=self.counters.values(),
            marks=(self.stop_sets, self.now, self.next_batch, self.next_handle),
            flags=(self.paused, self.pause_due, self.device_failed, self.joinable),
            timing=None if self.timing is None else self.timing.copy(),
            wake=self.wake,
        )

    def restore(self, saved: Snapshot) -> None:
        """Return to a `snapshot` of a kernel with the same configuration."""
        self.pool.restore(saved.pool)
        self.pages.restore(saved.pages)
        self.ledger = saved.ledger.copy()
        self.columns.restore(saved.columns)
        stays = [stay.copy() for stay in saved.stays]
        self.live = {stay.handle: stay for stay in stays}
        self.newest = {stay.request_id: stay.handle for stay in stays}
        self.waiting = WaitingLine()
        self.seated = [None] * len(self.seated)
        for stay in stays:
            if stay.seat == NO_SEAT:
                self.waiting.add(stay)
            else:
                self.seated[stay.seat] = stay
        batches = [batch.copy() for batch in saved.batches]
        self.filled, self.outstanding = batches[: saved.filled], batches[saved.filled :]
        self.order = saved.order
        self.fenced_seats = list(saved.fenced_seats)
        self.steady = None if saved.steady is None else replace(saved.steady)
        self.counters = Counters(*saved.counters)
        self.stop_sets, self.now, self.next_batch, self.next_handle = saved.marks
        self.paused, self.pause_due, self.device_failed, self.joinable = saved.flags
        self.timing = None if saved.timing is None else saved.timing.copy()
        self.wake = saved.wake
