"""One selection as a transaction: its blocks are taken, its requests moved, its batch written down.

`reserve` makes a batch of the rows that were planned, `undo` takes the newest back without a trace.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, Ints, Mask
from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.commands import PrepareBatch
from stepahead.host_cache import take
from stepahead.requests import Intent
from stepahead.state import FILLED, QUEUED, State
from stepahead.tables import REQUEST, BatchTrigger, RequestTrigger

_NO_VOLUME: Final = (0, 0, 0)
#: By number of the request's state: no row of it is outstanding.
_RESTING: Final[Mask] = np.isin(np.arange(len(REQUEST.states)), (QUEUED, FILLED))


def reserve(
    state: State,
    seats: Ints,
    counts: Ints,
    hits: dict[int, Receipt],
    drafts: Ints | None = None,
) -> tuple[Batch, PrepareBatch]:
    """Take the blocks, move the requests, and write the batch down.

    Args:
        state: the kernel's.
        seats: the rows, in rank order; not written afterwards.
        counts: tokens of each row, at least 1, drafts among them.
        hits: the cached prefix of each row that is seated by this batch, by seat.
        drafts: how many at the end of each row are drafts; None: no row has one.
    """
    columns = state.columns
    positions = columns.scheduled[seats]
    ends = positions + counts
    held = columns.blocks[seats]
    needs = blocks_needed(ends, held, state.config.block_size)
    growing = needs.nonzero()[0]
    grant = take(state, sum(needs[growing].tolist()))
    rows, slots = _growth(growing, needs, held, len(grant.blocks))
    columns.table[seats[rows], slots] = grant.blocks
    columns.blocks[seats] = held + needs
    columns.scheduled[seats] = ends
    if not state.outstanding:
        state.move(seats, RequestTrigger.SELECT)
    else:
        resting = seats[_RESTING[columns.state[seats]]]
        if len(resting):
            state.move(resting, RequestTrigger.SELECT)
    samples = ends >= columns.known[seats]
    decoding = (ends > columns.prompt[seats]) & (counts == 1) & samples
    decode = np.count_nonzero(decoding) == len(seats)
    epochs = columns.epoch[seats]
    batch = Batch(
        batch_id=state.next_batch,
        seats=seats,
        handles=columns.handle[seats],
        epochs=epochs,
        positions=positions,
        ends=ends,
        samples=samples,
        decode=decode,
        live=state.all_live[: len(seats)],
        grant=grant,
        grant_rows=rows,
        hits=hits,
        selected_at=state.now,
        volume=_NO_VOLUME if state.timing is None else _volume(counts, ends),
        fresh=True,
        loads=_loads_of(state, seats) if state.ledger.loading else (),
        drafts=drafts,
    )
    state.next_batch += 1
    state.outstanding.append(batch)
    table_rows, table_slots, blocks = _with_prefixes(state, batch, rows, slots)
    again = not decode and np.count_nonzero(epochs) > 0
    history = _history(state, batch) if again else (EMPTY, EMPTY, EMPTY)
    return batch, PrepareBatch(
        batch_id=batch.batch_id,
        seats=seats,
        handles=batch.handles,
        epochs=batch.epochs,
        positions=positions,
        token_counts=counts,
        samples=samples,
        block_rows=table_rows,
        block_slots=table_slots,
        blocks=blocks,
        history_rows=history[0],
        history_positions=history[1],
        history_tokens=history[2],
        drafts=drafts,
    )


def _volume(counts: Ints, ends: Ints) -> tuple[int, int, int]:
    return len(counts), int(counts.sum()), int(ends.sum())


def blocks_needed(ends: Ints, held: Ints, size: int) -> Ints:
    """Return how many blocks rows that end before ``ends`` need beyond those they hold."""
    needs: Ints = np.maximum((ends + (size - 1)) // size - held, 0)
    return needs


def _growth(growing: Ints, needs: Ints, held: Ints, count: int) -> tuple[Ints, Ints]:
    """Return row and table slot of each of ``count`` new blocks, in order."""
    if count == len(growing):
        return growing, held[growing]
    rows = growing.repeat(needs[growing])
    before = needs.cumsum() - needs
    return rows, (held - before)[rows] + np.arange(count)


def _with_prefixes(state: State, batch: Batch, rows: Ints, slots: Ints) -> tuple[Ints, Ints, Ints]:
    """Return row, slot and number of each block that is new in the host's tables.

    Those are the granted ones, and before them the hit prefixes of the requests just seated.
    """
    if not batch.hits:
        return rows, slots, batch.grant.blocks
    columns, size = state.columns, state.config.block_size
    all_rows: list[Ints] = []
    all_slots: list[Ints] = []
    all_blocks: list[Ints] = []
    for seat in batch.hits:
        prefix = columns.table[seat, : columns.settled[seat] // size]
        if len(prefix):
            all_rows.append(np.full(len(prefix), (batch.seats == seat).argmax()))
            all_slots.append(np.arange(len(prefix)))
            all_blocks.append(prefix)
    if not all_rows:
        return rows, slots, batch.grant.blocks
    return (
        np.concatenate([*all_rows, rows]),
        np.concatenate([*all_slots, slots]),
        np.concatenate([*all_blocks, batch.grant.blocks]),
    )


def _loads_of(state: State, seats: Ints) -> tuple[int, ...]:
    """Return the loads that requests in ``seats`` run on."""
    loading = state.ledger.loading
    handles: list[int] = state.columns.handle[seats].tolist()
    return tuple(loading[handle] for handle in handles if handle in loading)


def _history(state: State, batch: Batch) -> tuple[Ints, Ints, Ints]:
    """Return row, position and value of the inputs that were sampled before a preemption.

    The last input of a sampling row is not among them: it comes with the dispatch.
    """
    columns = state.columns
    prompt = columns.prompt[batch.seats]
    first = np.maximum(batch.positions, prompt)
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
    return np.repeat(rows, [len(s) for s in spans]), np.concatenate(spans), np.concatenate(tokens)


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
