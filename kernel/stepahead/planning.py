"""Selection: which rows the next batch has, and which blocks they write.

One selection is a transaction: `select` reserves, `undo` leaves no trace of it. Rows are ordered by
rank (priority, then arrival). A running request that lacks a block stops admission and every
younger request's growth, and marks just enough of the youngest as victims.

Why this ends (the progress measure, lexicographic): tokens the oldest still needs, blocks it lacks,
unfinished batches that its fences wait for. The oldest is never a victim, so its tokens never
grow. If it lacks blocks, victims are marked until what is free plus what is coming covers the lack,
and nobody younger takes a block meanwhile, so each batch that comes back lowers the second or the
third. Alone it always fits: a request that does not is refused at arrival.
"""

from __future__ import annotations

import numpy as np

from stepahead.arrays import EMPTY, Ints, Mask
from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.commands import PrepareBatch
from stepahead.config import BatchPreference
from stepahead.host_cache import begin, find, must_wait, take
from stepahead.requests import Intent, Stay
from stepahead.state import FILLED, QUEUED, State, Steady
from stepahead.tables import BatchState, BatchTrigger, RequestTrigger


def may_select(state: State) -> bool:
    """Tell whether the rule of lookahead allows one more batch."""
    outstanding = state.outstanding
    return (
        not state.paused
        and len(outstanding) <= state.config.lookahead
        and not (outstanding and outstanding[-1].state is BatchState.QUEUED)
    )


def select(state: State) -> PrepareBatch | None:
    """Choose the rows of the next batch and reserve their blocks; None when there is no row."""
    state.wake = None
    state.joinable = False
    if state.steady is not None and (again := _select_again(state, state.steady)) is not None:
        return again
    return _plan(state)


# -- the row set of last time -----------------------------------------------------------------


def _select_again(state: State, steady: Steady) -> PrepareBatch | None:
    columns = state.columns
    seats = steady.seats
    scheduled = columns.scheduled[seats]
    grown = np.flatnonzero(columns.blocks[seats] * state.config.block_size == scheduled)
    if steady.turns < 1 or len(grown) > state.pool.available:
        state.steady = None
        return None
    steady.turns -= 1
    slots = columns.blocks[seats[grown]] if len(grown) else EMPTY
    grant = take(state, len(grown))
    ends = scheduled + 1
    columns.scheduled[seats] = ends
    if len(grown):
        columns.table[seats[grown], slots] = grant.blocks
        columns.blocks[seats[grown]] += 1
    if not state.outstanding:
        state.move(seats, RequestTrigger.SELECT)
    batch = Batch(
        batch_id=state.next_batch,
        seats=seats,
        handles=steady.handles,
        epochs=steady.epochs,
        positions=scheduled,
        ends=ends,
        samples=steady.all_true,
        decode=True,
        live=steady.all_true,
        grant=grant,
        grant_rows=grown,
        hits={},
        selected_at=state.now,
        volume=steady.volume,
        fresh=False,
    )
    state.next_batch += 1
    state.outstanding.append(batch)
    return PrepareBatch(
        batch_id=batch.batch_id,
        seats=seats,
        handles=steady.handles,
        epochs=steady.epochs,
        positions=scheduled,
        token_counts=steady.ones,
        samples=steady.all_true,
        block_rows=grown,
        block_slots=slots,
        blocks=grant.blocks,
        history_rows=EMPTY,
        history_positions=EMPTY,
        history_tokens=EMPTY,
    )


# -- a new row set ----------------------------------------------------------------------------


def _plan(state: State) -> PrepareBatch | None:
    config, columns = state.config, state.columns
    decode_first = config.preference is BatchPreference.DECODE_FIRST
    able = _able(state)
    short = len(able)  # rows from here on compute only what fits into the blocks they hold
    while True:
        seats = able[: config.max_concurrency]
        lacking = np.maximum(columns.known[seats] - columns.scheduled[seats], 1)
        decode = lacking == 1
        want = np.minimum(lacking, config.max_tokens_per_row)
        slack = columns.blocks[seats] * config.block_size - columns.scheduled[seats]
        want[short:] = np.minimum(want, slack)[short:]
        # Under prefill-first, decode rows are served last; until then each counts as served.
        counts = want * decode
        left = config.max_num_batched_tokens
        for group in (decode, ~decode) if decode_first else (~decode,):
            left = _share(counts, want, group, left)
        needs = _blocks_needed(state, seats, counts)
        if needs.sum() <= state.pool.available:
            break
        lacks = int((np.cumsum(needs) > state.pool.available).argmax())
        if _make_room(state, int(seats[lacks]), int(needs[: lacks + 1].sum())):
            able = _able(state)
            short = len(able)
        else:
            short = lacks
    complete = short == len(able)
    hits: dict[int, Receipt] = {}
    admitted: list[int] = []
    if complete and len(state.waiting):
        hits, admitted, left = _admit(state, left, len(able), seats, needs)
    if not decode_first:
        _share(counts, want, decode, left)
    if hits:
        seats = np.concatenate((seats, np.array(list(hits), dtype=np.int64)))
        counts = np.concatenate((counts, np.array(admitted, dtype=np.int64)))
        by_rank = np.argsort(columns.rank[seats])
        seats, counts = seats[by_rank], counts[by_rank]
    seats, counts = seats[counts > 0], counts[counts > 0]
    if not len(seats):
        return None
    batch, command = _reserve(state, seats, counts, hits)
    if complete and batch.decode and len(seats) == len(able) and not hits:
        room = columns.final[seats] - 1 - columns.scheduled[seats]
        state.steady = Steady(
            seats=seats,
            handles=batch.handles,
            epochs=batch.epochs,
            all_true=batch.samples,
            ones=command.token_counts,
            volume=batch.volume,
            turns=int(room.min()),
        )
    return command


