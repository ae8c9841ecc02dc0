"""Selection: which rows the next batch has, and which blocks they write.

One selection is a transaction (`reservation`). Rows are ordered by rank (priority, then arrival). A
running request that lacks a block stops admission and every younger request's growth, and marks
just enough of the youngest as victims.

Why this ends (the progress measure, lexicographic): tokens the oldest still needs, blocks it lacks,
unfinished batches that its fences wait for. The oldest is never a victim, so its tokens never
grow. If it lacks blocks, victims are marked until what is free plus what is coming covers the lack,
and nobody younger takes a block meanwhile, so each batch that comes back lowers the second or the
third. Alone it always fits: a request that does not is refused at arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepahead.arrays import EMPTY, Ints
from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.commands import PrepareBatch
from stepahead.config import BatchPreference
from stepahead.drafts import hold_back, speculate
from stepahead.host_cache import begin, find, must_wait, take
from stepahead.requests import Intent, Stay
from stepahead.reservation import blocks_needed, reserve
from stepahead.state import State, Steady
from stepahead.tables import BatchState, RequestTrigger


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
    steady = state.steady
    if steady is not None and steady.decode and (again := _select_again(state, steady)) is not None:
        return again
    return _plan(state)


# -- the row set of last time -----------------------------------------------------------------


def _select_again(state: State, steady: Steady) -> PrepareBatch | None:
    columns = state.columns
    seats = steady.seats
    scheduled = columns.scheduled[seats]
    grown = (columns.blocks[seats] * state.config.block_size == scheduled).nonzero()[0]
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
        samples=steady.samples,
        decode=True,
        live=steady.samples,
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
        token_counts=steady.counts,
        samples=steady.samples,
        block_rows=grown,
        block_slots=slots,
        blocks=grant.blocks,
        history_rows=EMPTY,
        history_positions=EMPTY,
        history_tokens=EMPTY,
    )


# -- a new row set ----------------------------------------------------------------------------


def _plan(state: State) -> PrepareBatch | None:
    config = state.config
    state.steady = None
    seats, shares, able, complete = _running(state)
    counts, hits = shares.counts, dict[int, Receipt]()
    admitted: list[int] = []
    if complete and len(state.waiting):
        hits, admitted, shares.left = _admit(state, shares, able, seats)
    if config.preference is BatchPreference.PREFILL_FIRST:
        # Until now each decode row counted as served; what is left is theirs.
        counts[shares.single[max(shares.left, 0) :]] = 0
    if hits:
        seats, counts = _joined(state, seats, counts, hits, admitted)
    served = counts.nonzero()[0]
    if len(served) < len(seats):
        seats, counts = seats[served], counts[served]
    if not len(seats):
        return None
    if config.num_speculative_tokens:
        return speculate(state, seats, counts, hits, complete=complete)
    batch, command = reserve(state, seats, counts, hits)
    if complete and len(seats) == able + len(hits):
        # Where tokens are left, who waits may join once the prompt has keyed what they need.
        closed = shares.left < 1 or not len(state.waiting)
        state.steady = _steady(state, batch, counts, closed=closed)
    return command


def _running(state: State) -> tuple[Ints, _Shares, int, bool]:
    """Divide the token budget among the running requests, and see that the oldest get blocks.

    Returns the rows' seats, what each gets, how many requests could have a row, and whether all of
    them find the blocks that they need.
    """
    able = _able(state)
    short = len(able)  # rows from here on compute only what fits into the blocks they hold
    while True:
        seats = able[: state.config.max_concurrency]
        shares = _divide(state, seats, short)
        lacking = _first_without_block(state, seats, shares)
        if lacking is None:
            break
        row, needed = lacking
        if _make_room(state, int(seats[row]), needed):
            able = _able(state)
            short = len(able)
        else:
            short = row
    return seats, shares, len(able), short == len(able)


def _steady(state: State, batch: Batch, counts: Ints, *, closed: bool) -> Steady | None:
    """Return the rows of a new batch if the next selections come to the same, or None.

    They do while all rows decode, beside one prompt at most that gets a chunk of the same size each
    time: the largest one, or what the others leave of the budget. With a prompt in the batch, only
    if nobody who waits may join (``closed``).
    """
    columns, seats = state.columns, batch.seats
    room = columns.final[seats] - 1 - batch.ends
    if not batch.decode:
        (partial,) = (~batch.samples).nonzero()
        decoding = (batch.positions >= columns.prompt[seats]) & (counts == 1)
        if len(partial) != 1 or np.count_nonzero(decoding) < len(seats) - 1 or not closed:
            return None
        row = int(partial[0])
        left = int(columns.prompt[seats[row]] - batch.ends[row])
        room[row] = (left - 1) // int(counts[row])
    turns = int(room[room.argmin()])
    if (batch.decode and batch.hits) or not (batch.decode or turns > 0):
        return None
    return Steady(
        seats=seats,
        handles=batch.handles,
        epochs=batch.epochs,
        samples=batch.samples,
        counts=counts,
        decode=batch.decode,
        volume=batch.volume,
        turns=turns,
    )


def _able(state: State) -> Ints:
    """Return the seats of the requests that can have a row, in rank order."""
    columns, order = state.columns, state.order
    goes_on = columns.scheduled[order] < columns.final[order] - 1
    intents = columns.intent[order]
    if np.count_nonzero(intents):
        goes_on &= intents == Intent.NONE.value
    return order if np.count_nonzero(goes_on) == len(order) else order[goes_on]


@dataclass(slots=True)
class _Shares:
    """What each row gets of the token budget.

    ``counts`` has shape ``(rows,)``; ``left`` is what remains; ``single`` are the rows that want
    one token: decode rows, and prompts with one token to go.
    """

    counts: Ints
    left: int
    single: Ints


def _divide(state: State, seats: Ints, short: int) -> _Shares:
    """Divide the token budget: in order, the preferred kind of rows first.

    Under prefill-first, rows of one token are given it here without being charged for it; under
    decode-first, prompts leave what drafts will take.
    """
    config, columns = state.config, state.columns
    scheduled = columns.scheduled[seats]
    lacking = columns.known[seats] - scheduled
    longer: list[int] = (lacking > 1).nonzero()[0].tolist()
    single = (lacking <= 1).nonzero()[0]
    left, most = config.max_num_batched_tokens, config.max_tokens_per_row
    slack = None
    if short < len(seats):
        slack = columns.blocks[seats] * config.block_size - scheduled
        single = single[(single < short) | (slack[single] > 0)]
    decode_first = config.preference is BatchPreference.DECODE_FIRST
    counts = np.zeros(len(seats), dtype=np.int64)
    counts[single[:left] if decode_first else single] = 1
    if decode_first:
        left = max(left - len(single), 0)
    # A handful: who is seated had a share of the budget of that batch.
    for row in longer:
        wanted = min(int(lacking[row]), most, left)
        if slack is not None and row >= short:
            wanted = min(wanted, int(slack[row]))
        counts[row] = wanted
        left -= wanted
    if decode_first and config.num_speculative_tokens:
        left = hold_back(state, seats, counts, left, complete=slack is None)
    return _Shares(counts, left, single)


def _first_without_block(state: State, seats: Ints, shares: _Shares) -> tuple[int, int] | None:
    """Return the first row that finds no block, and what the rows up to it need; None: all do."""
    size, available = state.config.block_size, state.pool.available
    spent = state.config.max_num_batched_tokens - shares.left + len(seats)
    if spent // size + len(seats) <= available:
        return None
    needs = np.cumsum(_blocks_needed(state, seats, shares.counts))
    if not len(needs) or needs[-1] <= available:
        return None
    row = int((needs > available).argmax())
    return row, int(needs[row])


def _blocks_needed(state: State, seats: Ints, counts: Ints) -> Ints:
    columns = state.columns
    ends = columns.scheduled[seats] + counts
    return blocks_needed(ends, columns.blocks[seats], state.config.block_size)


def _joined(
    state: State, seats: Ints, counts: Ints, hits: dict[int, Receipt], admitted: list[int]
) -> tuple[Ints, Ints]:
    """Return seats and counts of the rows with those of the admitted, in the order of ranks."""
    seats = np.concatenate((seats, np.array(list(hits), dtype=np.int64)))
    counts = np.concatenate((counts, np.array(admitted, dtype=np.int64)))
    by_rank = state.columns.rank[seats].argsort()
    return seats[by_rank], counts[by_rank]


def _make_room(state: State, lacking: int, need: int) -> bool:
    """See that ``need`` blocks become free for ``lacking`` and its elders; tell if it found some.

    Victims are younger than ``lacking``, youngest first, and only as many as it takes: what is
    pending behind a fence or in transfer, and what requests that leave anyway will free, counts as
    coming. A victim with outstanding rows is marked and waited for; one without is preempted at
    once.
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
    state: State, shares: _Shares, running: int, seats: Ints
) -> tuple[dict[int, Receipt], list[int], int]:
    """Seat waiting requests, first in line only, while rows, tokens, seats and blocks last.

    A request is admitted when what it must compute of its known tokens fits into what is free
    beyond the needs of this batch and of running prompts. Returns the cached prefix that each new
    seat hit, the tokens that each computes, in order, and the tokens left.
    """
    config, columns, pool, left = state.config, state.columns, state.pool, shares.left
    hits: dict[int, Receipt] = {}
    counts: list[int] = []
    stay = state.waiting.head()
    if stay is None or left < 1 or running >= config.max_concurrency:
        return hits, counts, left
    ends = np.maximum(columns.known[seats], columns.scheduled[seats] + shares.counts)
    promised = blocks_needed(ends, columns.blocks[seats], config.block_size)
    spare = pool.available - int(promised.sum())
    while (
        stay is not None
        and left > 0
        and running + len(hits) < config.max_concurrency
        and columns.free_seats
    ):
        keys = stay.keys[: (stay.known - 1) // config.block_size]
        cached = pool.match(keys)
        reload = find(state, stay, keys, len(cached)) if state.tiers else None
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
        state.order = order[columns.rank[order].argsort()]
    return hits, counts, left


def _load_prefix(state: State, stay: Stay, cached: Ints) -> None:
    columns, seat = state.columns, stay.seat
    tokens = len(cached) * state.config.block_size
    columns.table[seat, : len(cached)] = cached
    columns.blocks[seat] = columns.committed[seat] = len(cached)
    columns.scheduled[seat] = columns.settled[seat] = tokens
