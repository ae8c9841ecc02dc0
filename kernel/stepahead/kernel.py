"""The kernel: one single-threaded ``step(event) -> commands``, without clock, thread or I/O."""

from __future__ import annotations

from typing import assert_never

from stepahead.admission import arrive
from stepahead.batches import Batch
from stepahead.blocks import BlockPool
from stepahead.commands import (
    AbandonBatch,
    Command,
    FinishReason,
    ReportCacheReset,
    WakeAt,
)
from stepahead.config import KernelConfig
from stepahead.drafts import meant
from stepahead.errors import HostContractError
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    CacheTarget,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    TransferDone,
    TransferFailed,
    Woke,
)
from stepahead.host_cache import complete, expire, fail, next_deadline
from stepahead.planning import may_select, select
from stepahead.reservation import undo
from stepahead.results import check_tokens, dispatch_next, fill, in_flight, report_pause
from stepahead.state import Counters, Snapshot, State, Wake
from stepahead.stretches import Repeat, cross, repeat
from stepahead.tables import BatchState, BatchTrigger
from stepahead.transfers import Transfer
from stepahead.views import (
    Audit,
    BatchView,
    BlockView,
    PoolView,
    Possible,
    RequestView,
    Standing,
    audit,
    digest,
    enabled,
    standings,
    view_batches,
    view_blocks,
    view_pools,
    view_requests,
)


