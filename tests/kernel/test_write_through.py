"""Write-through, counted from outside: which batch makes which blocks due, and who is copied.

`Counted` keeps hit counts of its own, from events, commands and views. When a batch comes back, the
blocks of the prefixes that its live rows hit count once more, and those that reach the threshold,
and are neither on the host nor on their way there, are copied: these, in this order, as far as
there are pages, and nothing else. Host pages of a prefix that was hit come last in their queue.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepahead.arrays import Ints
from stepahead.commands import AbandonBatch, Command, LoadBlocks, PrepareBatch, StoreBlocks
from stepahead.config import KernelConfig
from stepahead.events import BatchExecuted, BatchRefused, Event
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.runs import wandered
from stepahead_specs.tier_bench import TierBench


class Counted(TierBench):
    """A host that knows what a batch that comes back makes due."""

    def __init__(self, config: KernelConfig, model: HashModel) -> None:
        super().__init__(config, model)
        self.uses: Counter[int] = Counter()
        self.refused_stores = 0
        #: How often each kind of thing happened that the rule is about.
        self.came: Counter[str] = Counter()
        self._selected: dict[int, PrepareBatch] = {}
        self._seated: dict[tuple[int, int], int] = {}
        self._layers: dict[int, set[int]] = {}
        self._executions = 0

    def executed(self) -> None:
        """Every third time a client leaves while the device runs its row."""
        self._executions += 1
        running = [b for b in self.kernel.batches() if b.batch_id == self.on_device]
        live = [row.handle for batch in running for row in batch.rows if row.live]
        if live and self._executions % 3 == 0:
            self.cancel(self.asks[live[0]].request_id, live[0])
        super().executed()

    def _step(self, event: Event, ask: Ask | None = None) -> tuple[Command, ...]:
        before = self.kernel.pool.key.copy()
        hits = self._hits(event) if isinstance(event, BatchExecuted) else []
        page_of = {k: page for page, k in enumerate(self.kernel.pages.key.tolist()) if k >= 0}
        queue = self.kernel.pages.queued().tolist()
        on_their_way = {
            key
            for transfer in self.kernel.transfers
            if isinstance(self.transfers.get(transfer.transfer_id), StoreBlocks)
            for key in transfer.keys.tolist()
        }
        commands = super()._step(event, ask)
        after = self.kernel.pool.key
        for block in np.flatnonzero((after != before) & (after >= 0)).tolist():
            self.uses[block] = 0
        if isinstance(event, BatchExecuted):
            self._holds(hits, queue, page_of, on_their_way, commands)
        self._note(event, commands)
        return commands

    def _note(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Remember which batch seated which stay of a request."""
        gone = [c.batch_id for c in commands if isinstance(c, AbandonBatch)]
        if isinstance(event, BatchRefused):
            gone.append(event.batch_id)
        self._seated = {stay: batch for stay, batch in self._seated.items() if batch not in gone}
        for command in commands:
            if isinstance(command, LoadBlocks) and command.layerwise:
                self._layers[command.handle] = set(command.blocks.tolist())
            elif isinstance(command, PrepareBatch):
                self._selected[command.batch_id] = command
                stays = zip(command.handles.tolist(), command.epochs.tolist(), strict=True)
                for stay in stays:
                    self._seated.setdefault(stay, command.batch_id)

    def _hits(self, event: BatchExecuted) -> list[list[int]]:
        """Return the blocks that live rows hit as the batch seated them, row by row."""
        (view,) = (b for b in self.kernel.batches() if b.batch_id == event.batch_id)
        command = self._selected.pop(event.batch_id)
        rows = {handle: row for row, handle in enumerate(command.handles.tolist())}
        hits: list[list[int]] = []
        for seen in view.rows:
            if self._seated.get((seen.handle, seen.epoch)) != event.batch_id:
                continue
            row = rows[seen.handle]
            prefix = int(command.positions[row]) // self.config.block_size
            new = (command.block_rows == row) & (command.block_slots < prefix)
            loading = self._layers.get(seen.handle, set())
            blocks = [block for block in command.blocks[new].tolist() if block not in loading]
            if not seen.live:
                self.came["dead hit"] += bool(blocks)
                continue
            hits.append(blocks)
        return hits

    def _holds(
        self,
        hits: list[list[int]],
        queue: list[int],
        page_of: dict[int, int],
        on_their_way: set[int],
        commands: tuple[Command, ...],
    ) -> None:
        threshold = self.config.write_through_threshold
        stores = [c for c in commands if isinstance(c, StoreBlocks)]
        if threshold is None or not self.config.host_pages:
            assert not stores
            return
        key: Ints = self.kernel.pool.key
        pages = self.kernel.pages
        taken = [page for store in stores for page in store.pages.tolist()]
        due: list[int] = []
        for blocks in hits:
            keyed = [block for block in blocks if key[block] >= 0]
            self.came["hit"] += bool(keyed)
            self.uses.update(keyed)
            due += [b for b in keyed if self.uses[b] >= threshold and b not in due]
            touched: list[int] = []
            for block in keyed:
                if int(key[block]) not in page_of:
                    break
                touched.append(page_of[int(key[block])])
            free = [page for page in reversed(touched) if page in queue]
            queue = [page for page in queue if page not in free] + free
            self.came["touched"] += bool(free)
        there = page_of.keys() | on_their_way
        wanted = [block for block in due if int(key[block]) not in there]
        count = min(len(wanted), len(queue))
        self.refused_stores += len(wanted) - count
        self.came["refused"] += count < len(wanted)
        self.came["stored"] += count > 0
        assert [store.blocks.tolist() for store in stores] == [wanted[:count]] * (count > 0)
        assert taken == queue[:count]
        assert pages.queued().tolist() == queue[count:]
        if not self.config.write_back:
            assert self.kernel.counters.refused_stores == self.refused_stores


def test_what_is_due_is_copied_and_nothing_else() -> None:
    """In any order of things; dead rows count for nothing, and each case comes up."""
    came: Counter[str] = Counter()
    for seed in range(48):
        bench = wandered(seed, 12, Counted)
        assert isinstance(bench, Counted)
        came += bench.came
    assert came.keys() >= {"hit", "dead hit", "stored", "refused", "touched"}
