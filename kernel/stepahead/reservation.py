"""One selection as a transaction: its blocks are taken, its requests moved, its batch written down.

`reserve` makes a batch of the rows that were planned, `undo` takes the newest back without a trace.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, ZERO, Ints, Mask, concatenate, count_nonzero, maximum, quick
from stepahead.batches import Batch
from stepahead.blocks import NOTHING, Receipt
from stepahead.columns import Columns
from stepahead.commands import PrepareBatch
from stepahead.host_cache import take
from stepahead.requests import Intent
from stepahead.state import FILLED, QUEUED, State, Steady
from stepahead.tables import REQUEST, BatchTrigger, RequestTrigger
from stepahead.timing import Volume

#: By number of the request's state: no row of it is outstanding.
_RESTING: Final[Mask] = quick(np.isin(np.arange(len(REQUEST.states)), (QUEUED, FILLED)))


def row_set(state: State, seats: Ints, counts: Ints) -> Steady:
    """Return the rows of a new batch.

    Args:
        state: the kernel's.
        seats: the rows, in rank order; not written afterwards.
        counts: tokens of each row, at least 1, drafts among them; not written either.
    """
    columns = state.columns
    ends = columns.scheduled[seats] + counts
    samples = ends >= columns.known[seats]
    (fill_rows,) = (samples & (ends > columns.prompt[seats])).nonzero()
    decode = len(fill_rows) == len(seats) and counts.item(counts.argmax()) == 1
    handles, epochs = columns.handle[seats], columns.epoch[seats]
    return Steady(seats, handles, epochs, samples, fill_rows, counts, decode)


def reserve(
    state: State,
    rows: Steady,
    hits: dict[int, Receipt],
    drafts: Ints | None = None,
) -> tuple[Batch, PrepareBatch]:
    """Take the blocks, move the requests, and write the batch down.

    Args:
        state: the kernel's.
        rows: what the batch computes of whom.
        hits: the cached prefix of each row that is seated by this batch, by seat.
        drafts: how many at the end of each row are drafts; None: no row has one.
    """
    columns, seats = state.columns, rows.seats
    # What a prompt reads grows with every chunk: to the timing they are new row sets.
    fresh, rows.begun = not (rows.begun and rows.decode), True
    positions = columns.scheduled[seats]
    ends = positions + rows.counts
    grant, (table_rows, table_slots, blocks) = _grow(state, seats, ends, hits)
    columns.scheduled[seats] = ends
    if not state.outstanding:
        state.move(seats, RequestTrigger.SELECT)
    elif fresh:
        resting = seats[_RESTING[columns.state[seats]]]
        if len(resting):
            state.move(resting, RequestTrigger.SELECT)
    if fresh and state.timing is not None:
        rows.volume = _volume(rows, ends)
    batch = Batch(
        batch_id=state.next_batch,
        seats=seats,
        handles=rows.handles,
        epochs=rows.epochs,
        positions=positions,
        ends=ends,
        samples=rows.samples,
        fill_rows=rows.fill_rows,
        decode=rows.decode,
        live=state.all_live[: len(seats)],
        grant=grant,
        grant_rows=table_rows[len(table_rows) - len(grant.blocks) :] if hits else table_rows,
        hits=hits,
        selected_at=state.now,
        volume=rows.volume,
        fresh=fresh,
        loads=_loads_of(state, rows.handles) if state.ledger.loading else (),
        drafts=drafts,
        dead={},
    )
    state.next_batch += 1
    state.outstanding.append(batch)
    again = not rows.decode and count_nonzero(rows.epochs) > 0
    history = _history(state, batch) if again else (EMPTY, EMPTY, EMPTY)
    return batch, PrepareBatch(
        batch_id=batch.batch_id,
        seats=seats,
        handles=rows.handles,
        epochs=rows.epochs,
        positions=positions,
        token_counts=rows.counts,
        samples=rows.samples,
        block_rows=table_rows,
        block_slots=table_slots,
        blocks=blocks,
        history_rows=history[0],
        history_positions=history[1],
        history_tokens=history[2],
        drafts=drafts,
    )


def _volume(rows: Steady, ends: Ints) -> Volume:
    # Of a few numbers, as here mostly, Python makes the sum several times as fast.
    tokens = len(ends) if rows.decode else sum(rows.counts.tolist())
    return Volume.of(len(ends), tokens, sum(ends.tolist()))


def blocks_needed(ends: Ints, held: Ints, size: int) -> Ints:
    """Return how many blocks rows that end before ``ends`` need beyond those they hold."""
    needs: Ints = maximum((ends + (size - 1)) // size - held, 0)
    return needs


def growth(ends: Ints, held: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the rows that end before ``ends`` and need blocks, and how many each.

    That is `blocks_needed` for the few that need any; ``size`` has no axes.
    """
    room = held * size - ends
    (rows,) = (room < ZERO).nonzero()
    return rows, -(room[rows] // size) if len(rows) else EMPTY


def _grow(
    state: State, seats: Ints, ends: Ints, hits: dict[int, Receipt]
) -> tuple[Receipt, tuple[Ints, Ints, Ints]]:
    """Take the blocks that the rows need to end before ``ends``, and write the block tables.

    Returns them, and row, slot and number of each block that is new in the host's tables: before
    those just taken stand the hit prefixes of the requests just seated.
    """
    columns = state.columns
    held = columns.blocks[seats]
    rows, needs = growth(ends, held, state.block_size)
    if not len(rows) and not hits:
        return NOTHING, (EMPTY, EMPTY, EMPTY)
    counts: list[int] = needs.tolist()
    grant = take(state, sum(counts))
    blocks, owners, first = grant.blocks, seats[rows], held[rows]
    columns.blocks[owners] = first + needs
    if len(blocks) == len(rows) and not hits:
        columns.table[owners, first] = blocks
        return grant, (rows, first, blocks)
    slots = _spread(columns, owners, first, counts, blocks)
    if not hits:
        return grant, (rows.repeat(needs), concatenate(slots), blocks)
    rank = columns.rank
    seated = rank[seats].searchsorted(rank[np.array([*hits])])
    found: list[int] = held[seated].tolist()
    prefixes = [columns.table[seat, :count] for seat, count in zip(hits, found, strict=True)]
    table_rows = quick(np.array([*seated.tolist(), *rows.tolist()])).repeat([*found, *counts])
    table_slots = concatenate([*(columns.slots[:count] for count in found), *slots])
    return grant, (table_rows, table_slots, concatenate([*prefixes, blocks]))


def _spread(
    columns: Columns, owners: Ints, first: Ints, counts: list[int], blocks: Ints
) -> list[Ints]:
    """Write the blocks into their owners' tables, from slot ``first`` on; return their slots.

    Neighbours that get one block each are written at once.
    """
    slots: list[Ints] = []
    row = start = 0
    while row < len(counts):
        count, after = counts[row], row + 1
        if count > 1:
            slot, seat = first.item(row), owners.item(row)
            slots.append(columns.slots[slot : slot + count])
            columns.table[seat, slot : slot + count] = blocks[start : start + count]
        else:
            while after < len(counts) and counts[after] == 1:
                after += 1
            count = after - row
            slots.append(first[row:after])
            columns.table[owners[row:after], first[row:after]] = blocks[start : start + count]
        row, start = after, start + count
    return slots


def _loads_of(state: State, handles: Ints) -> tuple[int, ...]:
    """Return the loads that requests run on."""
    loading = state.ledger.loading
    running: list[int] = handles.tolist()
    return tuple(loading[handle] for handle in running if handle in loading)


def _history(state: State, batch: Batch) -> tuple[Ints, Ints, Ints]:
    """Return row, position and value of the inputs that were sampled before a preemption.

    The last input of a sampling row is not among them: it comes with the dispatch.
    """
    columns = state.columns
    prompt = columns.prompt[batch.seats]
    first = maximum(batch.positions, prompt)
    last = batch.ends - batch.samples
    if batch.drafts is not None:
        last -= batch.drafts
    rows = np.flatnonzero(last > first)
    if not len(rows):
        return EMPTY, EMPTY, EMPTY
    spans: list[Ints] = [np.arange(first[row], last[row]) for row in rows]
    tokens = [
        columns.tokens[batch.seats[row], span - prompt[row]]
        for row, span in zip(rows, spans, strict=True)
    ]
    return np.repeat(rows, [len(s) for s in spans]), concatenate(spans), concatenate(tokens)


def undo(state: State, batch: Batch, trigger: BatchTrigger) -> None:
    """Take back the newest selection: a refused or abandoned batch leaves no trace.

    Rows whose request has ended meanwhile have nothing left to take back. A request that the batch
    seated returns to the waiting line, and a load that was begun for it goes on; the others stand
    where their last settled row left them.
    """
    columns, pool = state.columns, state.pool
    batch.move(trigger)
    state.outstanding.remove(batch)
    live = batch.live
    seats = batch.seats[live]
    kept = live[batch.grant_rows]
    pool.give_back(batch.grant.subset(kept))
    columns.blocks[seats] -= np.bincount(batch.grant_rows[kept], minlength=len(live))[live]
    columns.scheduled[seats] = batch.positions[live]
    state.steady = None
    for seat, receipt in reversed(batch.hits.items()):
        stay = state.seated[seat]
        if stay is None or stay.handle not in batch.handles[live]:
            continue
        # Behind the hit prefix stand blocks that a layer-wise load fills; it holds them as well.
        pool.release(columns.table[seat, len(receipt.blocks) : columns.blocks[seat]].copy(), 0)
        pool.undo_hit(receipt)
        columns.blocks[seat] = 0
        state.move_one(seat, RequestTrigger.WITHDRAW)
        state.vacate(stay, 0)
        state.waiting.add(stay)
    for stay in state.stays(seats):
        if state.newest_row(stay.seat):
            continue
        state.move_one(stay.seat, RequestTrigger.RESTORE)
        if columns.intent[stay.seat] == Intent.PREEMPT.value:
            state.preempt(stay)
    state.pass_fences()
