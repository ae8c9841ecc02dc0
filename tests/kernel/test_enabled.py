"""What may come next is what the kernel takes, no more and no less, in every state of a walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from stepahead import HostContractError, Kernel
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    TransferDone,
    TransferFailed,
    Woke,
)
from stepahead.views import BatchView, Possible
from stepahead_specs.bench import Bench
from stepahead_specs.runs import walked, wandered


def takes(kernel: Kernel, event: Event) -> bool:
    """Tell whether a host may report this now; the kernel is left as it is."""
    saved = kernel.snapshot()
    try:
        kernel.step(event)
    except HostContractError:
        return False
    finally:
        kernel.restore(saved)
    return True


def executed(batch: BatchView, at: int) -> BatchExecuted:
    """Return the report that a batch is back; of drafts none was right."""
    rows = [row for row in batch.rows if row.samples]
    longest = 1 + max((row.drafts for row in rows), default=0)
    tokens = np.zeros((longest, len(rows)), dtype=np.int64)
    accepted = np.zeros(len(rows), dtype=np.int64) if longest > 1 else None
    return BatchExecuted(batch_id=batch.batch_id, tokens=tokens, at=at, accepted=accepted)


def expected(kernel: Kernel, *, paused: bool, woken: bool) -> Iterator[Possible]:
    """Iterate over what the kernel takes, by trying it, in the order that it has in `enabled`."""
    at, batches = kernel.now, kernel.batches()
    for batch in reversed(batches):
        if takes(kernel, BatchPrepared(batch_id=batch.batch_id, at=at)):
            yield Possible(kind=BatchPrepared, batch_id=batch.batch_id)
            yield Possible(kind=BatchRefused, batch_id=batch.batch_id)
    if takes(kernel, HostReady(at=at)):
        yield Possible(kind=HostReady)
    for batch in batches:
        if takes(kernel, executed(batch, at)):
            yield Possible(kind=BatchExecuted, batch_id=batch.batch_id)
        failure = BatchFailed(batch_id=batch.batch_id, scope=FailureScope.BATCH, at=at)
        if takes(kernel, failure):
            yield Possible(kind=BatchFailed, batch_id=batch.batch_id)
    for transfer in kernel.transfers:
        yield Possible(kind=TransferDone, transfer_id=transfer.transfer_id)
        yield Possible(kind=TransferFailed, transfer_id=transfer.transfer_id)
    if woken:
        yield Possible(kind=Woke)
    for view in kernel.requests():
        yield Possible(kind=RequestCancelled, handle=view.handle)
    yield Possible(kind=RequestArrived)
    yield Possible(kind=ResumeRequested if paused else PauseRequested)
    yield Possible(kind=CacheResetRequested)


def followed(bench: Bench) -> Counter[type[Event]]:
    """Follow a run and compare after every event; return how often what might have come."""
    kernel = Kernel(bench.config)
    came: Counter[type[Event]] = Counter()
    paused = False
    for event, _ in bench.journal:
        kernel.step(event)
        if isinstance(event, PauseRequested | ResumeRequested):
            paused = isinstance(event, PauseRequested)
        told = kernel.enabled()
        woken = kernel.snapshot().wake is not None
        assert told == tuple(expected(kernel, paused=paused, woken=woken))
        came.update(possible.kind for possible in told)
    return came


@pytest.mark.parametrize("tiers", [False, True])
def test_what_may_come_next_is_what_the_kernel_takes(*, tiers: bool) -> None:
    """A batch on the device that runs on a load is not back before the load is reported."""
    # In the last two a batch runs on a load that is not reported yet.
    seeds = (*range(10), 44, 55)
    runs = (wandered(seed, 6) for seed in seeds) if tiers else map(walked, range(16))
    came: Counter[type[Event]] = Counter()
    for bench in runs:
        came += followed(bench)
    plain = {HostReady, BatchPrepared, BatchRefused, BatchExecuted, BatchFailed, Woke}
    plain |= {RequestArrived, RequestCancelled, PauseRequested, CacheResetRequested}
    assert came.keys() == plain | {ResumeRequested} | (
        {TransferDone, TransferFailed} if tiers else set()
    )
    assert (came[BatchFailed] > came[BatchExecuted]) == tiers
