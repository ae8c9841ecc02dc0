"""What happens when a batch comes back, and the dispatch of the next one.

At Fill the order is: commit keys, Finish, release. The answer's order is: `DispatchBatch` of the
next batch if it is prepared, `EmitTokens`, `FinishRequest`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import ONE, Ints, Mask, arange, count_nonzero
from stepahead.batches import Batch
from stepahead.commands import (
    AbandonBatch,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishReason,
    FinishRequest,
    ReportPaused,
)
from stepahead.drafts import take_in
from stepahead.errors import HostContractError, KernelBug
from stepahead.host_cache import promote
from stepahead.prefixes import commit, count_prefixes
from stepahead.state import FILLED, State
from stepahead.tables import REQUEST, BatchState, BatchTrigger, RequestTrigger

#: By number of the request's state.
_IS_FILLED: Final[Mask] = arange(len(REQUEST.states)) == FILLED


def dispatch_next(state: State) -> list[Command]:
    """Dispatch the oldest outstanding batch if it is prepared.

    That is the whole guard: batches are outstanding oldest first, so no batch is DISPATCHED and
    every older one is back; and since all older ones are back, the last token of every live row is
    known. `audit` checks both from outside. A batch whose new blocks are still being written back
    to the host waits for that.
    """
    commands: list[Command] = []
    while state.outstanding and state.outstanding[0].state is BatchState.PREPARED:
        batch = state.outstanding[0]
        if state.ledger.open and state.ledger.guards(batch.grant.blocks):
            return commands
        if not (state.config.prune and batch.dead):
            return [*commands, _dispatch(state, batch, pruned=False)]
        if batch.live.any():
            return [*commands, _dispatch(state, batch, pruned=True)]
        batch.move(BatchTrigger.ABANDON)
        state.outstanding.pop(0)
        state.pass_fences()
        commands.append(AbandonBatch(batch_id=batch.batch_id))
    return commands


def _dispatch(state: State, batch: Batch, *, pruned: bool) -> DispatchBatch:
    columns = state.columns
    batch.move(BatchTrigger.DISPATCH)
    batch.dispatched_at = state.now
    seats, live = batch.seats, batch.live
    state.move(seats[live] if batch.dead else seats, RequestTrigger.DISPATCH)
    rows = batch.fill_rows
    if pruned:
        rows = rows[live[rows]]
    tokens = columns.last_token[seats if len(rows) == len(seats) else seats[rows]]
    if pruned:
        batch.drop_dead()
        state.drop_fence(batch.batch_id)
    elif batch.dead:
        _count_wasted(state, batch)
    return DispatchBatch(
        batch_id=batch.batch_id, fill_rows=rows, fill_tokens=tokens, live=live, pruned=pruned
    )


def _count_wasted(state: State, batch: Batch) -> None:
    counters = state.counters
    for reason in batch.dead.values():
        match reason:
            case FinishReason.STOP | FinishReason.LENGTH:
                counters.wasted_rows_stop += 1
            case FinishReason.ABORT:
                counters.wasted_rows_abort += 1
            case FinishReason.ERROR:
                counters.wasted_rows_error += 1


def in_flight(state: State, batch_id: int) -> Batch:
    """Return the dispatched batch.

    Raises:
        HostContractError: another batch, or none, is dispatched.
    """
    batch = state.outstanding[0] if state.outstanding else None
    if batch is None or batch.state is not BatchState.DISPATCHED:
        raise HostContractError(f"batch {batch_id} is reported back, but no batch is dispatched")
    if batch.batch_id != batch_id:
        raise HostContractError(
            f"batch {batch_id} is reported back, but batch {batch.batch_id} is dispatched"
        )
    return batch


def check_tokens(batch: Batch, tokens: Ints) -> None:
    """Check shape and values of what the device returned.

    Raises:
        HostContractError: not one int64 per step and sampling row, or a live row's is negative.
    """
    if tokens.dtype != np.int64:
        raise HostContractError(
            f"batch {batch.batch_id} returned tokens of type {tokens.dtype}; give int64"
        )
    sampling = len(batch.seats) if batch.decode else count_nonzero(batch.samples)
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] != sampling:  # noqa: PLR2004
        raise HostContractError(
            f"batch {batch.batch_id} returned tokens of shape {tokens.shape}; expected "
            f"(steps, {sampling}), one token per step and sampling row"
        )
    if sampling and tokens.item(tokens.argmin()) < 0:
        live = batch.live[batch.samples]
        if tokens[:, live].size and tokens[:, live].min() < 0:
            raise HostContractError(
                f"batch {batch.batch_id} returned a negative token in a live row; a placeholder "
                "must never reach the kernel"
            )


def fill(state: State, batch: Batch, steps: Ints, accepted: Ints | None = None) -> list[Command]:
    """Apply ``steps`` and answer them; for those before the last one, `leap` made the turns.

    With ``accepted``, of a batch with drafts, they are one step, and `drafts.take_in` applies them.
    """
    columns = state.columns
    batch.move(BatchTrigger.FILL)
    state.outstanding.pop(0)
    state.filled.append(batch)
    seats, ends = batch.seats, batch.ends
    if batch.dead:
        (alive,) = batch.live[batch.samples].nonzero()
        # Several times as fast as by a mask.
        steps, accepted = steps.take(alive, 1), None if accepted is None else accepted[alive]
        seats, ends = seats[batch.live], ends[batch.live]
    if batch.hits:
        count_prefixes(state, batch)
    columns.settled[seats] = ends
    turns = 0 if accepted is not None else len(steps) - 1
    sampled, handles, known = _own_rows(state, batch, turns)
    offsets, counts, tokens = known - columns.prompt[sampled], None, steps[-1]
    if accepted is not None:
        counts = take_in(state, batch, sampled, steps, accepted)
        tokens, known = steps[counts - 1, arange(len(counts))], known + counts
    elif turns:
        columns.tokens[sampled, offsets + arange(len(steps))[:, None]] = steps
        columns.known[sampled] = known = known + len(steps)
    else:
        columns.tokens[sampled, offsets] = tokens
        columns.known[sampled] = known = known + ONE
    columns.last_token[sampled] = tokens
    state.move(seats, RequestTrigger.FILL)
    if not batch.decode:
        # Of dead rows as well: nobody has their seats until this batch is back.
        commit(state, batch.seats[batch.positions < columns.prompt[batch.seats]])
    if batch.hits:
        promote(state, batch)
    finished = _finish(state, sampled, known, tokens)
    _move_on(state, batch, seats)
    state.pass_fences()
    commands = dispatch_next(state)
    if len(sampled):
        commands.append(
            EmitTokens(
                batch_id=batch.batch_id,
                handles=handles,
                offsets=offsets,
                tokens=steps,
                counts=counts,
            )
        )
    commands.extend(finished)
    return commands


def _own_rows(state: State, batch: Batch, turns: int) -> tuple[Ints, Ints, Ints]:
    """Return seat, handle and number of tokens known ``turns`` ago of each live row that sampled.

    A result belongs to (seat, incarnation, epoch, position); anything else is our bug.
    """
    columns = state.columns
    seats, handles, epochs, ends = batch.seats, batch.handles, batch.epochs, batch.ends
    if batch.drafts is not None:
        ends = ends - batch.drafts
    if turns:
        ends = ends - turns
    if batch.dead or not batch.decode:
        rows = (batch.samples & batch.live if batch.dead else batch.samples).nonzero()[0]
        seats, handles, epochs, ends = seats[rows], handles[rows], epochs[rows], ends[rows]
    known = columns.known[seats]
    # As bytes: short arrays compare several times as fast.
    if (
        columns.handle[seats].tobytes() != handles.tobytes()
        or columns.epoch[seats].tobytes() != epochs.tobytes()
        or known.tobytes() != ends.tobytes()
    ):
        raise KernelBug(f"batch {batch.batch_id} came back for rows that are not its own")
    return seats, handles, known


def _finish(state: State, sampled: Ints, known: Ints, tokens: Ints) -> list[FinishRequest]:
    """End the requests whose newest token ends them."""
    columns = state.columns
    ending = tokens == columns.eos[sampled]
    ending |= known >= columns.final[sampled]
    finished: list[FinishRequest] = []
    rows = arange(len(sampled)) if state.stop_sets else ending.nonzero()[0]
    if not len(rows):
        return finished
    for row, stay in zip(rows.tolist(), state.stays(sampled[rows]), strict=True):
        token, length = tokens.item(row), known.item(row)
        stops = token == stay.eos or token in stay.stops
        if stops and length >= stay.floor:
            finished.append(state.end(stay, FinishReason.STOP))
        elif length >= stay.final:
            finished.append(state.end(stay, FinishReason.LENGTH))
    return finished


def _move_on(state: State, batch: Batch, seats: Ints) -> None:
    """Requests with a younger row go on to it; marked ones without are preempted."""
    columns = state.columns
    younger = [
        other.seats[other.live] if other.dead else other.seats for other in state.outstanding
    ]
    if len(younger) == 1 and younger[0] is batch.seats:
        state.move(seats, RequestTrigger.SELECT)
        return
    for others in younger:
        # Whoever is FILLED and has a row outstanding has just come back.
        going = others[_IS_FILLED[columns.state[others]]]
        if len(going):
            state.move(going, RequestTrigger.SELECT)
    (marked,) = columns.intent[seats].nonzero()
    for stay in state.stays(seats[marked]) if len(marked) else ():
        if not state.newest_row(stay.seat):
            state.preempt(stay)


def report_pause(state: State) -> list[Command]:
    """Report the pause that is due once no batch and no transfer is outstanding."""
    if not state.outstanding and not state.ledger.open:
        state.pause_due = False
        return [ReportPaused()]
    return []
