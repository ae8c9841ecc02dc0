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

from stepahead.arrays import (
    EMPTY,
    ONE,
    Ints,
    Mask,
    concatenate,
    count_nonzero,
    ints,
    maximum,
    minimum,
)
from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.commands import PrepareBatch
from stepahead.config import BatchPreference
from stepahead.drafts import hold_back, speculate
from stepahead.host_cache import begin, find, must_wait
from stepahead.requests import Intent
from stepahead.reservation import growth, reserve, row_set
from stepahead.state import State, Steady
from stepahead.tables import BatchState


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
    if not state.live:
        return None
    steady = state.steady
    if steady is not None and steady.thinned:
        steady = state.steady = _remaining(state, steady)
    if steady is None or not steady.turns or not _blocks_last(state, steady):
        return _plan(state)
    steady.turns -= 1
    return reserve(state, steady, {})[1]


def _remaining(state: State, steady: Steady) -> Steady | None:
    """Return what is left of a row set if that is what planning would come to, or None.

    It is where all rows decode and nobody waits: whoever could have a row had one.
    """
    columns = state.columns
    if not steady.decode or len(state.waiting):
        return None
    (kept,) = columns.blocks[steady.seats].nonzero()
    rows = len(kept)
    if not rows:
        return None
    seats = steady.seats[kept]
    room = columns.final[seats] - columns.scheduled[seats]
    return Steady(
        seats=seats,
        handles=steady.handles[kept],
        epochs=steady.epochs[kept],
        samples=steady.samples[:rows],
        fill_rows=steady.fill_rows[:rows],
        counts=steady.counts[:rows],
        decode=True,
        turns=int(room[room.argmin()]) - 1,
    )


def _blocks_last(state: State, steady: Steady) -> bool:
    """Tell whether there are blocks for one more selection of these rows."""
    columns, seats = state.columns, steady.seats
    if _plenty(state, state.config.max_num_batched_tokens, len(seats)):
        return True
    ends = columns.scheduled[seats] + steady.counts
    needs: list[int] = growth(ends, columns.blocks[seats], state.block_size)[1].tolist()
    return sum(needs) <= state.pool.available


def _plenty(state: State, tokens: int, rows: int) -> bool:
    """Tell whether there are blocks for so many tokens, whichever of the rows they belong to."""
    return tokens // state.config.block_size + rows <= state.pool.available


# -- a new row set ----------------------------------------------------------------------------


def _plan(state: State) -> PrepareBatch | None:
    config = state.config
    state.steady = None
    shares, complete = _running(state)
    hits: dict[int, Receipt] = {}
    admitted: list[int] = []
    if complete and len(state.waiting):
        hits, admitted = _admit(state, shares)
    counts = shares.counts
    if config.preference is BatchPreference.PREFILL_FIRST:
        # Until now each decode row counted as served; what is left is theirs.
        counts[shares.single[shares.left :]] = 0
    if hits:
        counts = _join(state, counts, hits, admitted)
    seats = state.order[:]  # batches of one row set share its array: it is not another's as well
    (served,) = counts.nonzero()
    if len(served) < len(seats):
        seats, counts = seats[served], counts[served]
    if not len(seats):
        return None
    if config.num_speculative_tokens:
        return speculate(state, seats, counts, hits, complete=complete)
    rows = row_set(state, seats, counts)
    batch, command = reserve(state, rows, hits)
    if complete and len(seats) == shares.able + len(hits):
        # Where tokens are left, who waits may join once the prompt has keyed what they need.
        closed = shares.left < 1 or not len(state.waiting)
        if not (rows.decode or len(state.waiting)) and 0 not in rows.samples.tobytes():
            rows = _decoding(state, rows)
        rows.turns = _turns(state, rows, batch, closed=closed)
        state.steady = rows
    return command


