"""The block pool against a plain list that does the same slowly."""

from __future__ import annotations

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


class PoolMachine(RuleBasedStateMachine):
    """Holders take, hit, share, release and undo; a list of blocks in queue order does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(1)
        self.queue: list[int] = []
        self.keys: dict[int, int] = {}
        self.holders: list[list[int]] = []
        self.pending: dict[int, int] = {}
        self.last: tuple[str, Receipt, list[int], dict[int, int]] | None = None
        self.fence = 0

    @initialize(blocks=st.integers(1, 9))
    def start(self, blocks: int) -> None:
        """Choose the size."""
        self.pool = BlockPool(blocks)
        self.pool.learn_keys(30)
        self.queue = list(range(blocks))

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """Blocks are handed out from the front and forget their keys."""
        count = data.draw(st.integers(0, len(self.queue)))
        queue, keys = list(self.queue), dict(self.keys)
        receipt = self.pool.take(count)
        expected, self.queue = self.queue[:count], self.queue[count:]
        assert receipt.blocks.tolist() == expected
        for block in expected:
            self.keys.pop(block, None)
        self.holders.append(expected)
        self.last = ("take", receipt, queue, keys)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """A holder's blocks without a key get one; whoever had it before loses it."""
        bare = [b for held in self.holders for b in held if b not in self.keys]
        if not bare:
            return
        block = data.draw(st.sampled_from(bare))
        key = data.draw(st.integers(0, 30))
        self.keys = {b: k for b, k in self.keys.items() if k != key}
        self.keys[block] = key
        self.pool.commit(np.array([block]), np.array([key]))
        self.last = None

    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        """A prefix of known keys is shared, wherever its blocks are."""
        wanted = data.draw(st.lists(st.integers(0, 30), unique=True, max_size=4))
        by_key = {key: block for block, key in self.keys.items()}
        expected: list[int] = []
        for key in wanted:
            if key not in by_key:
                break
            expected.append(by_key[key])
        queue, keys = list(self.queue), dict(self.keys)
        matched = self.pool.match(np.array(wanted, dtype=np.int64))
        assert matched.tolist() == expected
        assert self.pool.idle_among(matched) == len(set(expected) & set(self.queue))
        receipt = self.pool.hit(matched)
        self.queue = [b for b in self.queue if b not in expected]
        self.holders.append(expected)
        self.last = ("hit", receipt, queue, keys)

    @precondition(lambda self: self.last is not None)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """What was taken or hit last goes back without a trace; of what was taken, perhaps a part.

        The rest stays with its holder, and the others stand where they stood.
        """
        assert self.last is not None
        kind, receipt, queue, keys = self.last
        blocks = self.holders.pop()
        flags = st.lists(st.booleans(), min_size=len(blocks), max_size=len(blocks))
        back = data.draw(flags) if kind == "take" else [True] * len(blocks)
        kept = [block for block, goes in zip(blocks, back, strict=True) if not goes]
        self.queue = [block for block in queue if block not in kept]
        self.keys = {block: key for block, key in keys.items() if block not in kept}
        self.holders.append(kept)
        if kind == "take":
            self.pool.give_back(receipt.subset(np.array(back, dtype=bool)))
        else:
            self.pool.undo_hit(receipt)
        self.last = None

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), ahead=st.integers(0, 2))
    def release(self, data: st.DataObject, ahead: int) -> None:
        """A holder gives up its blocks, perhaps behind a fence: deepest first to the end."""
        held = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        fence = self.fence + ahead if ahead else 0
        loose = [b for b in held if all(b not in other for other in self.holders)]
        freed = self.pool.release(np.array(held, dtype=np.int64), fence)
        assert freed == len(loose)
        for block in held:
            waits = max(fence, self.pending.get(block, 0))
            if waits > self.fence:
                self.pending[block] = waits
        self.queue += [block for block in reversed(loose) if block not in self.pending]
        self.last = None

    @rule(by=st.integers(0, 2))
    def fences_pass(self, by: int) -> None:
        """Batches come back; what waited for them may be used again."""
        self.fence += by
        before = set(self.pool.queued().tolist())
        self.pool.pass_fence(self.fence)
        free = {
            b
            for b, waits in self.pending.items()
            if waits <= self.fence and not any(b in held for held in self.holders)
        }
        self.pending = {b: w for b, w in self.pending.items() if w > self.fence}
        appended = self.pool.queued().tolist()[len(self.queue) :]
        assert set(appended) == free - before
        self.queue += appended
        self.last = None

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

    @invariant()
    def a_copy_is_the_same(self) -> None:
        """A snapshot restored into another pool behaves the same."""
        other = BlockPool(self.pool.num_blocks)
        other.restore(self.pool.snapshot())
        assert other.queued().tolist() == self.queue
        assert all(array.dtype == np.int64 for array in other.snapshot().arrays)


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
