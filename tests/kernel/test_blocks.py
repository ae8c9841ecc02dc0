"""The block pool against a plain list that does the same slowly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stepahead.blocks import BlockPool, Receipt
from stepahead.errors import KernelBug

#: Some are neighbours, some far apart, as the keys of long prompts are.
KEYS = (0, 1, 2, 510, 511, 512, 513, 1023, 1024, 5000, 9999, 10_000)


@dataclass(frozen=True)
class Undoable:
    """A selection that may be undone: its holder, and what its blocks were before."""

    receipt: Receipt
    holder: list[int]
    queued: frozenset[int]
    keys: dict[int, int]
    taken: bool


class PoolMachine(RuleBasedStateMachine):
    """Holders take, hit, share, release and undo; a list of blocks in queue order does the same.

    A block keeps its rank in the queue while it is away, so that what is undone later goes back to
    where it stood; only when the pool has compacted its memory meanwhile (its own affair, which
    `layout` tells) do taken blocks come first and hit ones last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(1)
        self.queue: list[int] = []
        self.rank: dict[int, int] = {}
        self.keys: dict[int, int] = {}
        self.holders: list[list[int]] = []
        self.pending: dict[int, int] = {}
        #: Of them, those that nobody held at some time since.
        self.listed: set[int] = set()
        self.undoable: list[Undoable] = []
        self.fence = 0

    @initialize(blocks=st.integers(1, 9))
    def start(self, blocks: int) -> None:
        """Choose the size."""
        self.pool = BlockPool(blocks)
        self.pool.learn_keys(KEYS[-1])
        self._append(range(blocks))

    def _append(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.rank[block] = max(self.rank.values(), default=0) + 1
            self.queue.append(block)

    def _holds(self, block: int) -> bool:
        return any(block in held for held in self.holders)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """Blocks are handed out from the front and forget their keys."""
        count = data.draw(st.integers(0, len(self.queue)))
        assert self.pool.peek(count).tolist() == self.queue[:count]
        receipt = self.pool.take(count)
        blocks, self.queue = self.queue[:count], self.queue[count:]
        assert receipt.blocks.tolist() == blocks
        lost = {block: self.keys.pop(block) for block in blocks if block in self.keys}
        self.holders.append(blocks)
        self.undoable.append(Undoable(receipt, blocks, frozenset(blocks), lost, taken=True))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """A holder's blocks without a key get one; whoever had it before loses it."""
        bare = [b for held in self.holders for b in held if b not in self.keys]
        if not bare:
            return
        block = data.draw(st.sampled_from(bare))
        key = data.draw(st.sampled_from(KEYS))
        self.keys = {b: k for b, k in self.keys.items() if k != key}
        self.keys[block] = key
        assert self.pool.count_use(np.array([block])).tolist() == [self.pool.uses[block]] != [0]
        self.pool.commit(np.array([block]), np.array([key]))
        assert self.pool.uses[block] == 0
        self.undoable = [entry for entry in self.undoable if block not in entry.holder]

    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        """A prefix of known keys is shared, wherever its blocks are."""
        wanted = data.draw(st.lists(st.sampled_from([*self.keys.values(), KEYS[-1]]), unique=True))
        by_key = {key: block for block, key in self.keys.items()}
        blocks = [by_key[key] for key in takewhile(by_key.__contains__, wanted)]
        matched = self.pool.match(np.array(wanted, dtype=np.int64))
        assert matched.tolist() == blocks
        assert self.pool.idle_among(matched) == len(set(blocks) & set(self.queue))
        receipt = self.pool.hit(matched)
        queued = frozenset(blocks) & frozenset(self.queue)
        self.queue = [block for block in self.queue if block not in blocks]
        self.holders.append(blocks)
        self.undoable.append(Undoable(receipt, blocks, queued, {}, taken=False))

    @precondition(lambda self: self.undoable)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """The newest selection goes back without a trace; of what was taken, perhaps a part."""
        entry = self.undoable.pop()
        blocks = entry.holder
        flags = st.lists(st.booleans(), min_size=len(blocks), max_size=len(blocks))
        back = data.draw(flags) if entry.taken else [True] * len(blocks)
        kept = [block for block, goes in zip(blocks, back, strict=True) if not goes]
        self.holders = [kept if held is blocks else held for held in self.holders]
        home = entry.receipt.layout == attrgetter("_layout")(self.pool)
        gone = [block for block in blocks if block not in kept and not self._holds(block)]
        loose = [block for block in gone if self.pending.get(block, 0) <= self.fence]
        if entry.taken:
            self.pool.give_back(entry.receipt.subset(np.array(back, dtype=bool)))
            if not home:
                first = min((self.rank[block] for block in self.queue), default=0)
                self.rank |= {b: first - len(loose) + place for place, b in enumerate(loose)}
            self.queue = sorted([*loose, *self.queue], key=self.rank.__getitem__)
        else:
            self.pool.undo_hit(entry.receipt)
            there = [block for block in loose if home and block in entry.queued]
            self.queue = sorted([*there, *self.queue], key=self.rank.__getitem__)
            self._append(block for block in reversed(loose) if block not in there)
        for block, key in entry.keys.items():
            if block in gone and key not in self.keys.values():
                self.keys[block] = key

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), ahead=st.integers(0, 2))
    def release(self, data: st.DataObject, ahead: int) -> None:
        """A holder gives up its blocks, perhaps behind a fence: deepest first to the end."""
        held = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.undoable = [entry for entry in self.undoable if entry.holder is not held]
        fence = self.fence + ahead if ahead else 0
        loose = [block for block in held if not self._holds(block)]
        assert self.pool.release(np.array(held, dtype=np.int64), fence) == len(loose)
        for block in held:
            waits = max(fence, self.pending.get(block, 0))
            if waits > self.fence:
                self.pending[block] = waits
                self.listed |= {block} & set(loose)
        self._append(block for block in reversed(loose) if block not in self.pending)

    @rule(by=st.integers(0, 2))
    def fences_pass(self, by: int) -> None:
        """Batches come back; what waited for them may be used again."""
        self.fence += by
        self.pool.pass_fence(self.fence)
        self._passed({b for b, waits in self.pending.items() if waits <= self.fence})

    @rule(ahead=st.integers(1, 2))
    def fence_is_dropped(self, ahead: int) -> None:
        """Nothing will touch what waits for exactly this batch."""
        fence = self.fence + ahead
        waiting = {b for b, waits in self.pending.items() if waits == fence}
        self.pool.drop_fence(fence)
        # Of a block that was held all the time, the fence stays: whoever lets go last drops it.
        self._passed(waiting & self.listed)

    def _passed(self, blocks: set[int]) -> None:
        self.pending = {b: waits for b, waits in self.pending.items() if b not in blocks}
        self.listed -= blocks
        free = {block for block in blocks if not self._holds(block)}
        appended = self.pool.queued().tolist()[len(self.queue) :]
        assert set(appended) == free
        assert len(appended) == len(free)
        self._append(appended)

    @invariant()
    def agrees(self) -> None:
        """Queue, keys, references and counts are the list's."""
        pool = self.pool
        assert pool.queued().tolist() == self.queue
        assert pool.available == len(self.queue)
        held = [b for h in self.holders for b in h]
        assert pool.references.tolist() == [held.count(b) for b in range(pool.num_blocks)]
        assert {b: int(k) for b, k in enumerate(pool.key) if k >= 0} == self.keys
        waiting = [b for b in self.pending if b not in held]
        assert pool.pending_count == len(waiting)
        assert pool.quiet() == all(block in self.queue for block in self.keys)

    @invariant()
    def a_copy_is_the_same(self) -> None:
        """A snapshot restored into another pool behaves the same, and is integers."""
        saved = self.pool.snapshot()
        other = BlockPool(self.pool.num_blocks)
        other.restore(saved)
        assert other.queued().tolist() == self.queue
        assert all(array.dtype == np.int64 for array in saved.arrays)
        self.pool = other