def _decoding(state: State, rows: Steady) -> Steady:
    """Return the row set behind a batch that ends every prompt in it, if nobody comes or goes."""
    count = len(rows.seats)
    return Steady(
        seats=rows.seats,
        handles=rows.handles,
        epochs=rows.epochs,
        samples=rows.samples,
        fill_rows=state.all_rows[:count],
        counts=state.one_each[:count],
        decode=True,
    )


def _running(state: State) -> tuple[_Shares, bool]:
    """Divide the token budget among the running requests, and see that the oldest get blocks.

    Returns what each gets, and whether all find the blocks that they need.
    """
    short = None
    while True:
        shares = _divide(state, short)
        lacking = _first_without_block(state, shares)
        if lacking is None:
            return shares, short is None
        row, needed = lacking
        short = None if _make_room(state, int(state.order[row]), needed) else row


def _turns(state: State, rows: Steady, batch: Batch, *, closed: bool) -> int:
    """Return how many of the next selections come to these rows, behind a new batch.

    They do while all rows decode, beside one prompt at most that gets a chunk of the same size each
    time: the largest one, or what the others leave of the budget. With a prompt in the batch, only
    if nobody who waits may join (``closed``).
    """
    columns, seats = state.columns, rows.seats
    prompt = None if rows.decode else _only_prompt(rows)
    if not rows.decode and (prompt is None or not closed):
        return 0
    room = columns.final[seats] - batch.ends
    if prompt is not None:
        left = columns.prompt.item(seats.item(prompt)) - batch.ends.item(prompt)
        room[prompt] = (left - 1) // rows.counts.item(prompt) + 1
    return max(room.item(room.argmin()) - 1, 0)


def _only_prompt(rows: Steady) -> int | None:
    """Return the row that is the middle of a prompt while all others decode; None: not so."""
    if len(rows.fill_rows) < len(rows.seats) - 1:
        return None
    (partial,) = (~rows.samples).nonzero()
    longer: list[int] = (rows.counts > ONE).nonzero()[0].tolist()
    if len(partial) != 1 or any(row != partial[0] for row in longer):
        return None
    return int(partial[0])


@dataclass(slots=True)
class _Shares:
    """What the running requests get of the token budget.

    Arrays have shape ``(running requests,)``, in rank order: ``scheduled`` are the positions given
    to rows before, ``lacking`` the known tokens beyond them, ``counts`` what each gets now, 0 for
    who has no row. ``single`` are the places of those that want one token: decode rows, and prompts
    with one token to go. ``able`` requests could have a row; ``left`` is what remains.
    """

    scheduled: Ints
    lacking: Ints
    counts: Ints
    single: Ints
    able: int
    left: int


def _divide(state: State, short: int | None) -> _Shares:
    """Divide the token budget: in order, the preferred kind of rows first.

    Under prefill-first, rows of one token are given it here without being charged for it; under
    decode-first, prompts leave what drafts will take. From place ``short`` on, requests compute
    only what fits into the blocks that they hold.
    """
    config, columns, order = state.config, state.columns, state.order
    scheduled = columns.scheduled[order]
    lacking = columns.known[order] - scheduled
    counts = maximum(lacking, ONE)
    able, unable = _able(state, scheduled)
    if unable is not None:
        lacking[unable] = counts[unable] = 0
    longer: list[int] = (counts > ONE).nonzero()[0].tolist()
    if short is not None:
        fitting = columns.blocks[order[short:]] * config.block_size - scheduled[short:]
        counts[short:] = minimum(counts[short:], fitting)
    # A handful: who is seated had a share of the budget of that batch.
    wanted: dict[int, int] = {}
    for row in longer:
        wanted[row] = min(counts.item(row), config.max_tokens_per_row)
        counts[row] = 0
    (single,) = counts.nonzero()
    left = config.max_num_batched_tokens
    if config.preference is BatchPreference.DECODE_FIRST:
        left -= len(single)
        if left < 0:
            counts[single[left:]] = 0
            left = 0
    for row, most in wanted.items():
        counts[row] = share = min(most, left)
        left -= share
    if config.preference is BatchPreference.DECODE_FIRST and config.num_speculative_tokens:
        left = hold_back(state, order, counts, left, complete=short is None)
    return _Shares(scheduled, lacking, counts, single, able, left)


