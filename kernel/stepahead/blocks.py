"""The KV block pool: who holds a block, what it contains, and when it may be written again.

A block's place is derived, the first that applies: **held** (references > 0), **pending** (its
fence has not passed: a batch that is not back yet may touch it), **cached** (it has a key, the
identity of its content), **free**. Free and cached blocks share one queue, oldest release first:
what is popped from the front is reused, and forgets its key. A prompt's blocks are released deepest
first, so of an unused prefix the leaves go before what they hang from.

The pool knows nothing of requests; it hands out and takes back block numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from stepahead.arrays import EMPTY, ONE, Ints, Mask, arange, count_nonzero, ints, maximum, quick
from stepahead.errors import KernelBug
from stepahead.index import KeyIndex

# Instead of a place in the queue: none; none yet, but one among those that wait for their fence.
# That one is kept by a block that was hit while it waited, should it be released before.
_NOWHERE: Final = -1
_LISTED: Final = -2
_HOLE: Final = -1
_WINDOW: Final = 64  # entries of the queue that a search looks at beyond twice the blocks wanted
_ROOM: Final = 4  # times the blocks: what may be appended to the queue before it is compacted
NO_KEY: Final = -1


@dataclass(slots=True)
class Receipt:
    """Ints taken out of the queue, with what it needs to put them back without a trace.

    ``queued_at`` is where they stood (negative: not in the queue), valid while the queue keeps
    its ``layout``; ``forgotten`` are the keys that granted blocks lost (empty for a hit).
    """

    blocks: Ints
    queued_at: Ints
    layout: int
    forgotten: Ints

    def part(self, start: int, stop: int) -> Receipt:
        """Return the receipt of some granted blocks in a row."""
        kept = slice(start, stop)
        return Receipt(self.blocks[kept], self.queued_at[kept], self.layout, self.forgotten[kept])

    def subset(self, mask: Mask) -> Receipt:
        """Return the receipt of some of the granted blocks."""
        if mask.all():
            return self
        return Receipt(self.blocks[mask], self.queued_at[mask], self.layout, self.forgotten[mask])


#: The receipt of no block.
NOTHING: Final = Receipt(EMPTY, EMPTY, 0, EMPTY)


class PoolCopy(NamedTuple):
    """A copy of a `BlockPool`."""

    arrays: tuple[Ints, ...]
    counts: tuple[int, int, int, int, int]
    fences: tuple[int, int]
    pending: tuple[tuple[int, Ints], ...]
    key_room: int


class BlockPool:
    """Reference counts, keys, fences and the one queue; all arrays have shape ``(num_blocks,)``.

    ``uses`` counts how often a block was hit since it got its key. Host pages are a pool of their
    own: what a transfer reads or writes has its reference.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references: Ints = quick(np.zeros(num_blocks, dtype=np.int64))
        self.fence: Ints = quick(np.zeros(num_blocks, dtype=np.int64))
        self.uses: Ints = quick(np.zeros(num_blocks, dtype=np.int64))
        self._counted = False  # whether any use was
        self.index = KeyIndex(num_blocks)
        self.key: Ints = self.index.key
        # Entries [head, tail) of the queue; a hit leaves a hole. Room on both sides: releases are
        # appended, an undone grant goes back to the front.
        self._queue: Ints = quick(np.full((2 + _ROOM) * num_blocks + 1, _HOLE))
        self._queue[num_blocks : 2 * num_blocks] = arange(num_blocks)
        self._places: Ints = arange(len(self._queue))  # to take slices of
        #: The place of each queued block; of others it means something only if it is `_LISTED`.
        self._position: Ints = self._places[num_blocks : 2 * num_blocks].copy()
        self._head = num_blocks
        self._tail = 2 * num_blocks
        self._layout = 0
        self.available = num_blocks
        # Waiting blocks in order of release, each at most once, with the oldest fence among them;
        # those hit meanwhile drop out when their fence passes.
        self.pending: list[tuple[int, Ints]] = []
        self.pending_count = 0
        self.passed = 0
        self._newest_fence = 0

    # -- allocation ---------------------------------------------------------------------------

    def peek(self, count: int) -> Ints:
        """Return the next ``count`` blocks that `take` would hand out, without taking them."""
        return self._first(count)[0]

    def take(self, count: int) -> Receipt:
        """Pop ``count`` blocks for one holder each; they forget what they contained.

        Raises:
            KernelBug: fewer than ``count`` blocks are available; the planner checks before.
        """
        if count > self.available:
            raise KernelBug(f"{count} blocks taken, {self.available} available")
        if not count:
            return NOTHING
        blocks, queued_at = self._first(count)
        self._head = queued_at.item(-1) + 1
        self.available -= count
        self.references[blocks] = 1
        forgotten = self.key[blocks]
        self.key[blocks] = NO_KEY
        return Receipt(blocks, queued_at, self._layout, forgotten)

    def give_back(self, receipt: Receipt) -> None:
        """Undo a `take` whose blocks nobody wrote: back to where they stood, keys restored."""
        blocks = receipt.blocks
        if not len(blocks):
            return
        self.references[blocks] = 0
        if receipt.layout == self._layout:
            self._return_home(blocks, receipt.queued_at)
        else:
            self._return_first(blocks)
        lost = (receipt.forgotten >= 0) & (self.index.find(receipt.forgotten) < 0)
        self.index.put(receipt.forgotten[lost], blocks[lost])

    def release(self, blocks: Ints, fence: int) -> int:
        """Drop one reference of each block; return how many got none left.

        Blocks are distinct, shallowest first. Those without references wait until ``fence`` (a
        batch number; 0: nothing in flight) passes.
        """
        if not len(blocks):
            return 0
        left = self.references[blocks] - ONE
        first = left.argmin()
        if left[first] < 0:
            raise KernelBug("a block was released more often than it was taken")
        self.references[blocks] = left
        rest = left[first:]
        # Mostly it is a prefix that others hold.
        loose = blocks[left == 0] if rest[rest.argmax()] else blocks[first:]
        loose = loose[::-1]
        if fence > self.passed:
            # Also of blocks that others hold: whoever lets go last must wait for this row too.
            if fence < self._newest_fence:
                self.fence[blocks] = maximum(self.fence[blocks], fence)
            else:
                self.fence[blocks] = self._newest_fence = fence
            self._wait(loose, fence)
        elif self._newest_fence > self.passed:
            waits = self.fence[loose] > self.passed
            self._wait(loose[waits], self.passed + 1)
            self._append(loose[~waits])
        else:
            self._append(loose)
        return len(loose)

    def put_back(self, blocks: Ints) -> None:
        """Let go of blocks, each held once, whose content came to nothing: the next to be reused.

        Behind the others they would cost a cached block each time that they are taken again.

        Raises:
            KernelBug: a block has another holder, or none.
        """
        if (self.references[blocks] != 1).any():
            raise KernelBug("a block was put back that is not held by one alone")
        self.references[blocks] = 0
        self._return_first(blocks)

    def _wait(self, blocks: Ints, oldest: int) -> None:
        """Let blocks wait for their fences, of which ``oldest`` is a lower bound."""
        self.pending_count += len(blocks)
        if self.pending:
            blocks = blocks[self._position[blocks] != _LISTED]
        if len(blocks):
            self.pending.append((oldest, blocks.copy()))

    def pass_fence(self, passed: int) -> None:
        """Every batch up to ``passed`` is back: blocks that waited for them may be used again."""
        self.passed = passed
        if not self.pending:
            return
        every = sum(len(listed) for _, listed in self.pending)
        if self._newest_fence <= passed and every == self.pending_count:
            # None waits on, and none was hit meanwhile.
            for _, listed in self.pending:
                self._append(listed)
            self.pending, self.pending_count = [], 0
            return
        still: list[tuple[int, Ints]] = []
        for oldest, listed in self.pending:
            if oldest > passed:
                still.append((oldest, listed))
                continue
            fences = self.fence[listed]
            waits = fences > passed
            if count_nonzero(waits):
                still.append((int(fences[waits].min()), listed[waits]))
                self._let_go(listed[~waits])
            else:
                self._let_go(listed)
        self.pending = still

    def _let_go(self, listed: Ints) -> None:
        """Put blocks whose fence has passed in the queue, but for those that were hit meanwhile."""
        held = self.references[listed]
        if count_nonzero(held):
            self._position[listed[held > 0]] = _NOWHERE
            listed = listed[held == 0]
        self.pending_count -= len(listed)
        self._append(listed)

    def drop_fence(self, fence: int) -> None:
        """Nothing will touch what waits for exactly ``fence``: it may be used again."""
        for place, (oldest, blocks) in enumerate(self.pending):
            dropped = blocks[self.fence[blocks] == fence]
            self.fence[dropped] = 0
            self.pending[place] = (0 if len(dropped) else oldest, blocks)
        self.pass_fence(self.passed)

    # -- content ------------------------------------------------------------------------------

    def learn_keys(self, key_max: int) -> None:
        """Let keys up to ``key_max`` be asked for."""
        self.index.make_room(key_max)

    def match(self, keys: Ints) -> Ints:
        """Return the blocks that hold the longest known prefix of ``keys``."""
        return self.index.prefix(keys)

    def idle_among(self, blocks: Ints) -> int:
        """Count those of ``blocks`` that stand in the queue."""
        held = self.references[blocks]
        if self.pending:
            return int(count_nonzero((held == 0) & (self.fence[blocks] <= self.passed)))
        return len(blocks) - int(count_nonzero(held))

    def hit(self, blocks: Ints) -> Receipt:
        """Take matched blocks into use, shared with whoever holds them already."""
        if not len(blocks):
            return NOTHING
        held = self.references[blocks]
        self.references[blocks] = held + ONE
        queued_at = ints(len(blocks))
        queued_at.fill(_NOWHERE)
        if held[held.argmin()] == 0:
            idle = held == 0
            if self.pending:
                waits = idle & (self.fence[blocks] > self.passed)
                self._position[blocks[waits]] = _LISTED
                self.pending_count -= int(count_nonzero(waits))
                idle &= ~waits
            places = self._position[blocks[idle]]
            queued_at[idle] = places
            self._queue[places] = _HOLE
            self.available -= len(places)
        return Receipt(blocks, queued_at, self._layout, EMPTY)

    def undo_hit(self, receipt: Receipt) -> None:
        """Give matched blocks back as if they had not been touched."""
        blocks = receipt.blocks
        self.references[blocks] -= 1
        loose = self.references[blocks] == 0
        waits = loose & (self.fence[blocks] > self.passed)
        self._wait(blocks[waits], self.passed + 1)
        home = loose & ~waits & (receipt.queued_at >= 0) & (receipt.layout == self._layout)
        self._return_home(blocks[home], receipt.queued_at[home])
        self._append(blocks[loose & ~waits & ~home][::-1])

    def commit(self, blocks: Ints, keys: Ints) -> None:
        """Give written blocks their content's identity; the newest block with a key keeps it."""
        self.index.put(keys, blocks)
        if self._counted:
            self.uses[blocks] = 0

    def count_use(self, blocks: Ints) -> Ints:
        """Count a hit of each block; return how many there were since it got its key."""
        self._counted = True
        uses = self.uses[blocks] + 1
        self.uses[blocks] = uses
        return uses

    def quiet(self) -> bool:
        """Tell whether no block with a key is held or pending."""
        busy = (self.references > 0) | (self.fence > self.passed)
        return not busy[self.key != NO_KEY].any()

    def forget_all(self) -> None:
        """Drop every key."""
        self.key[:] = NO_KEY

    # -- the queue ----------------------------------------------------------------------------

    def queued(self) -> Ints:
        """Return the free and cached blocks in the order in which they will be reused."""
        queued = self._queue[self._head : self._tail]
        filled: Ints = queued[queued != _HOLE]
        return filled

    def _first(self, count: int) -> tuple[Ints, Ints]:
        """Return the first ``count`` blocks of the queue, a copy, and their places."""
        head = self._head
        blocks = self._queue[head : head + count]
        if not count or blocks[blocks.argmin()] != _HOLE:
            return blocks.copy(), self._places[head : head + count]
        window = 2 * count + _WINDOW
        while True:
            queued = self._queue[head : min(head + window, self._tail)]
            filled = (queued != _HOLE).nonzero()[0][:count]
            if len(filled) == count:
                return queued[filled], filled + head
            window *= 4

    def _return_home(self, blocks: Ints, queued_at: Ints) -> None:
        if len(blocks):
            first = int(queued_at.min())
            if first < self._head:
                # What was taken there has left its numbers.
                self._queue[first : self._head] = _HOLE
                self._head = first
            self._queue[queued_at] = blocks
            self._position[blocks] = queued_at
            self.available += len(blocks)

    def _return_first(self, blocks: Ints) -> None:
        if self._head < len(blocks):
            self._compact()
        self._return_home(blocks, self._places[self._head - len(blocks) : self._head])

    def _append(self, blocks: Ints) -> None:
        count = len(blocks)
        if not count:
            return
        if self._tail + count > len(self._queue):
            self._compact()
        stretch = slice(self._tail, self._tail + count)
        self._queue[stretch] = blocks
        # By the queue's own numbers: those given may be a reversed view, a slow index.
        self._position[self._queue[stretch]] = self._places[stretch]
        self._tail += count
        self.available += count

    def _compact(self) -> None:
        queued = self.queued()
        self._head = self.num_blocks
        self._tail = self._head + len(queued)
        self._queue[self._head : self._tail] = queued
        self._position[queued] = self._places[self._head : self._tail]
        self._layout += 1

    # -- copies -------------------------------------------------------------------------------

    def snapshot(self) -> PoolCopy:
        """Return a copy of everything, for `restore`."""
        return PoolCopy(
            tuple(array.copy() for array in self._arrays()),
            (self._head, self._tail, self._layout, self.available, self.pending_count),
            (self.passed, self._newest_fence),
            tuple(self.pending),
            self.index.room,
        )

    def restore(self, saved: PoolCopy) -> None:
        """Return to a `snapshot` of this pool."""
        for array, copy in zip(self._arrays(), saved.arrays, strict=True):
            array[:] = copy
        self._head, self._tail, self._layout, self.available, self.pending_count = saved.counts
        self.passed, self._newest_fence = saved.fences
        self.pending = list(saved.pending)
        keyed = np.flatnonzero(self.key >= 0)
        keys = self.key[keyed]
        self._counted = bool(self.uses.any())
        self.index = KeyIndex(self.num_blocks)
        self.key = self.index.key
        self.index.make_room(saved.key_room - 1)
        self.index.put(keys, keyed)

    def _arrays(self) -> tuple[Ints, ...]:
        return self.references, self.key, self.fence, self.uses, self._queue, self._position
