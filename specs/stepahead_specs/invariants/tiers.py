"""What is copied between the tiers of the cache, what a copy holds in place, and when it counts."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from stepahead_specs.invariants.blocks import misplaced
from stepahead_specs.invariants.registry import invariant
from stepahead_specs.memory import Memory
from stepahead_specs.observation import Observation
from stepahead_specs.records import EMPTY, NONE, Ints, Transfer, tally, where

_CATALOGUE: Final = "catalogue of known defects"


@invariant("INV-2", source=f"{_CATALOGUE}: conservation, per tier")
def every_page_is_in_one_place(seen: Observation) -> Iterator[str]:
    """A host page is read or written by an open transfer, or may be handed out: one of them."""
    if seen.account is None or seen.account.pages is None:
        return
    pages = seen.account.pages
    if len(pages.places) != seen.limits.host_pages:
        yield f"{len(pages.places)} of {seen.limits.host_pages} pages are accounted for"
    busy = tally(_joined(t.pages for t in seen.transfers.values()), len(pages.places))
    yield from misplaced("page", pages, np.zeros(len(pages.places), dtype=bool), busy > 0)


@invariant("INV-17", source=f"{_CATALOGUE}: one transfer per page")
def a_page_is_in_one_transfer(seen: Observation) -> Iterator[str]:
    """A host page is read or written by at most one open transfer."""
    users = Counter(page for t in seen.transfers.values() for page in t.pages.tolist())
    for page, times in users.items():
        if times > 1:
            idents = [t.ident for t in seen.transfers.values() if page in t.pages]
            yield f"page {page} is in transfers {idents} at once"


@invariant("INV-17", source=f"{_CATALOGUE}: a page is not reused during a load or store")
def what_a_transfer_needs_is_not_free(seen: Observation) -> Iterator[str]:
    """Nothing that an open transfer writes, and no page that it reads, may be handed out."""
    if seen.account is None or not seen.transfers:
        return
    for word, memory in (("block", seen.account.blocks), ("page", seen.account.pages)):
        if memory is None or memory.queue is None:
            continue
        free = memory.queued > 0
        for transfer in seen.transfers.values():
            needed = transfer.pages if word == "page" else _written(transfer)
            for piece in needed[free[needed]].tolist():
                yield f"{word} {piece} may be handed out during transfer {transfer.ident}"


@invariant("INV-17", source=f"{_CATALOGUE}: a store's source stays until it is complete")
def nobody_writes_what_a_store_reads(seen: Observation) -> Iterator[str]:
    """No dispatched batch and no load writes a block that an open store still reads."""
    stores = [transfer for transfer in seen.transfers.values() if transfer.store]
    if not stores:
        return
    readers = {block: store.ident for store in stores for block in store.blocks.tolist()}
    for batch in seen.now.dispatched:
        for block in batch.granted(seen.limits.block_size):
            if block in readers:
                yield f"batch {batch.ident} writes block {block}, store {readers[block]} reads it"
    for load in seen.now.asked:
        for block in _written(load).tolist():
            if block in readers:
                yield f"load {load.ident} writes block {block}, store {readers[block]} reads it"


@invariant("INV-17", source=f"{_CATALOGUE}: a copy has the content of its key, to its end")
def a_copy_is_of_what_its_key_says(seen: Observation) -> Iterator[str]:
    """What a transfer copies has the content of its key when it begins, and when it ends."""
    moments = [("begins", transfer, len(transfer.keys)) for transfer in seen.now.asked]
    moments += [("ends", transfer, filled) for transfer, filled in seen.now.copied]
    for when, transfer, count in moments:
        if not transfer.store and not len(transfer.pages):
            continue
        word, source, memory = _source(seen, transfer)
        wrong = memory.key[source[:count]] != transfer.keys[:count]
        for place in where(wrong):
            held = int(memory.key[source[place]])
            yield (
                f"transfer {transfer.ident} {when} to copy {word} {source[place]} as key "
                f"{transfer.keys[place]}, it has {'no such' if held == NONE else f'key {held}'} "
                "content"
            )


@invariant("INV-17", source="ours: a load is of the prefix of its request, as far as it is there")
def a_load_is_of_its_requests_prefix(seen: Observation) -> Iterator[str]:
    """A load asks for keys of its request in their order, and for no more than a lookup found."""
    for load in seen.now.asked:
        request = None if load.handle is None else seen.requests.get(load.handle)
        if load.store or request is None:
            continue
        remote = None if len(load.pages) else request.remote_blocks
        keys = request.keys[: (request.known - 1) // seen.limits.block_size][:remote]
        (first,) = (keys == load.keys[:1]).nonzero()
        start = int(first[0]) if len(first) else 0
        if not np.array_equal(keys[start : start + len(load.keys)], load.keys):
            yield (
                f"load {load.ident} asks for keys {load.keys.tolist()}, those of request "
                f"{request.handle} that can be there are {keys.tolist()}"
            )


@invariant("INV-17", source=f"{_CATALOGUE}: a block is readable once its load is acknowledged")
def what_a_load_writes_has_no_other_user(seen: Observation) -> Iterator[str]:
    """The blocks of an open load are in no table but, layer by layer, that of its own request."""
    for load in seen.transfers.values():
        if load.store:
            continue
        own = load.handle if load.layerwise else None
        target = np.zeros(seen.limits.num_blocks + 1, dtype=bool)
        target[load.blocks] = True
        target[NONE] = False
        for batch in seen.outstanding():
            for row in batch.rows:
                for slot in where(target[row.table]) if row.handle != own else ():
                    yield (
                        f"load {load.ident} writes block {row.table[slot]}, which the row of "
                        f"request {row.handle} in batch {batch.ident} touches"
                    )
        for handle, request in seen.account.requests.items() if seen.account else ():
            for slot in where(target[request.blocks]) if handle != own else ():
                block = request.blocks[slot]
                yield f"load {load.ident} writes block {block}, which request {handle} holds"


@invariant("INV-4", source=f"{_CATALOGUE}: references of transfers")
def a_pin_belongs_to_a_transfer(seen: Observation) -> Iterator[str]:
    """Each pin is of an open transfer: of what it copies, or of the prefix before a load."""
    account = seen.account
    if account is None:
        return
    if not seen.transfers and not account.blocks.pins.any() and account.pages is None:
        return
    size = len(account.blocks.pins)
    most = tally(_joined(t.blocks for t in seen.transfers.values()), size)
    for load in seen.transfers.values():
        if not load.store and load.handle in seen.requests and len(load.keys):
            keys = seen.requests[load.handle].keys
            before = keys[: int((keys == load.keys[0]).argmax())]
            most = most + np.isin(seen.blocks.key[:size], before)
    pins = account.blocks.pins
    for block in where(pins > most):
        yield f"block {block} has {pins[block]} pins, transfers account for {most[block]}"
    least = tally(_joined(_written(t) for t in seen.transfers.values()), size)
    for block in where(pins < least):
        yield f"block {block} has no pin and is being loaded"
    if account.pages is None:
        return
    users = tally(_joined(t.pages for t in seen.transfers.values()), len(account.pages.pins))
    for page in where(account.pages.references != users):
        yield (
            f"page {page} has {account.pages.references[page]} references, "
            f"{users[page]} transfers use it"
        )


@invariant("INV-9", source="ours: the ledger of transfers is that of the host")
def a_transfer_is_open_until_it_is_reported(seen: Observation) -> Iterator[str]:
    """The scheduler waits for exactly the transfers that the host has not reported."""
    if seen.account is None or seen.account.transfers is None:
        return
    for ident in sorted(seen.account.transfers - seen.transfers.keys()):
        yield f"transfer {ident} is reported, and the scheduler waits for it"
    for ident in sorted(seen.transfers.keys() - seen.account.transfers):
        yield f"transfer {ident} is open, and the scheduler does not wait for it"


@invariant("INV-32", source=f"{_CATALOGUE}: what was copied counts once it is complete")
def what_was_copied_can_be_found(seen: Observation) -> Iterator[str]:
    """The keys of a complete store lead to pages, those of a load that is not late to blocks."""
    account = seen.account
    if account is None or account.pages is None:
        return
    late = frozenset[int]() if seen.before is None else seen.before.late
    for transfer, filled in seen.now.copied:
        memory = account.pages if transfer.store else account.blocks
        if transfer.ident in late or memory.index is None:
            continue
        keys = transfer.keys[:filled]
        for key in keys[memory.index.lead(keys) == NONE].tolist():
            yield f"transfer {transfer.ident} is complete, and key {key} leads nowhere"


def _joined(parts: Iterator[Ints]) -> Ints:
    return np.concatenate([EMPTY, *parts])


def _written(transfer: Transfer) -> Ints:
    """Return the KV blocks that a transfer writes."""
    return EMPTY if transfer.store else transfer.blocks


def _source(seen: Observation, transfer: Transfer) -> tuple[str, Ints, Memory]:
    """Return what a transfer reads: a word for one piece, their numbers, and their memory."""
    if transfer.store:
        return "block", transfer.blocks, seen.blocks
    return "page", transfer.pages, seen.pages
