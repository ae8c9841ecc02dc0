"""The kernel's counters, counted once more by somebody who sees events, commands and views only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields

import numpy as np

from stepahead import Kernel, KernelConfig
from stepahead.arrays import Ints
from stepahead.commands import (
    AdmitRequest,
    Command,
    DispatchBatch,
    FinishReason,
    FinishRequest,
    PrepareBatch,
    RefuseRequest,
)
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    BatchRefused,
    Event,
    HostReady,
    RequestArrived,
    RequestCancelled,
    TransferDone,
    TransferFailed,
    Woke,
)
from stepahead.state import Counters
from stepahead.transfers import Transfer, TransferKind
from stepahead.views import BatchView, RequestView
from stepahead_specs.bench import Bench
from stepahead_specs.runs import walked, wandered

#: A stay of a request between two preemptions.
Stretch = tuple[int, int]


class Accountant:
    """Counts what happens to a kernel of its own that is told the same events."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self.kernel = Kernel(config)
        self.counts: Counter[str] = Counter()
        self.keyed: set[int] = set()
        #: Known tokens of a stretch as it was seated, and the batch that did it.
        self.seated: dict[Stretch, tuple[int, int]] = {}
        self.given_up: dict[int, int] = {}
        self.dead: dict[tuple[int, Stretch], FinishReason] = {}
        self.late: set[int] = set()

    def step(self, event: Event) -> None:
        """Take one event, count, and compare."""
        requests = {view.handle: view for view in self.kernel.requests()}
        batches = self.kernel.batches()
        transfers = {entry.transfer_id: entry for entry in self.kernel.transfers}
        late = self._late(event, transfers, requests)
        commands = self.kernel.step(event)
        after = {view.handle: view for view in self.kernel.requests()}
        self._clients(event, commands)
        self._ends(event, commands, batches)
        self._batches(event, commands, batches, requests)
        self._preemptions(event, batches, requests, after)
        self._transfers(event, transfers)
        self.counts["expired_loads"] += len(late)
        self.late |= late
        for command in commands:
            if isinstance(command, PrepareBatch):
                self._seat(command, requests)
        counters = self.kernel.counters
        told = {entry.name: getattr(counters, entry.name) for entry in fields(Counters)}
        told.pop("refused_stores")  # see test_write_through
        assert told == {name: self.counts[name] for name in told}

    def _clients(self, event: Event, commands: tuple[Command, ...]) -> None:
        for command in commands:
            self.counts["admitted"] += isinstance(command, AdmitRequest)
            self.counts["refused"] += isinstance(command, RefuseRequest)
            self.counts["ended"] += isinstance(command, FinishRequest)
            if isinstance(command, AdmitRequest) and isinstance(event, RequestArrived):
                keys = 0 if event.block_keys is None else len(event.block_keys)
                if keys and self.config.prefix_caching:
                    self.keyed.add(command.handle)
        finished = any(isinstance(command, FinishRequest) for command in commands)
        self.counts["ignored_cancels"] += isinstance(event, RequestCancelled) and not finished
        self.counts["refused_batches"] += isinstance(event, BatchRefused)

    def _ends(
        self, event: Event, commands: tuple[Command, ...], batches: tuple[BatchView, ...]
    ) -> None:
        """Count rows on the device whose request ends, or whose load fails under it."""
        ends = {c.handle: c.reason for c in commands if isinstance(c, FinishRequest)}
        back = event.batch_id if isinstance(event, BatchExecuted) else None
        left = {(b.batch_id, r.seat): r.live for b in self.kernel.batches() for r in b.rows}
        for batch in batches:
            for row in batch.rows:
                void = isinstance(event, TransferFailed) and not left.get(
                    (batch.batch_id, row.seat), True
                )
                if batch.batch_id == back or not row.live or not (row.handle in ends or void):
                    continue
                stretch = (row.handle, row.epoch)
                self.dead[batch.batch_id, stretch] = ends.get(row.handle, FinishReason.ERROR)
                quiet = isinstance(event, RequestCancelled | TransferFailed)
                self.counts["discarded_rows"] += quiet and batch.state.value == "dispatched"

    def _batches(
        self,
        event: Event,
        commands: tuple[Command, ...],
        batches: tuple[BatchView, ...],
        requests: dict[int, RequestView],
    ) -> None:
        by_id = {batch.batch_id: batch for batch in batches}
        for command in commands:
            if isinstance(command, DispatchBatch) and not command.pruned:
                for row, live in zip(by_id[command.batch_id].rows, command.live, strict=True):
                    if not live:
                        reason = self.dead[command.batch_id, (row.handle, row.epoch)]
                        self.counts[f"wasted_rows_{reason.value}"] += 1
        if not isinstance(event, BatchExecuted):
            return
        if event.accepted is not None:
            self._drafts(by_id[event.batch_id], event.accepted.tolist())
        for row in by_id[event.batch_id].rows:
            known, batch_id = self.seated[row.handle, row.epoch]
            if batch_id != event.batch_id or not row.live:
                continue
            if row.handle in self.keyed:
                self.counts["queried_tokens"] += known
                self.counts["hit_tokens"] += row.position
            lost = self.given_up.get(row.handle, 0) - row.position
            self.counts["recomputed_tokens"] += max(lost, 0)
            assert requests[row.handle].epoch == row.epoch

    def _drafts(self, batch: BatchView, accepted: list[int]) -> None:
        """Count the drafts of live rows, and those of them that were right."""
        sampling = [row for row in batch.rows if row.samples]
        for row, right in zip(sampling, accepted, strict=True):
            if row.live:
                self.counts["drafted_tokens"] += row.drafts
                self.counts["accepted_tokens"] += right

    def _seat(self, command: PrepareBatch, requests: dict[int, RequestView]) -> None:
        live = {view.handle: view for view in self.kernel.requests()}
        for handle, epoch in zip(command.handles.tolist(), command.epochs.tolist(), strict=True):
            if requests[handle].seat is None or requests[handle].epoch != epoch:
                self.seated[handle, epoch] = (live[handle].known, command.batch_id)

    def _preemptions(
        self,
        event: Event,
        batches: tuple[BatchView, ...],
        before: dict[int, RequestView],
        after: dict[int, RequestView],
    ) -> None:
        for handle, view in before.items():
            if handle not in after or after[handle].epoch == view.epoch:
                continue
            if isinstance(event, TransferFailed):
                continue  # a void epoch is no preemption
            self.counts["preemptions"] += 1
            settled = view.settled
            if isinstance(event, BatchExecuted):
                ends = [
                    row.end
                    for batch in batches
                    for row in batch.rows
                    if batch.batch_id == event.batch_id and row.handle == handle
                ]
                settled = max([settled, *ends])
            self.given_up[handle] = settled

    def _transfers(self, event: Event, transfers: dict[int, Transfer]) -> None:
        if not isinstance(event, TransferDone | TransferFailed):
            return
        transfer = transfers.get(event.transfer_id)
        if transfer is None:
            self.counts["ignored_transfers"] += 1
        elif isinstance(event, TransferFailed):
            self.counts["failed_transfers"] += 1
        elif transfer.kind is not TransferKind.LOAD:
            self.counts["stored_blocks"] += len(transfer.blocks)
        elif event.transfer_id in self.late:
            self.counts["ignored_transfers"] += 1
        else:
            filled = len(transfer.blocks) if event.blocks < 0 else event.blocks
            source = "host" if len(transfer.pages) else "remote"
            self.counts[f"{source}_tokens"] += filled * self.config.block_size

    def _late(
        self, event: Event, transfers: dict[int, Transfer], requests: dict[int, RequestView]
    ) -> set[int]:
        """Return the loads that this event finds too late: nobody runs on them."""
        limit = self.config.load_deadline_ns
        if not limit or not self._looks(event):
            return set()
        return {
            ident
            for ident, entry in transfers.items()
            if entry.kind is TransferKind.LOAD
            and ident not in self.late
            and event.at - entry.issued_at >= limit
            and not (
                entry.layerwise
                and entry.handle in requests
                and requests[entry.handle].seat is not None
            )
        }

    def _looks(self, event: Event) -> bool:
        """Tell whether the kernel looks for late loads: when it might select, and as it is woken.

        A wake that nobody asked for is no reason.
        """
        if isinstance(event, Woke):
            saved, before = self.kernel.snapshot(), self.kernel.digest()
            self.kernel.step(event)
            changed = self.kernel.digest() != before
            self.kernel.restore(saved)
            return changed
        return isinstance(event, HostReady)


