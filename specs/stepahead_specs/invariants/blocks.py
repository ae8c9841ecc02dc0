"""Where KV blocks are, who may touch them, and what they contain."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final

from stepahead_specs.invariants.registry import invariant
from stepahead_specs.observation import Observation
from stepahead_specs.records import Content, Request, Row

_CATALOGUE: Final = "catalogue of known defects"


@invariant("INV-1", source=f"{_CATALOGUE}: quiescence")
def nothing_is_kept_when_nothing_is_left(seen: Observation) -> Iterator[str]:
    """With no live request and no outstanding batch every block and every seat is free."""
    account = seen.account
    if account is None or seen.live() or seen.outstanding():
        return
    for handle in account.requests:
        yield f"request {handle} is still accounted for, and nothing is live or outstanding"
    for number, block in enumerate(account.blocks):
        if block.references or block.place not in ("free", "cached"):
            yield f"block {number} is {block.place} ({block.references} references) at quiescence"
    if account.queue is not None and len(account.queue) != seen.limits.num_blocks:
        yield f"{len(account.queue)} of {seen.limits.num_blocks} blocks are free at quiescence"
    if account.seats_free is not None and account.seats_free != account.seats:
        yield f"{account.seats_free} of {account.seats} seats are free at quiescence"


@invariant("INV-2", source=f"{_CATALOGUE}: conservation")
def every_block_is_in_one_place(seen: Observation) -> Iterator[str]:
    """A block is held by requests, waits for a batch, or may be handed out: exactly one of them."""
    account = seen.account
    if account is None:
        return
    if len(account.blocks) != seen.limits.num_blocks:
        yield f"{len(account.blocks)} of {seen.limits.num_blocks} blocks are accounted for"
    held = set(chain.from_iterable(request.blocks for request in account.requests.values()))
    queue = Counter(account.queue or ())
    touchable = _touchable(seen)
    for number, block in enumerate(account.blocks):
        places = [number in held, queue[number] > 0]
        if queue[number] > 1:
            yield f"block {number} stands {queue[number]} times in the line of free blocks"
        if all(places):
            yield f"block {number} is held by a request and may be handed out as well"
        if account.queue is None:
            continue
        told = {"held": (True, False), "pending": (False, False)}.get(block.place, (False, True))
        if tuple(places) != told:
            yield f"block {number} is {block.place} (held, free for use: {places[0]}, {places[1]})"
        if not any(places) and number not in touchable:
            yield f"block {number} is nowhere: not held, not free, in no outstanding batch"


@invariant("INV-2", source=f"{_CATALOGUE}: conservation")
def every_seat_is_in_one_place(seen: Observation) -> Iterator[str]:
    """Free seats, draining seats and seats of live requests are all the seats there are."""
    account = seen.account
    if account is None:
        return
    yield from account.problems
    if account.seats_free is None or account.seats is None:
        return
    taken = Counter(r.seat for r in account.requests.values() if r.seat is not None)
    for seat, times in taken.items():
        if times > 1:
            yield f"{times} live requests sit on seat {seat}"
    if account.seats_free + account.seats_draining + len(taken) != account.seats:
        yield (
            f"{account.seats_free} free, {account.seats_draining} draining and {len(taken)} taken "
            f"seats are not {account.seats}"
        )


@invariant("INV-3", source=f"{_CATALOGUE}: in-flight pin")
def what_a_batch_may_touch_has_no_other_owner(seen: Observation) -> Iterator[str]:
    """A block or seat of an outstanding row is not free, given to another, or rewritten."""
    given = {
        block: (batch.ident, row.handle, row.epoch)
        for batch in seen.now.selected
        for row in batch.rows
        for slot, block in row.fresh
        if (slot + 1) * seen.limits.block_size > row.position
    }
    queue = frozenset(seen.account.queue or ()) if seen.account else frozenset[int]()
    sitting = {row.seat: row for batch in seen.now.selected for row in batch.rows}
    for batch in seen.outstanding():
        if batch.tampered:
            yield f"the arrays of batch {batch.ident} were changed after the host got them"
        for row in batch.rows:
            where = f"row of request {row.handle} in outstanding batch {batch.ident}"
            for block in row.table:
                if block is None:
                    continue
                if block in queue:
                    yield f"block {block} may be handed out, and the {where} touches it"
                if block in given and given[block][1:] != (row.handle, row.epoch):
                    yield (
                        f"block {block} is given to request {given[block][1]} in batch "
                        f"{given[block][0]}, and the {where} touches it"
                    )
            other = sitting.get(row.seat)
            if other is not None and other.handle != row.handle:
                yield f"seat {row.seat} is given to request {other.handle}, the {where} sits there"


@invariant("INV-3", source=f"{_CATALOGUE}: in-flight pin")
def a_block_has_one_writer(seen: Observation) -> Iterator[str]:
    """A block that is given to be written stands in no other live request's table."""
    if not seen.now.selected or seen.account is None:
        return
    owners: dict[int, list[int]] = {}
    for request in seen.account.requests.values():
        for block in request.blocks:
            owners.setdefault(block, []).append(request.handle)
    for batch in seen.now.selected:
        for row in batch.rows:
            first = row.position // seen.limits.block_size
            for written in row.table[first:]:
                for owner in () if written is None else owners.get(written, ()):
                    if owner != row.handle:
                        yield (
                            f"batch {batch.ident} writes block {written} for request {row.handle}, "
                            f"and request {owner} holds it too"
                        )


