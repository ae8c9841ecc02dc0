"""What our own kernel says of its state, in neutral words."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

from stepahead.blocks import BlockPool
from stepahead.kernel import Kernel
from stepahead.views import PLACES as KERNEL_PLACES
from stepahead.views import PoolView, Standing
from stepahead_specs.records import (
    EMPTY,
    PLACES,
    Account,
    Index,
    MemoryAccount,
    RequestAccount,
)

if tuple(place.value for place in KERNEL_PLACES) != PLACES:
    raise AssertionError(f"the kernel numbers its places {KERNEL_PLACES}, the records {PLACES}")


def account(kernel: Kernel) -> Account:
    """Read the whole state of a kernel."""
    audit = kernel.audit()
    blocks, pages = kernel.pools()
    return Account(
        requests={entry.handle: _request(entry) for entry in kernel.standings()},
        batches={batch.batch_id: batch.state.value for batch in kernel.batches()},
        blocks=_memory(blocks, kernel.pool),
        pages=None if pages is None else _memory(pages, kernel.pages),
        transfers=frozenset(transfer.transfer_id for transfer in kernel.transfers),
        late=kernel.late_loads,
        seats_free=audit.free_seats,
        seats_draining=audit.draining_seats,
        seats=kernel.config.max_concurrency * (kernel.config.lookahead + 2),
        counters={
            entry.name: getattr(kernel.counters, entry.name) for entry in fields(kernel.counters)
        },
        idle=kernel.idle(),
        problems=audit.problems,
    )


def _memory(told: PoolView, pool: BlockPool) -> MemoryAccount:
    return MemoryAccount(
        places=told.places,
        references=told.references,
        pins=told.pins,
        keys=told.keys,
        queue=told.queue,
        index=Index(*pool.index.known()),
    )


def _request(entry: Standing) -> RequestAccount:
    if entry.seat is None:
        return _waiting(entry.handle, entry.state.value, entry.epoch, entry.known)
    return RequestAccount(
        handle=entry.handle,
        state=entry.state.value,
        epoch=entry.epoch,
        known=entry.known,
        scheduled=entry.scheduled,
        settled=entry.settled,
        intent=entry.intent.name.lower(),
        seat=entry.seat,
        blocks=entry.blocks,
    )


@lru_cache(maxsize=1 << 14)
def _waiting(handle: int, state: str, epoch: int, known: int) -> RequestAccount:
    """Return the same record for a request that waits, step after step."""
    return RequestAccount(
        handle=handle,
        state=state,
        epoch=epoch,
        known=known,
        scheduled=0,
        settled=0,
        intent="none",
        seat=None,
        blocks=EMPTY,
    )