def test_the_pool_agrees_with_a_plain_list_whatever_is_asked_of_it() -> None:
    """Order, keys, references, fences and undo, in any sequence."""
    run_state_machine_as_test(PoolMachine)


def test_more_blocks_than_there_are_is_a_bug_not_a_shortage() -> None:
    """The planner asks before it takes; a pool that is asked for too much was not asked."""
    with pytest.raises(KernelBug) as caught:
        BlockPool(3).take(4)
    assert str(caught.value) == "4 blocks taken, 3 available"


def test_a_block_released_twice_is_found_at_once() -> None:
    """A second release of the same reference must not free somebody else's block."""
    pool = BlockPool(2)
    block = pool.take(1).blocks
    pool.release(block, 0)
    with pytest.raises(KernelBug) as caught:
        pool.release(block, 0)
    assert str(caught.value) == "a block was released more often than it was taken"


@given(rounds=st.integers(1, 40), size=st.integers(1, 5))
def test_the_queue_lives_in_bounded_memory(rounds: int, size: int) -> None:
    """However long blocks go round, order is kept and the queue does not grow."""
    pool = BlockPool(size)
    expected = list(range(size))
    for _ in range(rounds):
        taken = pool.take(1).blocks
        assert taken[0] == expected[0]
        expected = [*expected[1:], expected[0]]
        pool.release(taken, 0)
    assert pool.queued().tolist() == expected