#: What only tiers have, and of the rest what such walks need not come across.
TIERS = {
    "host_tokens",
    "remote_tokens",
    "stored_blocks",
    "failed_transfers",
    "expired_loads",
    "ignored_transfers",
}


def counted(runs: Iterable[Bench]) -> set[str]:
    """Let an accountant follow some runs; return which counters counted something."""
    counts: Counter[str] = Counter()
    for bench in runs:
        accountant = Accountant(bench.config)
        for event, _ in bench.journal:
            accountant.step(event)
        counts += accountant.counts
    return set(counts)


def test_every_counter_counts_what_happened() -> None:
    """After every event; and each of them has counted something in the end."""
    names = {entry.name for entry in fields(Counters)} - {"refused_stores"}
    assert counted(walked(seed) for seed in range(90)) == names - TIERS


def test_the_counters_of_the_tiers_count_what_happened() -> None:
    """Transfers in any order with any end."""
    assert counted(wandered(seed, 16) for seed in range(48)) >= TIERS


def test_a_pruned_row_is_not_counted_for_who_gets_its_seat() -> None:
    """A batch is back that no longer has the row; somebody else has been seated there meanwhile."""
    kernel = Kernel(
        KernelConfig(num_blocks=16, block_size=2, max_model_len=12, lookahead=1, prune=True)
    )
    keys, sampled = np.array([0, 1]), np.array([[5]])
    seats: list[list[int]] = []

    def asked(name: str, keys: Ints | None = None) -> None:
        """Let a request arrive and be selected."""
        arrived = RequestArrived(
            request_id=name, prompt_length=5, max_tokens=4, at=0, arrived_at=0, block_keys=keys
        )
        kernel.step(arrived)
        (prepare,) = kernel.step(HostReady(at=0))
        assert isinstance(prepare, PrepareBatch)
        seats.append(prepare.seats.tolist())
        kernel.step(BatchPrepared(batch_id=prepare.batch_id, at=0))

    asked("stays")
    asked("leaves", keys)
    kernel.step(RequestCancelled(request_id="leaves", at=0))
    kernel.step(BatchExecuted(batch_id=1, tokens=sampled, at=0))
    asked("comes", keys)
    assert seats[1] == seats[2]
    kernel.step(BatchExecuted(batch_id=2, tokens=sampled, at=0))
    assert kernel.counters.queried_tokens == 0
    kernel.step(BatchExecuted(batch_id=3, tokens=sampled.repeat(2, axis=1), at=0))
    assert kernel.counters.queried_tokens == 5
