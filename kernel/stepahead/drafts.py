"""Speculation: how many drafts a decode row gets, and what becomes of them when they are back.

A draft is a guess of the host at a token that nobody has sampled yet. The device computes it
behind the row's last known token and samples at each position, so a row whose first ``a`` drafts
were right yields ``a + 1`` tokens. The kernel counts drafts and never sees their values: nothing is
known before it was sampled. Behind a batch whose drafts are not judged yet nobody knows where to go
on, so there are drafts with lookahead 0 only.

Drafts come last. They preempt nobody and keep nobody out for want of a block: they take what is
free when everybody else has theirs, and the blocks of rejected ones are given back with the batch.
Of the token budget they have a share where decode rows stand in its division, before prompts or
after them, but no decode row goes without its token for another one's drafts.
"""

from __future__ import annotations

import numpy as np

from stepahead.arrays import Ints
from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.commands import PrepareBatch
from stepahead.errors import HostContractError
from stepahead.reservation import blocks_needed, reserve, row_set
from stepahead.state import State
from stepahead.stretches import endings

# -- selection --------------------------------------------------------------------------------


def hold_back(state: State, seats: Ints, counts: Ints, left: int, *, complete: bool) -> int:
    """Keep tokens of the budget for drafts; the youngest prompts do with less.

    Args:
        state: the kernel's.
        seats: the running rows, in rank order.
        counts: tokens of each row without drafts; those of prompts are lowered here.
        left: tokens that nobody got.
        complete: every row has the blocks that it needs.

    Returns:
        Tokens left.
    """
    long = state.columns.known[seats] - state.columns.scheduled[seats] > 1
    prompts = counts[long]
    drafts = _share(state, seats, counts, left + int(prompts.sum()), complete=complete)
    missing = int(drafts.sum()) - left
    if missing <= 0:
        return -missing
    before = prompts.cumsum() - prompts
    counts[long] = np.clip(prompts.sum() - missing - before, 0, prompts)
    return 0


def speculate(
    state: State, seats: Ints, counts: Ints, hits: dict[int, Receipt], *, complete: bool
) -> PrepareBatch:
    """Make a batch of the planned rows, with the drafts that there is room for.

    The same rows may have other drafts next time, so a selection is never repeated.

    Args:
        state: the kernel's.
        seats: the rows, in rank order, with those that are admitted.
        counts: tokens of each row without drafts, at least 1.
        hits: as in `reserve`.
        complete: every row has the blocks that it needs.
    """
    budget = state.config.max_num_batched_tokens - int(counts.sum())
    drafts = _share(state, seats, counts, budget, complete=complete)
    if drafts.any():
        return reserve(state, row_set(state, seats, counts + drafts), hits, drafts)[1]
    return reserve(state, row_set(state, seats, counts), hits)[1]


def _share(state: State, seats: Ints, counts: Ints, budget: int, *, complete: bool) -> Ints:
    """Divide blocks and tokens that nobody needs among the decode rows, in rank order.

    A row stops where the blocks end or the budget; blocks first, since the rows behind the one with
    which the budget ends get no draft whatever blocks there are.
    """
    columns, size = state.columns, state.config.block_size
    wanted = _wanted(state, seats, counts)
    ends = columns.scheduled[seats] + counts
    needs = blocks_needed(ends, columns.blocks[seats], size)
    # Where somebody lacks a block, only places in blocks that are there already are used.
    free = max(state.pool.available - int(needs.sum()), 0) if complete else 0
    held = columns.blocks[seats] + needs
    more = blocks_needed(ends + wanted, held, size)
    granted = np.clip(free - (more.cumsum() - more), 0, more)
    wanted = np.minimum(wanted, np.maximum((held + granted) * size - ends, 0))
    drafts: Ints = np.clip(budget - (wanted.cumsum() - wanted), 0, wanted)
    return drafts


def _wanted(state: State, seats: Ints, counts: Ints) -> Ints:
    """Return how many drafts each row may have by its own limits.

    Only a row that reads one sampled token has any: behind a prompt there is nothing to go by yet.
    The draft at the final length would be the last token, which needs no place.
    """
    columns, config = state.columns, state.config
    scheduled, known = columns.scheduled[seats], columns.known[seats]
    decodes = (counts == 1) & (known == scheduled + 1) & (scheduled >= columns.prompt[seats])
    most = min(config.num_speculative_tokens, config.max_tokens_per_row - 1)
    wanted: Ints = np.where(decodes, np.minimum(columns.final[seats] - 1 - known, most), 0)
    return wanted


