"""The tiers behind KV memory: what is copied to the host, what is loaded again, and when it counts.

Four rules:

* A block whose prefix was hit often enough is copied to a host page (write-through). The hits of a
  selection count when its batch comes back, so an undone selection has counted nothing.
* With write-back, a block that is popped for reuse and has no copy is copied first. Its new holder
  has it at once, but no batch that was granted it is dispatched before the copy is complete.
* Content counts when its transfer is reported complete, not before: a page gets its key then, and a
  loaded block as well. A refused or failed copy changes nothing but what it held.
* The first waiting request loads what the host has of its prefix, or else what a lookup found in
  the remote store, once per epoch. It waits for it, or (layer-wise, from the host) runs at once on
  blocks that are still being filled; if such a load fails, the epoch is void: its rows in flight
  are dead, and the request starts again without the host.

Everything here ends with the host's report: an entry of the ledger holds what it reads and writes
until then. See specs/decisions for the choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepahead.arrays import EMPTY, Ints
from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.commands import FinishReason, LoadBlocks, StoreBlocks
from stepahead.errors import HostContractError
from stepahead.events import TransferDone, TransferFailed
from stepahead.requests import NO_SEAT, Stay
from stepahead.state import State
from stepahead.tables import REQUEST, RequestState, RequestTrigger
from stepahead.transfers import Transfer, TransferKind

# -- to the host ------------------------------------------------------------------------------


def promote(state: State, batch: Batch) -> None:
    """Count the prefix hits of a batch that is back, and copy what was hit often enough."""
    threshold = state.config.write_through_threshold
    if threshold is None or not state.config.host_pages:
        return
    pool, due = state.pool, [EMPTY]
    for seat, receipt in batch.hits.items():
        if state.seated[seat] is None:
            continue
        blocks = receipt.blocks[pool.key[receipt.blocks] >= 0]
        _touch(state, pool.key[blocks])
        due.append(blocks[pool.count_use(blocks) >= threshold])
    blocks = np.concatenate(due)
    _, first = np.unique(blocks, return_index=True)
    blocks = blocks[np.sort(first)]
    _store(state, blocks, pool.key[blocks], TransferKind.WRITE_THROUGH)


def take(state: State, count: int) -> Receipt:
    """Take ``count`` KV blocks; what they contained is written back if that is wanted."""
    receipt = state.pool.take(count)
    if state.config.write_back:
        keyed = np.flatnonzero(receipt.forgotten >= 0)[::-1]
        _store(state, receipt.blocks[keyed], receipt.forgotten[keyed], TransferKind.WRITE_BACK)
    return receipt


def untouched(state: State) -> int:
    """Return how many blocks can be taken without a write-back."""
    pool = state.pool
    if not state.config.write_back:
        return pool.available
    keys = pool.key[pool.queued()]
    lost = (keys >= 0) & (state.pages.index.find(keys) < 0)
    return int(lost.argmax()) if lost.any() else pool.available


def _touch(state: State, keys: Ints) -> None:
    """Pages of a prefix that was hit on the NPU are not the next to go."""
    pages = state.pages.match(keys)
    state.pages.hit(pages)
    state.pages.release(pages, 0)


def _without_copy(state: State, keys: Ints) -> Ints:
    """Return the places in ``keys`` of those that neither are on the host nor on their way."""
    places = np.flatnonzero(state.pages.index.find(keys) < 0)
    storing = state.ledger.storing
    if not storing:
        return places
    return places[[key not in storing for key in keys[places].tolist()]]


def _store(state: State, blocks: Ints, keys: Ints, kind: TransferKind) -> None:
    """Copy blocks to the host, shallowest first, as far as there are pages to be had."""
    wanted = _without_copy(state, keys)
    count = min(len(wanted), state.pages.available)
    state.counters.refused_stores += len(wanted) - count
    if not count:
        return
    blocks, keys = blocks[wanted[:count]], keys[wanted[:count]]
    pages = state.pages.take(count).blocks
    if kind is TransferKind.WRITE_THROUGH:
        state.pool.hit(blocks)
    ident = state.ledger.next_id
    state.ledger.enter(
        Transfer(
            transfer_id=ident,
            kind=kind,
            blocks=blocks,
            pages=pages,
            keys=keys,
            issued_at=state.now,
        )
    )
    state.outbox.append(StoreBlocks(transfer_id=ident, blocks=blocks, pages=pages, keys=keys))


# -- from the host ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reload:
    """What a waiting request could load: a source page per key, or none from the remote store."""

    keys: Ints
    pages: Ints


def find(state: State, stay: Stay, keys: Ints, cached: int) -> Reload | None:
    """Return what the tiers behind may have of ``keys``, but for the ``cached`` first, in L1."""
    wanted = keys[cached:]
    if not len(wanted) or stay.load_epoch == stay.epoch:
        return None
    pages = state.pages.match(wanted)
    late = [state.ledger.open[ident].pages for ident in state.ledger.late]
    if late:
        stuck = np.isin(pages, np.concatenate(late))
        pages = pages[: int(stuck.argmax())] if stuck.any() else pages
    if len(pages):
        return Reload(wanted[: len(pages)], pages)
    # Blocks for what the store has not would be taken from those that something is cached in.
    remote = keys[cached : stay.remote_blocks] if state.config.remote else EMPTY
    return Reload(remote, EMPTY) if len(remote) else None


def must_wait(state: State, stay: Stay, reload: Reload | None) -> bool:
    """Tell whether the request waits for its load, or for somebody else's of the same pages."""
    ledger = state.ledger
    if stay.handle in ledger.loading:
        return True
    if reload is None or not len(reload.pages):
        return False
    return any(np.isin(reload.pages, load.pages).any() for load in ledger.loads())