def _able(state: State) -> Ints:
    """Return the seats of the requests that can have a row, in rank order."""
    columns = state.columns
    able: Ints = state.order[columns.intent[state.order] == Intent.NONE.value]
    return able[columns.scheduled[able] < columns.final[able] - 1]


def _share(counts: Ints, want: Ints, group: Mask, left: int) -> int:
    """Give the rows of ``group`` what they want, in order, until ``left`` tokens are spent."""
    wanted = want[group]
    before = np.cumsum(wanted) - wanted
    given = np.clip(left - before, 0, wanted)
    counts[group] = given
    return left - int(given.sum())


def _blocks_needed(state: State, seats: Ints, counts: Ints) -> Ints:
    """Return how many new blocks each row needs for ``counts`` more positions."""
    columns, size = state.columns, state.config.block_size
    needs = -(-(columns.scheduled[seats] + counts) // size) - columns.blocks[seats]
    return np.where(counts > 0, np.maximum(needs, 0), 0)


def _make_room(state: State, lacking: int, need: int) -> bool:
    """See that ``need`` blocks become free for ``lacking`` and its elders; tell if it found some.

    Victims are younger than ``lacking``, youngest first, and only as many as it takes: what is
    pending behind a fence or in transfer, and what requests that leave anyway will free, counts as
    coming. A
    victim with outstanding rows is marked and waited for; one without is preempted at once.
    """
    columns, order = state.columns, state.order
    marked = columns.intent[order] != Intent.NONE.value
    leaving = marked | (columns.scheduled[order] >= columns.final[order] - 1)
    missing = need - state.pool.available - state.pool.pending_count
    missing -= sum(_own_blocks(state, int(seat)) for seat in order[leaving])
    missing -= _in_transfer(state)
    younger = ~leaving & (columns.rank[order] > columns.rank[lacking])
    found = False
    for victim in state.stays(order[younger][::-1]):
        if missing <= 0:
            break
        found = True
        missing -= _own_blocks(state, victim.seat)
        if state.newest_row(victim.seat):
            columns.intent[victim.seat] = Intent.PREEMPT.value
        else:
            state.preempt(victim)
    return found


def _own_blocks(state: State, seat: int) -> int:
    """Count the blocks that only this seat holds: what its release would free."""
    return int((state.pool.references[state.columns.held(seat)] == 1).sum())


def _in_transfer(state: State) -> int:
    """Count the blocks that nobody but the ledger holds."""
    if not state.ledger.open:
        return 0
    pins = state.ledger.pins(state.pool.num_blocks)
    return int(((pins > 0) & (pins == state.pool.references)).sum())


def _admit(
    state: State, left: int, running: int, seats: Ints, needs: Ints
) -> tuple[dict[int, Receipt], list[int], int]:
    """Seat waiting requests, first in line only, while rows, tokens, seats and blocks last.

    A request is admitted when what it must compute of its known tokens fits into what is free
    beyond the needs of this batch and of running prompts. Returns the cached prefix that each new
    seat hit, the tokens that each computes, in order, and the tokens left.
    """
    config, columns, pool = state.config, state.columns, state.pool
    hits: dict[int, Receipt] = {}
    counts: list[int] = []
    stay = state.waiting.head()
    if stay is None:
        return hits, counts, left
    promised = np.maximum(
        -(-columns.known[seats] // config.block_size) - columns.blocks[seats], needs
    )
    spare = pool.available - int(promised.sum())
    while (
        stay is not None
        and left > 0
        and running + len(hits) < config.max_concurrency
        and columns.free_seats
    ):
        keys = stay.keys[: (stay.known - 1) // config.block_size]
        cached = pool.match(keys)
        reload = find(state, stay, keys[len(cached) :]) if state.tiers else None
        if state.tiers and must_wait(state, stay, reload):
            break
        idle, fresh = pool.idle_among(cached), -(-stay.known // config.block_size) - len(cached)
        if spare - idle < fresh:
            break
        loading = EMPTY if reload is None else begin(state, stay, cached, reload)
        if loading is None:
            break
        spare -= idle + fresh
        state.waiting.remove(stay)
        seat = state.seat(stay)
        hits[seat] = pool.hit(cached)
        _load_prefix(state, stay, np.concatenate((cached, loading)))
        counts.append(
            min(stay.known - int(columns.scheduled[seat]), config.max_tokens_per_row, left)
        )
        left -= counts[-1]
        stay = state.waiting.head()
    if hits:
        order = np.concatenate((state.order, np.array(list(hits), dtype=np.int64)))
        state.order = order[np.argsort(columns.rank[order])]
    return hits, counts, left


def _load_prefix(state: State, stay: Stay, cached: Ints) -> None:
    columns, counters, seat = state.columns, state.counters, stay.seat
    tokens = len(cached) * state.config.block_size
    columns.table[seat, : len(cached)] = cached
    columns.blocks[seat] = columns.committed[seat] = len(cached)
    columns.scheduled[seat] = columns.settled[seat] = tokens
    if len(stay.keys):
        counters.queried_tokens += stay.known
        counters.hit_tokens += tokens
    counters.recomputed_tokens += max(0, stay.settled_before - tokens)


# -- the transaction --------------------------------------------------------------------------


def _reserve(
    state: State, seats: Ints, counts: Ints, hits: dict[int, Receipt]
) -> tuple[Batch, PrepareBatch]:
    """Take the blocks, move the requests, and write the batch down."""
    columns = state.columns
    positions = columns.scheduled[seats]
    ends = positions + counts
    needs = _blocks_needed(state, seats, counts)
    grant = take(state, int(needs.sum()))
    rows = np.repeat(np.arange(len(seats)), needs)
    slots = columns.blocks[seats][rows] + np.arange(len(rows)) - (np.cumsum(needs) - needs)[rows]
    columns.table[seats[rows], slots] = grant.blocks
    columns.blocks[seats] += needs
    columns.scheduled[seats] = ends
    resting = (columns.state[seats] == QUEUED) | (columns.state[seats] == FILLED)
    state.move(seats[resting], RequestTrigger.SELECT)
    samples = ends >= columns.known[seats]
    decode = bool(samples.all() and (counts == 1).all() and (ends > columns.prompt[seats]).all())
    batch = Batch(
        batch_id=state.next_batch,
        seats=seats,
        handles=columns.handle[seats],
        epochs=columns.epoch[seats],
        positions=positions,
        ends=ends,
        samples=samples,
        decode=decode,
        live=np.ones(len(seats), dtype=bool),
        grant=grant,
        grant_rows=rows,
        hits=hits,
        selected_at=state.now,
        volume=(len(seats), int(counts.sum()), int(ends.sum())),
        fresh=True,
        loads=_loads_of(state, seats) if state.ledger.loading else (),
    )
    state.next_batch += 1
    state.outstanding.append(batch)
    row_of = {int(seat): row for row, seat in enumerate(seats)} if hits else {}
    prefixes = [
        (row_of[seat], columns.table[seat, : columns.settled[seat] // state.config.block_size])
        for seat in hits
        if columns.settled[seat]
    ]
    history = _history(state, batch)
    return batch, PrepareBatch(
        batch_id=batch.batch_id,
        seats=seats,
        handles=batch.handles,
        epochs=batch.epochs,
        positions=positions,
        token_counts=counts,
        samples=samples,
        block_rows=np.concatenate([*(np.full(len(b), row) for row, b in prefixes), rows]),
        block_slots=np.concatenate([*(np.arange(len(b)) for _, b in prefixes), slots]),
        blocks=np.concatenate([*(b for _, b in prefixes), grant.blocks]),
        history_rows=history[0],
        history_positions=history[1],
        history_tokens=history[2],
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
        state.move(np.array([seat]), RequestTrigger.WITHDRAW)
        state.vacate(stay)
        state.waiting.add(stay)
    for stay in state.stays(seats):
        if state.newest_row(stay.seat):
            continue
        state.move(np.array([stay.seat]), RequestTrigger.RESTORE)
        if columns.intent[stay.seat] == Intent.PREEMPT.value:
            state.preempt(stay)
    state.pass_fences()