@pytest.mark.parametrize("holes", [60, 70, 200, 398])
@pytest.mark.parametrize("count", [1, 2])
def test_blocks_are_found_behind_many_holes(holes: int, count: int) -> None:
    """What is hit leaves holes, here more of them in a row than a search looks at first."""
    pool = BlockPool(400)
    pool.learn_keys(400)
    blocks = pool.take(400).blocks
    pool.commit(blocks, np.arange(400))
    pool.release(blocks[::-1], 0)
    pool.hit(pool.match(np.arange(1, holes + 1)))
    expected = [0, *range(holes + 1, 400)]
    assert pool.peek(count).tolist() == expected[:count]
    assert pool.queued().tolist() == expected
    assert pool.take(count).blocks.tolist() == expected[:count]


def test_only_a_quiet_pool_may_forget() -> None:
    """A pool is quiet when no block with a key is held; then its keys may go."""
    pool = BlockPool(4)
    blocks = pool.take(2).blocks
    pool.commit(blocks, np.array([7, 8]))
    pool.release(blocks[1:], 0)
    assert not pool.quiet()
    pool.release(blocks[:1], 0)
    assert pool.quiet()
    assert pool.match(np.array([7, 8])).tolist() == blocks.tolist()
    pool.forget_all()
    assert pool.match(np.array([7])).tolist() == []


def test_a_waiting_block_that_is_hit_and_given_back_is_listed_once() -> None:
    """A selection that is refused again and again while a batch runs must not leave a trace."""
    pool = BlockPool(2)
    blocks = pool.take(2).blocks
    pool.commit(blocks, np.array([7, 8]))
    pool.release(blocks, 1)
    before = [listed.tolist() for _, listed in pool.pending]
    for _ in range(3):
        pool.undo_hit(pool.hit(pool.match(np.array([7, 8]))))
        assert [listed.tolist() for _, listed in pool.pending] == before
        assert pool.pending_count == 2
    for _ in range(3):
        pool.release(pool.hit(pool.match(np.array([7]))).blocks, 1)
        assert [listed.tolist() for _, listed in pool.pending] == before
    pool.pass_fence(1)
    assert pool.queued().tolist() == [1, 0]
    assert (pool.pending, pool.pending_count) == ([], 0)