def _able(state: State, scheduled: Ints) -> tuple[int, Mask | None]:
    """Return how many requests can have a row, and which have none: None if all have one."""
    columns, order, most = state.columns, state.order, state.config.max_concurrency
    goes_on = scheduled < columns.final[order] - ONE
    intents = columns.intent[order]
    if count_nonzero(intents):
        goes_on &= intents == Intent.NONE.value
    able = int(count_nonzero(goes_on))
    if able == len(order) <= most:
        return able, None
    goes_on[goes_on.nonzero()[0][most:]] = False
    return able, ~goes_on


def _first_without_block(state: State, shares: _Shares) -> tuple[int, int] | None:
    """Return the first place that finds no block, and what all up to it need; None: all do."""
    available, running = state.pool.available, len(state.order)
    if _plenty(state, state.config.max_num_batched_tokens - shares.left + running, running):
        return None
    rows, needs = _growth(state, shares, shares.counts)
    needed = needs.cumsum()
    if not len(needed) or needed[-1] <= available:
        return None
    first = int((needed > available).argmax())
    return int(rows[first]), int(needed[first])


def _growth(state: State, shares: _Shares, counts: Ints) -> tuple[Ints, Ints]:
    """Return who needs blocks for so many tokens, and how many each."""
    held = state.columns.blocks[state.order]
    return growth(shares.scheduled + counts, held, state.block_size)


def _join(state: State, counts: Ints, hits: dict[int, Receipt], admitted: list[int]) -> Ints:
    """Put the admitted in their places of the running order; return what each gets in it."""
    order = _extended(state.order, [*hits])
    by_rank = state.columns.rank[order].argsort()
    state.order = order[by_rank]
    return _extended(counts, admitted)[by_rank]


def _extended(numbers: Ints, more: list[int]) -> Ints:
    """Return the numbers with a few more; `np.concatenate` takes twice as long."""
    before = len(numbers)
    extended = ints(before + len(more))
    extended[:before] = numbers
    extended[before:] = more
    return extended


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


def _admit(state: State, shares: _Shares) -> tuple[dict[int, Receipt], list[int]]:
    """Seat waiting requests, first in line only, while rows, tokens, seats and blocks last.

    A request is admitted when what it must compute of its known tokens fits into what is free
    beyond the needs of this batch and of running prompts. Returns the cached prefix that each new
    seat hit, and the tokens that each computes, in order.
    """
    config, columns, pool = state.config, state.columns, state.pool
    hits: dict[int, Receipt] = {}
    counts: list[int] = []
    rows = config.max_concurrency - shares.able
    if rows < 1 or shares.left < 1:
        return hits, counts
    _, promised = _growth(state, shares, maximum(shares.lacking, shares.counts))
    spare = pool.available - sum(promised.tolist())
    while (
        (stay := state.waiting.head()) is not None
        and len(hits) < rows
        and shares.left > 0
        and columns.free_seats
    ):
        known = stay.known
        keys = stay.keys[: (known - 1) // config.block_size]
        cached = pool.match(keys)
        reload = find(state, stay, keys, len(cached)) if state.tiers else None
        if state.tiers and must_wait(state, stay, reload):
            break
        idle, fresh = pool.idle_among(cached), -(-known // config.block_size) - len(cached)
        if spare - idle < fresh:
            break
        loading = EMPTY if reload is None else begin(state, stay, cached, reload)
        if loading is None:
            break
        spare -= idle + fresh
        state.waiting.remove(stay)
        prefix = concatenate((cached, loading)) if len(loading) else cached
        seat = state.seat(stay, prefix)
        hits[seat] = pool.hit(cached)
        missing = known - columns.scheduled.item(seat)
        counts.append(min(missing, config.max_tokens_per_row, shares.left))
        shares.left -= counts[-1]
    return hits, counts