class Kernel:
    """Selects requests, allocates KV blocks, and keeps one batch ahead of the device.

    Same state and same event give the same commands, on every machine and Python version. An event
    that contradicts what the host reported before raises, and changes nothing.
    """

    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self._state = State(config)

    def step(self, event: Event) -> tuple[Command, ...]:
        """Take one fact; return what the host must do, in order.

        Raises:
            HostContractError: the event cannot have happened; the kernel is unchanged.
        """
        state = self._state
        if event.at < state.now:
            raise HostContractError(
                f"{type(event).__name__} is reported at {event.at}, before the last event at "
                f"{state.now}; report events in order of time"
            )
        before = state.now
        state.now = event.at
        try:
            answer = _answer(state, event)
        except HostContractError:
            state.now = before
            raise
        if state.outbox:
            # What a batch is to run on is asked for before it; stores do not delay a dispatch.
            first = isinstance(event, HostReady | Woke)
            answer = [*state.outbox, *answer] if first else [*answer, *state.outbox]
            state.outbox.clear()
        # Last and after every event: whatever it was that left nothing outstanding ends the wait.
        if state.pause_due:
            answer.extend(report_pause(state))
        return tuple(answer)

    # -- questions ----------------------------------------------------------------------------

    def repeat(self, limit: int = 1 << 30) -> Repeat | None:
        """Return how the steady state goes on for up to ``limit`` turns, or None; see `Repeat`."""
        return repeat(self._state, limit)

    def awaits_host(self) -> bool:
        """Tell whether `HostReady` would change anything; where not, a host may leave it out."""
        state = self._state
        busy = state.filled or state.ledger.open
        return bool(busy) or may_select(state) or _may_join(state)

    def requests(self) -> tuple[RequestView, ...]:
        """Return the live requests, in order of admission."""
        return view_requests(self._state)

    def batches(self) -> tuple[BatchView, ...]:
        """Return the batches that are not retired, oldest first."""
        return view_batches(self._state)

    def blocks(self) -> tuple[BlockView, ...]:
        """Return the KV blocks by number."""
        return view_blocks(self._state)

    def standings(self) -> list[Standing]:
        """Return the live requests in numbers, in order of admission."""
        return standings(self._state)

    def pools(self) -> tuple[PoolView, PoolView | None]:
        """Return the KV blocks and, where there are any, the host pages, as columns."""
        return view_pools(self._state)

    def audit(self) -> Audit:
        """Recount blocks and seats; `Audit.problems` is empty in a sound kernel."""
        return audit(self._state)

    def enabled(self) -> tuple[Possible, ...]:
        """Return the events that may come next."""
        return enabled(self._state)

    def digest(self) -> str:
        """Return a SHA-256 over everything that can influence a later command, as hex."""
        return digest(self._state)

    def snapshot(self) -> Snapshot:
        """Return a copy of the whole state."""
        return self._state.snapshot()

    def restore(self, saved: Snapshot) -> None:
        """Return to a snapshot taken from a kernel with the same configuration."""
        self._state.restore(saved)

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._state.counters

    @property
    def pool(self) -> BlockPool:
        """The block pool, to read."""
        return self._state.pool

    @property
    def pages(self) -> BlockPool:
        """The host pages, to read."""
        return self._state.pages

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The transfers that are not reported yet, oldest first."""
        return tuple(self._state.ledger.open.values())

    @property
    def late_loads(self) -> frozenset[int]:
        """The loads of `transfers` whose deadline has passed: what they bring is ignored."""
        return frozenset(self._state.ledger.late)

    @property
    def margin_ppm(self) -> int | None:
        """What just-in-time selection keeps in hand now, in millionths of the device step.

        None under another timing.
        """
        return None if self._state.timing is None else self._state.timing.margin

    @property
    def now(self) -> int:
        """Time of the last event, ns."""
        return self._state.now

    @property
    def waiting(self) -> int:
        """How many requests are not selected yet."""
        return len(self._state.waiting)

    @property
    def running(self) -> int:
        """How many live requests have a seat."""
        return len(self._state.order)

    def idle(self) -> bool:
        """Tell whether no request is live, and no batch or transfer outstanding."""
        state = self._state
        return not state.live and not state.outstanding and not state.ledger.open


def _answer(state: State, event: Event) -> list[Command]:  # noqa: C901, PLR0911, PLR0912 - one case per event
    match event:
        case HostReady():
            return _host_ready(state)
        case BatchPrepared():
            return _prepared(state, event)
        case BatchExecuted():
            return _executed(state, event)
        case Woke():
            return _woke(state, event)
        case RequestArrived():
            return [arrive(state, event)]
        case RequestCancelled():
            return _cancelled(state, event)
        case BatchRefused():
            undo(state, _building(state, event.batch_id), BatchTrigger.REFUSE)
            state.counters.refused_batches += 1
            return []
        case BatchFailed():
            return _failed(state, event)
        case TransferDone():
            complete(state, event)
            return dispatch_next(state)
        case TransferFailed():
            fail(state, event)
            return dispatch_next(state)
        case PauseRequested():
            state.paused = state.pause_due = True
            state.steady = None
            return []
        case ResumeRequested():
            state.paused = state.pause_due = False
            return []
        case CacheResetRequested():
            return [ReportCacheReset(done=_reset(state, event.target))]
        case _:
            assert_never(event)


def _reset(state: State, target: CacheTarget) -> bool:
    """Forget the content of the tiers that are meant, all or none of it."""
    if len(state.order) or state.outstanding or state.ledger.open:
        return False
    tiers: list[BlockPool] = []
    if target is not CacheTarget.HOST:
        tiers.append(state.pool)
    if target is not CacheTarget.NPU:
        tiers.append(state.pages)
    quiet = all(tier.quiet() for tier in tiers)
    for tier in tiers if quiet else ():
        tier.forget_all()
    return quiet


def _prepared(state: State, event: BatchPrepared) -> list[Command]:
    batch = _building(state, event.batch_id)
    batch.move(BatchTrigger.PREPARE)
    batch.prepared_at = event.at
    if state.timing is not None and batch.fresh:
        state.timing.built(batch.volume, event.at - batch.selected_at)
    return dispatch_next(state)


def _host_ready(state: State) -> list[Command]:
    if state.outstanding and state.outstanding[-1].state is BatchState.QUEUED:
        raise HostContractError(
            f"HostReady is reported while batch {state.outstanding[-1].batch_id} is being built; "
            "report BatchPrepared or BatchRefused first"
        )
    for batch in state.filled:
        batch.move(BatchTrigger.RETIRE)
    state.filled = []
    if state.ledger.open:
        expire(state)
    commands = _select_or_wait(state) if may_select(state) else _let_join(state)
    if state.ledger.open and not commands and state.wake is None:
        due = next_deadline(state)
        if due is not None:
            commands.append(_wake_at(state, due, selects=False))
    return commands


def _wake_at(state: State, at: int, *, selects: bool) -> WakeAt:
    state.wake = Wake(wake_id=state.next_batch, at=at, selects=selects)
    return WakeAt(wake_id=state.next_batch, at=at)


def _select_or_wait(state: State) -> list[Command]:
    """Select now, or ask to be woken when it is time."""
    timing, running = state.timing, state.outstanding
    if timing is not None and running and running[0].state is BatchState.DISPATCHED:
        batch = running[0]
        due = batch.dispatched_at + timing.delay(batch.volume, fresh=batch.fresh)
        if due > state.now:
            before = state.wake
            command = _wake_at(state, due, selects=True)
            if state.wake == before:
                return []
            timing.waits(batch.batch_id, fresh=batch.fresh)
            return [command]
    return _selected(state)


def _selected(state: State) -> list[Command]:
    command = select(state)
    return [] if command is None else [command]


def _let_join(state: State) -> list[Command]:
    """Select the waiting batch again for a new arrival, if preparing it again is still hidden."""
    timing, outstanding = state.timing, state.outstanding
    if timing is None or not _may_join(state):
        return []
    running = outstanding[0]
    state.joinable = False
    if running.state is not BatchState.DISPATCHED or state.paused:
        return []
    latest = timing.latest(running.volume, fresh=running.fresh)
    if state.now > running.dispatched_at + latest:
        return []
    timing.waits(running.batch_id, fresh=running.fresh)
    abandoned = outstanding[-1]
    undo(state, abandoned, BatchTrigger.ABANDON)
    return [AbandonBatch(batch_id=abandoned.batch_id), *_selected(state)]


def _may_join(state: State) -> bool:
    """Tell whether somebody arrived who could join a batch that waits behind another one."""
    if not (state.config.late_joiners and state.joinable):
        return False
    outstanding = state.outstanding
    return len(outstanding) > 1 and outstanding[-1].state is BatchState.PREPARED


def _woke(state: State, event: Woke) -> list[Command]:
    """Select if this is the wake that was asked for last; anything else is a no-op."""
    wake = state.wake
    if wake is None or wake.wake_id != event.wake_id or event.at < wake.at:
        return []
    state.wake = None
    expire(state)
    if not may_select(state):
        return []
    return _selected(state) if wake.selects else _select_or_wait(state)


def _building(state: State, batch_id: int) -> Batch:
    batch = state.outstanding[-1] if state.outstanding else None
    if batch is None or batch.batch_id != batch_id or batch.state is not BatchState.QUEUED:
        raise HostContractError(
            f"batch {batch_id} is reported built or refused, but it is not being built"
        )
    return batch


def _executed(state: State, event: BatchExecuted) -> list[Command]:
    batch = in_flight(state, event.batch_id)
    tokens, accepted = event.tokens, event.accepted
    if batch.drafts is not None or accepted is not None:
        tokens = meant(batch, tokens, accepted)
    check_tokens(batch, tokens)
    if batch.drafts is None:
        accepted = None  # none of none: nothing to roll back, behind which others may stand
    if event.ended_at >= 0 and not batch.dispatched_at <= event.ended_at <= event.at:
        raise HostContractError(
            f"batch {batch.batch_id} is reported at {event.at} to have ended at {event.ended_at}, "
            f"dispatched at {batch.dispatched_at}; report an end between the two, or -1"
        )
    for load in batch.loads:
        if state.ledger.waited_for(load):
            raise HostContractError(
                f"batch {batch.batch_id} came back before transfer {load} that it ran on; report "
                "TransferDone or TransferFailed first"
            )
    steps, turns = event.tokens, len(event.tokens) - 1 if accepted is None else 0
    if turns or event.turn_times is not None:
        steps = cross(state, batch, event, turns)
    if state.timing is not None:
        ended_at = event.at if event.ended_at < 0 else event.ended_at
        state.timing.executed(
            batch.batch_id,
            batch.volume,
            ended_at - batch.dispatched_at,
            fresh=batch.fresh,
            late=_successor_is_late(state, ended_at),
        )
    return fill(state, batch, steps, accepted)


def _successor_is_late(state: State, ended_at: int) -> bool:
    """Tell whether the device was done before the batch behind the running one was prepared."""
    if len(state.outstanding) == 1:
        return state.wake is not None and state.wake.selects
    successor = state.outstanding[1]
    return successor.state is BatchState.QUEUED or successor.prepared_at > ended_at


def _cancelled(state: State, event: RequestCancelled) -> list[Command]:
    handle = state.newest.get(event.request_id) if event.handle is None else event.handle
    stay = None if handle is None else state.live.get(handle)
    if stay is None or stay.request_id != event.request_id:
        state.counters.ignored_cancels += 1
        return []
    return [state.end(stay, FinishReason.ABORT)]


def _failed(state: State, event: BatchFailed) -> list[Command]:
    failed = in_flight(state, event.batch_id)
    if event.scope is FailureScope.BATCH:
        failed.move(BatchTrigger.FAIL)
        state.outstanding.pop(0)
        doomed = state.stays(failed.seats[failed.live])
    else:
        for batch in state.outstanding:
            batch.move(BatchTrigger.FAIL)
        state.outstanding = []
        state.device_failed = True
        doomed = [*state.stays(state.order), *state.waiting]
    finished = [state.end(stay, FinishReason.ERROR) for stay in doomed]
    state.pass_fences()
    return [*dispatch_next(state), *finished]
