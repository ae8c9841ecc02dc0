"""The audit, law by law: each kind of damage is found, and named in its own sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter

import numpy as np
import pytest

from stepahead.arrays import Ints
from stepahead.blocks import BlockPool
from stepahead.state import State
from stepahead.views import Audit, Place, audit, view_blocks, view_pools
from stepahead_specs.runs import Copy, copies, wandered

#: Damages a state and returns the sentence that says so, or returns None where it cannot.
Damage = Callable[[State], str | None]


@cache
def taken() -> list[Copy]:
    """Return copies of kernels with tiers."""
    return [copy for seed in range(14) for copy in copies(wandered(seed, 6), 13)]


def states() -> Iterator[State]:
    """Iterate over sound states, of every kind that walks come across."""
    return (copy.state() for copy in taken())


def _queue_first(pool: BlockPool, block: int) -> None:
    """Let another block stand where the first of the queue does."""
    queue: Ints = attrgetter("_queue")(pool)
    position: Ints = attrgetter("_position")(pool)
    queue[position[pool.queued()[0]]] = block


def _queued_and_held(state: State) -> str | None:
    held = np.flatnonzero(state.pool.references > 0)
    queued = state.pool.queued()
    if not len(held) or not len(queued):
        return None
    # The queue's first entry names a block that somebody holds.
    _queue_first(state.pool, held[0])
    return "0 blocks are queued twice, 1 queued and held"


def _queued_twice(state: State) -> str | None:
    queued = state.pool.queued()
    if len(queued) < 2:
        return None
    _queue_first(state.pool, queued[1])
    return "1 blocks are queued twice, 0 queued and held"


def _pending_miscounted(state: State) -> str | None:
    count = state.pool.pending_count
    state.pool.pending_count += 1
    return f"{count} blocks are pending, {count + 1} are counted"


def _stuck(state: State) -> str | None:
    pool = state.pool
    waits = (pool.references == 0) & (pool.fence > pool.passed)
    waits[pool.queued()] = False
    if not waits.any():
        return None
    block = int(waits.argmax())
    pool.fence[block] = pool.passed
    return f"blocks [{block}] wait for a fence that has passed"


def _unaccounted(state: State) -> str | None:
    held = np.flatnonzero(state.pool.references > 0)
    if not len(held):
        return None
    state.pool.references[held[-1]] += 1
    return f"blocks [{held[-1]}] have references that no block table and no transfer accounts for"


def _key_unknown(pool: BlockPool, name: str) -> str | None:
    keyed = np.flatnonzero(pool.key >= 0)
    if not len(keyed):
        return None
    cells: Ints = attrgetter("_cells")(pool.index)
    cells[cells == keyed[0]] = -1
    return f"{name} to key and key to {name} disagree"


def _key_of_another(pool: BlockPool, name: str) -> str | None:
    keyed = np.flatnonzero(pool.key >= 0)
    if not len(keyed):
        return None
    pool.key[keyed[0]] += 1
    return f"{name} to key and key to {name} disagree"


def _page_lost(state: State) -> str | None:
    busy = np.flatnonzero(state.pages.references > 0)
    if not len(busy):
        return None
    state.pages.references[busy[0]] += 1
    return f"host pages [{busy[0]}] are neither in transfer nor free for use"


def _page_queued_in_transfer(state: State) -> str | None:
    busy = np.flatnonzero(state.pages.references > 0)
    queued = state.pages.queued()
    if not len(busy) or not len(queued):
        return None
    _queue_first(state.pages, busy[0])
    wrong = sorted((int(busy[0]), int(queued[0])))
    return f"host pages {wrong} are neither in transfer nor free for use"


def _seat_lost(state: State) -> str | None:
    free = len(state.columns.free_seats)
    if not free:
        return None
    state.columns.free_seats.pop()
    draining, taken, seats = len(state.fenced_seats), len(state.order), len(state.seated)
    return f"{free - 1} free, {draining} draining and {taken} taken seats are not {seats}"


DAMAGES: dict[str, Damage] = {
    "queued and held": _queued_and_held,
    "queued twice": _queued_twice,
    "pending miscounted": _pending_miscounted,
    "stuck": _stuck,
    "unaccounted": _unaccounted,
    "key unknown": lambda state: _key_unknown(state.pool, "block"),
    "key of another": lambda state: _key_of_another(state.pool, "block"),
    "page key unknown": lambda state: _key_unknown(state.pages, "page"),
    "page key of another": lambda state: _key_of_another(state.pages, "page"),
    "page lost": _page_lost,
    "page queued": _page_queued_in_transfer,
    "seat lost": _seat_lost,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_every_kind_of_damage_is_found_and_named(damage: Damage) -> None:
    """In whatever state it happens; a sound state has no problem."""
    found = 0
    for state in states():
        assert audit(state).problems == ()
        sentence = damage(state)
        if sentence is not None:
            found += 1
            assert sentence in audit(state).problems
    assert found


def test_counts_are_those_of_the_blocks_one_by_one() -> None:
    """Each block counts in one place, each seat as free or draining; nothing is left over."""
    seen: set[Place] = set()
    for state in states():
        told = audit(state)
        places = [view.place for view in view_blocks(state)]
        seen.update(places)
        assert told == Audit(
            free=places.count(Place.FREE),
            cached=places.count(Place.CACHED),
            held=places.count(Place.HELD),
            pending=places.count(Place.PENDING),
            total=len(places),
            free_seats=len(state.columns.free_seats),
            draining_seats=len(state.fenced_seats),
            problems=(),
        )
    assert seen == set(Place)


def test_every_block_is_where_its_holders_say() -> None:
    """References are block tables plus transfers; what nobody but a transfer holds is pending."""
    pinned = fenced = keyed = 0
    for state in states():
        pool, ledger = state.pool, state.ledger
        pins = [block for entry in ledger.open.values() for block in entry.held.tolist()]
        tables = [
            block
            for stay in state.live.values()
            if stay.seat >= 0
            for block in state.columns.held(stay.seat).tolist()
        ]
        queued = pool.queued().tolist()
        assert [view.block for view in view_blocks(state)] == list(range(pool.num_blocks))
        for view in view_blocks(state):
            block = view.block
            assert view.pins == pins.count(block)
            assert view.references == pins.count(block) + tables.count(block)
            key = int(pool.key[block])
            assert view.key == (None if key < 0 else key)
            fence = int(pool.fence[block])
            assert view.fence == (fence if fence > pool.passed else 0)
            held = block in tables
            waits = not held and block not in queued
            idle = Place.FREE if view.key is None else Place.CACHED
            assert view.place is (Place.HELD if held else Place.PENDING if waits else idle)
            pinned += view.pins > 0
            fenced += view.fence > 0
            keyed += view.key is not None
    assert pinned
    assert fenced
    assert keyed


def test_pools_as_columns_say_the_same() -> None:
    """Of the host pages there is nothing to tell where there are none."""
    for state in states():
        blocks, pages = view_pools(state)
        views = view_blocks(state)
        assert blocks.references.tolist() == [view.references for view in views]
        assert (pages is None) == (not state.config.host_pages)
        assert pages is None or pages.references.tolist() == state.pages.references.tolist()