@invariant("INV-4", source=f"{_CATALOGUE}: references")
def references_are_counted_by_their_holders(seen: Observation) -> Iterator[str]:
    """Each block has one reference per table entry of a live request, and never less than none."""
    account = seen.account
    if account is None:
        return
    entries = Counter(
        chain.from_iterable(
            request.blocks
            for handle, request in account.requests.items()
            if handle in seen.requests and seen.requests[handle].live
        )
    )
    for number, block in enumerate(account.blocks):
        if block.references != entries[number]:
            yield (
                f"block {number} has {block.references} references, "
                f"{entries[number]} table entries of live requests name it"
            )


@invariant("INV-5", source=f"{_CATALOGUE}: identity only for final content")
def a_key_stands_for_written_content(seen: Observation) -> Iterator[str]:
    """A block has a key only if batches that came back wrote just that content into all of it."""
    if seen.account is None:
        return
    for number, block in enumerate(seen.account.blocks):
        if block.key is not None and (why := _not_content(seen, number, block.key)):
            yield f"block {number} has key {block.key}, but {why}"


@invariant("INV-6", source=f"{_CATALOGUE}: identity is two-way")
def keys_and_blocks_agree(seen: Observation) -> Iterator[str]:
    """The index from key to block and the key kept with the block name each other."""
    account = seen.account
    if account is None or account.index is None:
        return
    for key, number in account.index.items():
        if account.blocks[number].key != key:
            yield f"key {key} leads to block {number}, which has key {account.blocks[number].key}"
    for number, block in enumerate(account.blocks):
        if block.key is not None and account.index.get(block.key) != number:
            leads = account.index.get(block.key)
            yield f"block {number} has key {block.key}, which leads to {leads}"


@invariant("INV-6", source=f"{_CATALOGUE}: a hit returns what its key says")
def a_live_row_reads_its_own_history(seen: Observation) -> Iterator[str]:
    """Every block that a dispatched live row reads holds its own history, or equal content."""
    for batch in seen.now.dispatched:
        for index, row in enumerate(batch.rows):
            if index >= len(batch.live) or not batch.live[index]:
                continue
            request = seen.requests[row.handle]
            for slot in range(-(-row.position // seen.limits.block_size)):
                if why := _not_history(seen, request, row, slot):
                    yield f"batch {batch.ident} reads slot {slot} of request {row.handle}: {why}"


@invariant("INV-18", source=f"{_CATALOGUE}: reset")
def a_reset_forgets_everything(seen: Observation) -> Iterator[str]:
    """After a reset no block has a key, and no hit returns what was written before."""
    if seen.now.reset and seen.account is not None:
        for number, block in enumerate(seen.account.blocks):
            if block.key is not None:
                yield f"block {number} still has key {block.key} after the reset"
    for batch in seen.now.selected:
        for row in batch.rows:
            for slot, reused in row.fresh:
                content = seen.contents.get(reused)
                hit = (slot + 1) * seen.limits.block_size <= row.position
                if hit and content is not None and content.age < seen.resets:
                    yield (
                        f"batch {batch.ident} reuses block {reused} for request {row.handle}, "
                        f"written before the reset"
                    )


@invariant("INV-21", source=f"{_CATALOGUE}: a selection is a transaction")
def blocks_follow_what_is_scheduled(seen: Observation) -> Iterator[str]:
    """A live request holds exactly the blocks of its scheduled positions, as the host was told."""
    if seen.account is None:
        return
    for handle, request in seen.account.requests.items():
        known = seen.requests.get(handle)
        if known is None or not known.live:
            continue
        need = -(-request.scheduled // seen.limits.block_size)
        if len(request.blocks) != need:
            yield (
                f"request {handle} holds {len(request.blocks)} blocks, "
                f"{need} hold its {request.scheduled} scheduled positions"
            )
        if request.epoch != known.epoch or not request.blocks:
            continue
        told = tuple(known.table.get(slot) for slot in range(len(request.blocks)))
        if told != request.blocks:
            yield f"request {handle} holds blocks {request.blocks}, the host was told {told}"


def _touchable(seen: Observation) -> set[int]:
    """Return the blocks of rows of batches behind which an older one, or they, are not back."""
    out = seen.outstanding()
    if not out:
        return set()
    return {
        block
        for batch in seen.batches.values()
        if batch.ident >= out[0].ident
        for row in batch.rows
        for block in row.table
        if block is not None
    }


def _not_content(seen: Observation, number: int, key: int) -> str | None:
    content = seen.contents.get(number)
    if content is None:
        return "no batch that came back wrote it"
    if content.handle is None:
        return f"batch {content.batch} wrote what nobody may read into it"
    if content.filled < seen.limits.block_size:
        return f"only {content.filled} positions of request {content.handle} are written"
    if seen.requests[content.handle].key_of(content.slot) != key:
        return f"it holds slot {content.slot} of request {content.handle}, which has another key"
    return None


def _not_history(seen: Observation, request: Request, row: Row, slot: int) -> str | None:
    block = row.table[slot]
    if block is None:
        return "the host was never told its block"
    content = seen.contents.get(block)
    if content is None:
        return f"no batch that came back wrote block {block}"
    needed = min(row.position - slot * seen.limits.block_size, seen.limits.block_size)
    if content.filled < needed:
        return f"block {block} has {content.filled} written positions, {needed} are read"
    return None if _same(seen, request, slot, content) else _foreign(block, content)


def _same(seen: Observation, request: Request, slot: int, content: Content) -> bool:
    if content.handle is None:
        return False
    if (content.handle, content.slot) == (request.handle, slot):
        return True
    key = seen.requests[content.handle].key_of(content.slot)
    return key is not None and key == request.key_of(slot)


def _foreign(block: int, content: Content) -> str:
    owner = "nobody" if content.handle is None else f"request {content.handle}"
    return f"block {block} holds slot {content.slot} of {owner}, written by batch {content.batch}"