def begin(state: State, stay: Stay, cached: Ints, reload: Reload) -> Ints | None:
    """Load, and return the blocks that the request may run on meanwhile; None: it must wait."""
    if not _may_start(state, stay, cached, reload):
        return None
    load = _start(state, stay, cached, reload)
    return load.blocks if load.layerwise else None


def _may_start(state: State, stay: Stay, cached: Ints, reload: Reload) -> bool:
    """Tell whether the load may write the blocks that it would get; if not, see that it may soon.

    A load is not a batch: nothing guards it, so what it overwrites must have its copy before. Its
    own source and prefix are in use meanwhile: writing back must not take them. That is tried once
    per epoch, since a host with few pages can keep only some of what goes.
    """
    if not state.config.write_back:
        return True
    pool, pages = state.pool, state.pages
    source, prefix = pages.hit(reload.pages), pool.hit(cached)
    blocks = pool.peek(len(reload.keys))
    if stay.cleared_epoch != stay.epoch:
        stay.cleared_epoch = stay.epoch
        keys = pool.key[blocks]
        kept = np.flatnonzero(keys >= 0)[::-1]
        _store(state, blocks[kept], keys[kept], TransferKind.WRITE_BACK)
    pool.undo_hit(prefix)
    pages.undo_hit(source)
    return not state.ledger.guards(blocks)


def _start(state: State, stay: Stay, cached: Ints, reload: Reload) -> Transfer:
    """Load into fresh blocks; the entry holds them, their pages and the ``cached`` prefix."""
    pool, ledger = state.pool, state.ledger
    state.pages.hit(reload.pages)
    pool.hit(cached)
    blocks = pool.take(len(reload.keys)).blocks
    load = Transfer(
        transfer_id=ledger.next_id,
        kind=TransferKind.LOAD,
        blocks=blocks,
        pages=reload.pages,
        keys=reload.keys,
        issued_at=state.now,
        prefix=cached,
        handle=stay.handle,
        epoch=stay.epoch,
        layerwise=state.config.layerwise_reload and len(reload.pages) > 0,
    )
    if load.layerwise:
        pool.hit(blocks)  # for the request, which has them in its table from now on
    ledger.enter(load)
    stay.load_epoch = stay.epoch
    state.outbox.append(
        LoadBlocks(
            transfer_id=load.transfer_id,
            blocks=blocks,
            pages=load.pages,
            keys=load.keys,
            handle=stay.handle,
            layerwise=load.layerwise,
        )
    )
    return load