# -- results ----------------------------------------------------------------------------------


def meant(batch: Batch, tokens: Ints, accepted: Ints | None) -> Ints:
    """Return the tokens of a batch with drafts, 0 where they are to be ignored.

    Raises:
        HostContractError: ``accepted`` is not a number of drafts per sampling row, or there are not
            as many tokens as the most drafts of a row, and one.
    """
    name = f"batch {batch.batch_id}"
    drafts = _sampling_drafts(batch)
    if accepted is None:
        raise HostContractError(
            f"{name} has drafts and came back without accepted; say how many of each sampling "
            "row's were right"
        )
    if accepted.dtype != np.int64 or accepted.shape != drafts.shape:
        raise HostContractError(
            f"{name} came back with accepted of type {accepted.dtype} and shape {accepted.shape}; "
            f"give int64 of shape {drafts.shape}, one number per sampling row"
        )
    live = batch.live[batch.samples]
    wrong = live & ((accepted < 0) | (accepted > drafts))
    if wrong.any():
        row = int(wrong.argmax())
        raise HostContractError(
            f"{name} came back with {accepted[row]} accepted drafts in sampling row {row}, which "
            f"has {drafts[row]}; report 0 to {drafts[row]}"
        )
    expected = (1 + int(drafts.max(initial=0)), len(drafts))
    if tokens.shape != expected:
        raise HostContractError(
            f"{name} returned tokens of shape {tokens.shape}; expected {expected}, one more than "
            "the most drafts of a row, and one column per sampling row"
        )
    given: Ints = tokens.copy()
    given[np.arange(len(tokens))[:, None] > accepted] = 0
    return given


def take_in(state: State, batch: Batch, sampled: Ints, steps: Ints, accepted: Ints) -> Ints:
    """Write down the tokens of a batch with drafts, and take back what was rejected.

    Args:
        state: the kernel's.
        batch: the batch.
        sampled: the live sampling rows' seats.
        steps: what came back for them, from the top of each column.
        accepted: how many drafts of each were right.

    Returns:
        How many tokens of each row count: up to the first that ends the request.
    """
    columns = state.columns
    live = batch.live[batch.samples]
    state.counters.drafted_tokens += int(_sampling_drafts(batch)[live].sum())
    state.counters.accepted_tokens += int(accepted.sum())
    known = columns.known[sampled]
    lengths = known + np.arange(1, len(steps) + 1)[:, None]
    ending = endings(state, sampled, steps) & (lengths >= columns.floor[sampled])
    first = np.where(ending.any(axis=0), ending.argmax(axis=0) + 1, len(steps))
    counts: Ints = np.minimum(accepted + 1, first)
    at, rows = (np.arange(len(steps))[:, None] < counts).nonzero()
    offsets = known - columns.prompt[sampled]
    columns.tokens[sampled[rows], offsets[rows] + at] = steps[at, rows]
    columns.known[sampled] = known + counts
    _roll_back(state, sampled)
    return counts


def _roll_back(state: State, seats: Ints) -> None:
    """Forget the positions behind the newest token, and give back the blocks behind them.

    Nothing else of these requests is outstanding, and nobody reads there before it writes.
    """
    columns, size = state.columns, state.config.block_size
    ends = columns.known[seats] - 1
    columns.scheduled[seats] = columns.settled[seats] = ends
    keep = (ends + (size - 1)) // size
    held = columns.blocks[seats]
    void = [columns.table[seats[row], keep[row] : held[row]] for row in (held > keep).nonzero()[0]]
    if void:
        columns.blocks[seats] = np.minimum(held, keep)
        state.pool.put_back(np.concatenate(void))


def _sampling_drafts(batch: Batch) -> Ints:
    """Return the drafts of each sampling row."""
    if batch.drafts is None:
        return np.zeros(int(batch.samples.sum()), dtype=np.int64)
    return batch.drafts[batch.samples]
