"""Stretches: several device steps with the same rows, advanced in one move.

A turn is what happens between two `BatchExecuted` in a steady state: the batch comes back, the next
one is dispatched, and one more is selected and prepared. `horizon` says how many turns may follow
without a decision; `leap` makes them, with the arithmetic of the single step, and `results.fill`
settles them with the last one, so that after it the state is exactly that of the single steps. The
kernel never learns of an EOS early: the host stops at the first ending token.

The batch that comes back first may be of another row set, from which the steady one follows: it
ends prompts, or has rows whose request has ended. It `leads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, ONE, Ints, Mask, arange, count_nonzero
from stepahead.batches import Batch
from stepahead.blocks import NOTHING, Receipt
from stepahead.commands import PrepareBatch
from stepahead.errors import HostContractError, KernelBug
from stepahead.events import BatchExecuted
from stepahead.host_cache import untouched
from stepahead.prefixes import commit, count_prefixes
from stepahead.state import Growth, State, Steady
from stepahead.tables import BatchState
from stepahead.timing import Pace, Turn

_NO_TIMES: Final[Ints] = np.empty((0, 4), dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class Repeat:
    """How a steady state would go on.

    Args:
        steps: device steps that the next `BatchExecuted` may answer at most, at least 2.
        select_after: each coming selection is made this long after the event that dispatched the
            batch before it, or as soon as the host is ready, whichever is later; ns. If it is not
            0, a turn whose preparation outlasts the device step, or that begins with one that did,
            must be reported by itself: the kernel learns from it.
        pace: just in time, where the kernel learns from the first ``pace.learns`` of the steps: it
            says what ``select_after`` is in the turns that they begin, and the last time for all
            turns behind. The times of these turns go with the event, see `BatchExecuted`. None:
            the kernel learns from none.
        batch_id: the dispatched batch, the first of them.
        seats, handles, epochs: the rows, shape ``(rows,)``. The dispatched batch may have others
            besides, whose requests have ended; what comes back of them is ignored.
        samples: the rows that return a token in every step.
        positions: KV position that the dispatched batch computes, the last one if it ends a prompt;
            shape ``(rows,)``.
        scheduled: KV position that the first of the coming selections computes.
        counts: positions that every later step computes, shape ``(rows,)``: 1, but for a prompt
            that one of the rows may be in the middle of, and that returns no token.
        block_turns, block_rows, block_slots, blocks: shape ``(new blocks,)``, in order of turn and
            row: the block tables' growth in the ``steps - 1`` selections to come.
    """

    steps: int
    select_after: int
    pace: Pace | None
    batch_id: int
    seats: Ints
    handles: Ints
    epochs: Ints
    samples: Mask
    positions: Ints
    scheduled: Ints
    counts: Ints
    block_turns: Ints
    block_rows: Ints
    block_slots: Ints
    blocks: Ints

    def selection(self, turn: int, batch_id: int) -> PrepareBatch:
        """Return what is selected in one turn, counted from 0, as the batch of that number."""
        first, last = self.block_turns.searchsorted(arange(turn, turn + 2)).tolist()
        return PrepareBatch(
            batch_id=batch_id,
            seats=self.seats,
            handles=self.handles,
            epochs=self.epochs,
            positions=self.scheduled + turn * self.counts,
            token_counts=self.counts,
            samples=self.samples,
            block_rows=self.block_rows[first:last],
            block_slots=self.block_slots[first:last],
            blocks=self.blocks[first:last],
            history_rows=EMPTY,
            history_positions=EMPTY,
            history_tokens=EMPTY,
        )


def horizon(state: State, limit: int) -> int:
    """Return how many turns, at most ``limit``, keep the rows that are selected now."""
    steady = state.steady
    if steady is None or steady.turns < 1 or not _repeats(state, steady):
        return 0
    available = untouched(state)
    # So many turns take more blocks than there are, whatever the rows; no need to look further.
    most = (available // len(steady.seats) + 2) * state.config.block_size
    turns = min(steady.turns, limit, most)
    if state.timing is not None:
        # Each new row set may be of a size that is new, and none may be forgotten meanwhile.
        room, news = state.timing.spans.room, sum(batch.fresh for batch in state.outstanding)
        if not steady.decode:
            turns = min(turns, room)
        elif news > max(room, 1):
            turns = 0
    if turns < 1:
        return 0
    block_turns = _growth(state, steady, turns).block_turns
    # The turn of the first block that is not there cannot be made.
    return turns if len(block_turns) <= available else int(block_turns[available])


def _repeats(state: State, steady: Steady) -> bool:
    """Tell whether every outstanding batch has the same rows, and nothing waits for a later one."""
    outstanding, timing = state.outstanding, state.timing
    if len(outstanding) != state.config.lookahead + 1 or state.filled:
        return False
    running, *behind = outstanding
    if running.state is not BatchState.DISPATCHED or state.paused or state.ledger.open:
        return False
    if running.batch_id + len(behind) != outstanding[-1].batch_id:
        return False  # a batch between them was refused, and its number is used no more
    if running.hits and state.tiers:
        return False  # as it comes back, what was hit is copied to the host
    same = _is_one(state, steady, running)
    if (
        timing is not None
        and not behind
        and (not same or timing.learns(running.batch_id, fresh=running.fresh))
    ):
        return False  # nothing is prepared ahead, and selected with the device idle
    return (same or _leads(state, steady, running)) and all(
        batch.state is BatchState.PREPARED and _is_one(state, steady, batch) for batch in behind
    )


def _leads(state: State, steady: Steady, batch: Batch) -> bool:
    """Tell whether decoding goes on with the live rows of a batch that ends all their prompts.

    Nobody waits who may join them for what it keys or sets free.
    """
    if not steady.decode or len(state.waiting) or batch.drafts is not None or batch.loads:
        return False
    seats, samples = batch.seats, batch.samples
    if batch.dead:
        seats, samples = seats[batch.live], samples[batch.live]
    return seats.tobytes() == steady.seats.tobytes() and 0 not in samples.tobytes()


def _is_one(state: State, steady: Steady, batch: Batch) -> bool:
    """Tell whether a batch computes as much of the same rows, all of them live."""
    if batch.dead:
        return False
    if batch.seats is steady.seats:
        return batch.decode is steady.decode
    if steady.decode or batch.seats.tobytes() != steady.seats.tobytes():
        return False
    in_prompt = batch.positions < state.columns.prompt[batch.seats]
    same = (batch.ends - batch.positions == steady.counts) & (in_prompt != steady.samples)
    # Who computes again what was sampled before a preemption returns no token behind its prompt.
    same &= batch.samples == steady.samples
    return bool(same[same.argmin()])


def repeat(state: State, limit: int) -> Repeat | None:
    """Describe the next turns for a host that can take several at once; None when there is none."""
    turns = horizon(state, limit)
    if turns < 1:
        return None
    batch, steady, timing = state.outstanding[0], _kept(state), state.timing
    growth = _growth(state, steady, turns)
    pace = _pace(state, steady)
    if pace is not None:
        pace = pace.apart(turns)
    ends, scheduled = batch.ends, state.outstanding[-1].ends
    if batch.dead:
        ends = ends[batch.live]
        scheduled = ends if len(state.outstanding) == 1 else scheduled
    return Repeat(
        steps=turns + 1,
        select_after=(
            0
            if timing is None or pace is not None
            else timing.delay(batch.volume, fresh=batch.fresh)
        ),
        pace=pace,
        batch_id=batch.batch_id,
        seats=steady.seats,
        handles=steady.handles,
        epochs=steady.epochs,
        samples=steady.samples,
        positions=ends - steady.counts,
        scheduled=scheduled,
        counts=steady.counts,
        block_turns=growth.block_turns,
        block_rows=growth.rows,
        block_slots=growth.slots,
        blocks=state.pool.peek(len(growth.rows)),
    )


def _pace(state: State, steady: Steady) -> Pace | None:
    """Return what is learnt from the coming turns, or None where nothing is."""
    if state.timing is None or len(state.outstanding) == 1:
        return None
    running, *behind = [
        Turn(batch.batch_id, batch.volume, batch.fresh) for batch in state.outstanding
    ]
    dispatched_at = state.outstanding[0].dispatched_at
    after = state.outstanding[1].prepared_at - dispatched_at
    pace = Pace(state.timing, running, behind, dispatched_at, after, prompt=not steady.decode)
    return pace if pace.learns else None


def cross(state: State, batch: Batch, event: BatchExecuted, turns: int) -> Ints:
    """Make the turns that came back at once with ``batch``, and learn from them.

    Returns the tokens of the rows that are left, shape ``(turns + 1, such rows that sample)``.

    Raises:
        HostContractError: the rows do not last so long, or a row or the times say otherwise.
    """
    tokens = event.tokens
    if turns:
        allowed = horizon(state, turns)
        if allowed < turns:
            raise HostContractError(
                f"batch {batch.batch_id} came back after {turns + 1} steps, {allowed + 1} keep its "
                "rows; ask Kernel.repeat first"
            )
        if batch.dead:
            tokens = tokens.take(batch.live[batch.samples].nonzero()[0], 1)
        check_turns(state, batch, tokens[:-1])
    learn_turns(state, event, turns)
    if turns:
        leap(state, turns)
    return tokens


def check_turns(state: State, batch: Batch, tokens: Ints) -> None:
    """Check that no token before the last step ends a request; shape ``(turns, rows)``.

    Raises:
        HostContractError: the host did not stop there.
    """
    columns, steady = state.columns, _kept(state)
    seats = steady.seats if steady.decode else steady.seats[steady.samples]
    ending = endings(state, seats, tokens)
    if not count_nonzero(ending):
        return
    lengths = columns.known[seats] + arange(1, len(tokens) + 1)[:, None]
    steps, rows = (ending & (lengths >= columns.floor[seats])).nonzero()
    if len(steps):
        ended = columns.handle[seats[rows[0]]]
        raise HostContractError(
            f"batch {batch.batch_id} came back after {len(tokens) + 1} steps, but request {ended} "
            f"ended with step {steps[0] + 1}; stop at the first token that ends a request"
        )


def endings(state: State, seats: Ints, tokens: Ints) -> Mask:
    """Mark the EOS and stop tokens of each request, whatever its floor; shape ``(steps, rows)``."""
    ending: Mask = tokens == state.columns.eos[seats]
    if state.stop_sets:
        for row, stay in enumerate(state.stays(seats)):
            for token in stay.stops:
                ending[:, row] |= tokens[:, row] == token
    return ending


def learn_turns(state: State, event: BatchExecuted, turns: int) -> None:
    """Learn from the turns of a stretch what just-in-time selection learns from single steps.

    Raises:
        HostContractError: their times are missing, too many, or not in order.
    """
    running, given = state.outstanding[0], event.turn_times
    pace = _pace(state, _kept(state)) if turns else None
    due = 0 if pace is None else min(pace.learns, turns)
    times = _NO_TIMES if given is None else given
    if times.shape != (due, 4) or times.dtype != np.int64 or (given is not None and not due):
        wanted = f"int64 of shape ({due}, 4)" if due else "None"
        raise HostContractError(
            f"batch {event.batch_id} came back after {turns + 1} step{'s' * (turns > 0)} with "
            f"turn_times of shape {times.shape} and type {times.dtype}, but the kernel learns from "
            f"{due} of the turns between them; give {wanted}, or report the steps one by one"
        )
    if pace is None:
        return
    rows: list[list[int]] = times.tolist()
    end = event.at if event.ended_at < 0 else event.ended_at
    before, in_order = running.dispatched_at, True
    for ended_at, at, ready_at, built in rows:
        in_order = in_order and before <= ended_at <= at <= ready_at and built >= 0
        before = ready_at
    if not in_order or before > end:
        raise HostContractError(
            f"batch {event.batch_id} was dispatched at {running.dispatched_at} and came back with "
            f"turn_times {rows}, its last step ended at {end}; report of each turn when the device "
            "was done, when the host said so, and when it was ready, in order of time, and how "
            "long it then prepared a batch"
        )
    for ended_at, at, ready_at, took in rows:
        pace.executed(ended_at - running.dispatched_at)
        pace.ready(ready_at - at)
        pace.built(took)
        running.dispatched_at = at


def leap(state: State, turns: int) -> None:
    """Make whole turns, but for what `fill` settles at once: tokens, counts and keys of all steps.

    The caller has checked that `horizon` allows them.
    """
    steady = _kept(state)
    columns, outstanding, seats = state.columns, state.outstanding, steady.seats
    growth = _growth(state, steady, turns)
    if not _is_one(state, steady, outstanding[0]):
        _settle(state, outstanding[0], steady)
    for batch in outstanding:
        batch.batch_id += turns
    state.pass_fences()
    receipt = state.pool.take(len(growth.rows))
    growing = seats[growth.rows]
    columns.table[growing, growth.slots] = receipt.blocks
    # Slots ascend with the turns, and of several values for one seat the last one stays.
    columns.blocks[growing] = growth.slots + ONE
    _renumber(outstanding, steady, growth, receipt)
    columns.scheduled[seats] = outstanding[-1].ends
    state.next_batch += turns
    state.joinable = False
    steady.turns -= turns


def _settle(state: State, batch: Batch, steady: Steady) -> None:
    """Settle what a batch that leads does beside the steady rows, and make it one of them."""
    columns, ends = state.columns, batch.ends
    if batch.dead:
        ends = ends[batch.live]
    if batch.hits:
        count_prefixes(state, batch)
    if not batch.decode:
        columns.settled[steady.seats] = ends
        commit(state, batch.seats[batch.positions < columns.prompt[batch.seats]])
    batch.seats, batch.handles, batch.epochs = steady.seats, steady.handles, steady.epochs
    batch.samples, batch.fill_rows = steady.samples, steady.fill_rows
    batch.live, batch.dead, batch.hits = state.all_live[: len(ends)], {}, {}
    batch.decode, batch.volume = True, steady.volume
    batch.positions, batch.ends = ends - steady.counts, ends


def _renumber(outstanding: list[Batch], steady: Steady, growth: Growth, receipt: Receipt) -> None:
    """Make each outstanding batch the one that stands in its place after the turns of ``growth``.

    What a batch was granted must stay undoable, so each gets its own part of the receipt.
    """
    turns = growth.turns
    kept = [(batch.grant, batch.grant_rows, batch.fresh) for batch in outstanding[turns:]]
    fresh = not steady.decode
    lasts = arange(max(turns - len(outstanding), 0), turns + 1)
    bounds: list[int] = growth.block_turns.searchsorted(lasts).tolist()
    parts = [
        (receipt.part(start, stop), growth.rows[start:stop], fresh)
        if start < stop
        else (NOTHING, EMPTY, fresh)
        for start, stop in pairwise(bounds)
    ]
    moved = turns * steady.counts
    begins = outstanding[0].positions + moved
    volume = outstanding[-1].volume
    for ahead, (batch, part) in enumerate(
        zip(outstanding, kept + parts, strict=True), start=turns + 1 - len(outstanding)
    ):
        batch.positions = begins
        begins = batch.ends = batch.ends + moved
        batch.grant, batch.grant_rows, batch.fresh = part
        if not steady.decode:
            # Counted from the newest: from the first, rows may have been dropped.
            batch.volume = volume.further(ahead)


def _kept(state: State) -> Steady:
    if state.steady is None:
        raise KernelBug("a stretch was found without a row set to repeat")
    return state.steady


def _growth(state: State, steady: Steady, turns: int) -> Growth:
    """Return the blocks that ``turns`` selections take."""
    known = steady.growth
    if known is None or steady.growth_at != steady.turns or turns > known.turns:
        known = (_grown if steady.decode else _grown_with_prompt)(state, steady, turns)
        steady.growth_at = steady.turns
    steady.growth = known.until(turns)
    return steady.growth


def _grown(state: State, steady: Steady, turns: int) -> Growth:
    """Return the growth of decode rows: each takes a block every ``block_size`` turns."""
    columns, size, seats = state.columns, state.config.block_size, steady.seats
    held = columns.blocks[seats]
    # The turn that finds a row's last block full. It comes within one block, so that in each lap
    # of as many turns the rows follow each other in the same order.
    first = held * state.block_size - columns.scheduled[seats]
    rows = first.argsort(kind="stable")
    first, slots = first[rows], held[rows]
    laps = -(-turns // size)
    if laps > 1:
        lap = columns.slots[:laps, None]
        first, slots = (first + lap * size).ravel(), (slots + lap).ravel()
        rows = rows[None].repeat(laps, 0).ravel()
    return Growth(laps * size, first, rows, slots)


def _grown_with_prompt(state: State, steady: Steady, turns: int) -> Growth:
    """Return the growth where one row may take several blocks in every turn."""
    size, count = state.config.block_size, len(steady.seats)
    begins = state.columns.scheduled[steady.seats]
    ends = begins + arange(turns + 1)[:, None] * steady.counts
    held = (ends + (size - 1)) // size
    # By turn and row: how many blocks it takes.
    new = (held[1:] - held[:-1]).ravel()
    (places,) = new.nonzero()
    new, first = new[places], held.ravel()[places]
    block_turns, rows = (places // count).repeat(new), (places % count).repeat(new)
    slots = (first - (new.cumsum() - new)).repeat(new) + arange(len(rows))
    return Growth(turns, block_turns, rows, slots)