# -- reports ----------------------------------------------------------------------------------


def complete(state: State, event: TransferDone) -> None:
    """Take the report that a transfer is complete; a late or unknown one changes no content."""
    transfer = state.ledger.open.get(event.transfer_id)
    if transfer is None:
        state.counters.ignored_transfers += 1
        return
    if event.blocks > len(transfer.blocks) or (len(transfer.pages) and event.blocks >= 0):
        raise HostContractError(
            f"transfer {event.transfer_id} is reported complete with {event.blocks} blocks; only a "
            f"load from the remote store may fill some of its {len(transfer.blocks)} blocks"
        )
    if transfer.kind is not TransferKind.LOAD:
        state.pages.commit(transfer.pages, transfer.keys)
        state.counters.stored_blocks += len(transfer.pages)
    elif event.transfer_id in state.ledger.late:
        state.counters.ignored_transfers += 1
    else:
        filled = len(transfer.blocks) if event.blocks < 0 else event.blocks
        state.pool.commit(transfer.blocks[:filled], transfer.keys[:filled])
        tokens = filled * state.config.block_size
        if len(transfer.pages):
            state.counters.host_tokens += tokens
        else:
            state.counters.remote_tokens += tokens
    _close(state, transfer)


def fail(state: State, event: TransferFailed) -> None:
    """Take the report that a transfer came to nothing: everything is let go, nothing counts."""
    transfer = state.ledger.open.get(event.transfer_id)
    if transfer is None:
        state.counters.ignored_transfers += 1
        return
    state.counters.failed_transfers += 1
    _void(state, transfer)
    _close(state, transfer)


def expire(state: State) -> None:
    """Go on without the loads whose deadline has passed; their blocks wait for the report."""
    limit = state.config.load_deadline_ns
    if not limit or not state.ledger.open:
        return
    for load in _timed(state):
        if state.now - load.issued_at >= limit:
            state.counters.expired_loads += 1
            state.ledger.give_up(load)
            state.steady = None


def next_deadline(state: State) -> int | None:
    """Return when the oldest load that somebody waits for expires, ns; None if none does."""
    if not state.config.load_deadline_ns:
        return None
    issued = [load.issued_at for load in _timed(state)]
    return min(issued) + state.config.load_deadline_ns if issued else None


def _timed(state: State) -> list[Transfer]:
    """Return the loads that have a deadline: not those that a batch runs on.

    Such a batch may be on the device, which waits for its layers whatever is decided here.
    """
    seated = (state.live.get(load.handle) for load in state.ledger.loads() if load.layerwise)
    running = {stay.handle for stay in seated if stay is not None and stay.seat != NO_SEAT}
    return [load for load in state.ledger.loads() if load.handle not in running]


def _close(state: State, transfer: Transfer) -> None:
    state.pool.release(transfer.held, 0)
    state.pages.release(transfer.pages, 0)
    state.ledger.leave(transfer)
    state.steady = None


def _void(state: State, load: Transfer) -> None:
    """A load that a request runs on has failed: nothing of this epoch counts.

    Its rows in flight are dead like those of a request that has ended, and seat and blocks wait
    for them; the request itself stands in the waiting line again.
    """
    stay = state.live.get(load.handle)
    if not load.layerwise or not state.ledger.waited_for(load.transfer_id):
        return
    if stay is None or stay.seat == NO_SEAT:
        return
    fence = state.lose_rows(stay.seat, FinishReason.ERROR)
    if REQUEST.states[int(state.columns.state[stay.seat])] is RequestState.PREPARED:
        state.move_one(stay.seat, RequestTrigger.WITHDRAW)
    else:
        state.move_one(stay.seat, RequestTrigger.FILL)
        state.move_one(stay.seat, RequestTrigger.PREEMPT)
    state.requeue(stay, fence)
