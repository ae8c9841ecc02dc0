"""Cached prefixes of prompts: what is keyed as it is settled, and what was found."""

from __future__ import annotations

from stepahead.arrays import Ints
from stepahead.batches import Batch
from stepahead.state import State


def commit(state: State, seats: Ints) -> None:
    """Give what is settled of the prompts in ``seats`` its keys, in that order."""
    columns, size = state.columns, state.config.block_size
    for stay in state.stays(seats):
        seat = stay.seat
        done = columns.committed.item(seat)
        upto = min(columns.settled.item(seat) // size, len(stay.keys))
        if upto > done:
            state.pool.commit(columns.table[seat, done:upto], stay.keys[done:upto])
            columns.committed[seat] = upto
            # The first in line may find more of its prefix now.
            if len(state.waiting):
                state.steady = None


def count_prefixes(state: State, batch: Batch) -> None:
    """Count what the requests that the batch seated found in the cache, and what they do again.

    Here and not when they are selected: an undone selection leaves no trace. What the batch
    computes must not be settled yet: until then, that is what was found.
    """
    counters = state.counters
    for seat in batch.hits:
        stay = state.seated[seat]
        if stay is None:
            continue
        cached = state.columns.settled.item(seat)
        if len(stay.keys):
            counters.queried_tokens += stay.known
            counters.hit_tokens += cached
        counters.recomputed_tokens += max(0, stay.settled_before - cached)
