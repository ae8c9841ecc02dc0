"""Where KV blocks are, who may touch them, and what they contain."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead_specs.invariants.registry import invariant
from stepahead_specs.memory import Content
from stepahead_specs.observation import Observation
from stepahead_specs.records import (
    CACHED,
    EMPTY,
    HELD,
    NONE,
    PLACES,
    Account,
    Ints,
    MemoryAccount,
    Request,
    Row,
    tally,
    where,
)

Mask = NDArray[np.bool_]

_CATALOGUE: Final = "catalogue of known defects"


@invariant("INV-1", source=f"{_CATALOGUE}: quiescence")
def nothing_is_kept_when_nothing_is_left(seen: Observation) -> Iterator[str]:
    """With no live request, outstanding batch or open transfer all blocks and seats are free."""
    account = seen.account
    if account is None or seen.transfers or seen.live() or seen.outstanding():
        return
    for handle in account.requests:
        yield f"request {handle} is still accounted for, and nothing is live or outstanding"
    for word, memory in _memories(account):
        for piece in where((memory.references != 0) | (memory.places < CACHED)):
            yield (
                f"{word} {piece} is {PLACES[memory.places[piece]]} "
                f"({memory.references[piece]} references) at quiescence"
            )
        if memory.queue is not None and len(memory.queue) != len(memory.places):
            yield (f"{len(memory.queue)} of {len(memory.places)} {word}s are free at quiescence")
    if account.seats_free is not None and account.seats_free != account.seats:
        yield f"{account.seats_free} of {account.seats} seats are free at quiescence"


@invariant("INV-2", source=f"{_CATALOGUE}: conservation")
def every_block_is_in_one_place(seen: Observation) -> Iterator[str]:
    """A block is held by requests, waits for a batch, or may be handed out: exactly one of them."""
    account = seen.account
    if account is None:
        return
    size = len(account.blocks.places)
    if size != seen.limits.num_blocks:
        yield f"{size} of {seen.limits.num_blocks} blocks are accounted for"
    held = account.entries > 0
    loose = ~held & (account.blocks.queued == 0)
    waits = _touchable(seen, account) if loose.any() else loose
    yield from misplaced("block", account.blocks, held, waits)
    if int(account.entries.sum()) < sum(len(r.blocks) for r in account.requests.values()):
        for handle, request in account.requests.items():
            for block in request.blocks[(request.blocks < 0) | (request.blocks >= size)].tolist():
                yield f"request {handle} holds block {block}, and there is none"


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
    size = seen.limits.block_size
    given = {
        block: (batch.ident, row.handle, row.epoch)
        for batch in seen.now.selected
        for row in batch.rows
        for slot, block in row.fresh
        if (slot + 1) * size > row.position
    }
    # One more than there are blocks: so the last stands for a block that was never told.
    free = np.zeros(seen.limits.num_blocks + 1, dtype=bool)
    if seen.account is not None:
        free[:-1] = seen.account.blocks.queued > 0
    watched = free.copy()
    watched[[block for block in given if block != NONE]] = True
    sitting = {row.seat: row for batch in seen.now.selected for row in batch.rows}
    for batch in seen.outstanding():
        if batch.tampered:
            yield f"the arrays of batch {batch.ident} were changed after the host got them"
        for row in batch.rows:
            where = f"row of request {row.handle} in outstanding batch {batch.ident}"
            for block in row.table[watched[row.table]].tolist():
                if free[block]:
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
    holders = np.append(seen.account.entries, 0)
    for batch in seen.now.selected:
        for row in batch.rows:
            first = row.position // seen.limits.block_size
            written, own = row.table[first:], seen.account.requests.get(row.handle)
            if own is not None and np.array_equal(written, own.blocks[first : len(row.table)]):
                written = written[holders[written] > 1]
            for block in written.tolist():
                for owner, request in seen.account.requests.items():
                    if owner != row.handle and block in request.blocks:
                        yield (
                            f"batch {batch.ident} writes block {block} for request {row.handle}, "
                            f"and request {owner} holds it too"
                        )


@invariant("INV-4", source=f"{_CATALOGUE}: references")
def references_are_counted_by_their_holders(seen: Observation) -> Iterator[str]:
    """A block has one reference per table entry of a live request and per pin of a transfer."""
    account = seen.account
    if account is None:
        return
    blocks, entries = account.blocks, account.entries
    if any(h not in seen.requests or not seen.requests[h].live for h in account.requests):
        live = [r.blocks for h, r in account.requests.items() if h in seen.alive]
        entries = tally(np.concatenate([EMPTY, *live]), len(blocks.places))
    for block in where(blocks.references != entries + blocks.pins):
        pinned = f" and {blocks.pins[block]} transfers pin it" if blocks.pins[block] else ""
        yield (
            f"block {block} has {blocks.references[block]} references, "
            f"{entries[block]} table entries of live requests name it{pinned}"
        )


@invariant("INV-5", source=f"{_CATALOGUE}: identity only for final content")
def a_key_stands_for_written_content(seen: Observation) -> Iterator[str]:
    """A block or page has a key only if just that content came into all of it, and is complete."""
    if seen.account is None:
        return
    contents = {"block": seen.blocks, "page": seen.pages}
    for word, memory in _memories(seen.account):
        keys, held = memory.keys, contents[word]
        for piece in where((keys != NONE) & (keys != held.key[: len(keys)])):
            why = _not_content(seen, held.get(piece))
            yield f"{word} {piece} has key {keys[piece]}, but {why}"


@invariant("INV-6", source=f"{_CATALOGUE}: identity is two-way")
def keys_and_blocks_agree(seen: Observation) -> Iterator[str]:
    """The index from key to block (or page) and the key kept with it name each other."""
    for word, memory in _memories(seen.account):
        index, keys = memory.index, memory.keys
        if index is None:
            continue
        for place in where(keys[index.pieces] != index.keys):
            key, piece = index.keys[place], int(index.pieces[place])
            yield f"key {key} leads to {word} {piece}, which has key {_or_none(keys[piece])}"
        led = np.full_like(keys, NONE)
        led[index.pieces] = index.keys
        for piece in where((keys != NONE) & (led != keys)):
            key = int(keys[piece])
            yield f"{word} {piece} has key {key}, which leads to {index.get(key)}"


@invariant("INV-6", source=f"{_CATALOGUE}: a hit returns what its key says")
def a_live_row_reads_its_own_history(seen: Observation) -> Iterator[str]:
    """Every block that a dispatched live row reads holds its own history, or equal content.

    What is still being loaded for just that request, layer by layer, counts as there.
    """
    for batch in seen.now.dispatched:
        for index, row in enumerate(batch.rows):
            if index >= len(batch.live) or not batch.live[index]:
                continue
            request = seen.requests[row.handle]
            for slot in _foreign_slots(seen, request, row):
                if why := _not_history(seen, request, row, slot):
                    yield f"batch {batch.ident} reads slot {slot} of request {row.handle}: {why}"


@invariant("INV-18", source=f"{_CATALOGUE}: reset")
def a_reset_forgets_everything(seen: Observation) -> Iterator[str]:
    """After a reset nothing has a key or is on its way, and no hit returns what was before."""
    if seen.now.reset:
        yield from _remembered(seen)
    for batch in seen.now.selected:
        for row in batch.rows:
            for slot, reused in row.fresh:
                content = seen.blocks.get(reused)
                hit = (slot + 1) * seen.limits.block_size <= row.position
                if hit and content is not None and content.age < seen.blocks.resets:
                    yield (
                        f"batch {batch.ident} reuses block {reused} for request {row.handle}, "
                        f"written before the reset"
                    )


@invariant("INV-21", source=f"{_CATALOGUE}: a selection is a transaction")
def blocks_follow_what_is_scheduled(seen: Observation) -> Iterator[str]:
    """A live request holds exactly the blocks of its scheduled positions, as the host was told."""
    if seen.account is None:
        return
    size = seen.limits.block_size
    for handle, request in seen.account.requests.items():
        known = seen.alive.get(handle)
        if known is None or not known.live:
            continue
        held, need = len(request.blocks), -(-request.scheduled // size)
        if held != need:
            yield (
                f"request {handle} holds {held} blocks, "
                f"{need} hold its {request.scheduled} scheduled positions"
            )
        if not held or request.epoch != known.epoch:
            continue
        told = known.table[:held]
        if not np.array_equal(told, request.blocks):
            blocks, table = tuple(request.blocks.tolist()), tuple(told.tolist())
            yield f"request {handle} holds blocks {blocks}, the host was told {table}"


def _remembered(seen: Observation) -> Iterator[str]:
    for word, memory in _memories(seen.account):
        keyed = memory.keys != NONE if word in seen.now.forgotten else EMPTY
        for piece in where(keyed):
            yield f"{word} {piece} still has key {memory.keys[piece]} after the reset"
    for ident in seen.transfers:
        yield f"the cache is reset during transfer {ident}, which brings content back"


def _memories(account: Account | None) -> list[tuple[str, MemoryAccount]]:
    """Return what is told of each memory, with the word for one piece of it."""
    if account is None:
        return []
    blocks = ("block", account.blocks)
    return [blocks] if account.pages is None else [blocks, ("page", account.pages)]


def misplaced(word: str, memory: MemoryAccount, held: Mask, waits: Mask) -> Iterator[str]:
    """Say of each piece that is not in exactly one place what is wrong; masks by number."""
    queue, size = EMPTY if memory.queue is None else memory.queue, len(memory.places)
    for piece in queue[(queue < 0) | (queue >= size)].tolist():
        yield f"{word} {piece} may be handed out, and there is none"
    times = memory.queued
    queued, places = times > 0, memory.places
    wrong = (times > 1) | (held & queued)
    if memory.queue is not None:
        wrong |= (held != (places == HELD)) | (queued != (places >= CACHED))
        wrong |= ~held & ~queued & ~waits
    for piece in where(wrong):
        if times[piece] > 1:
            yield f"{word} {piece} stands {times[piece]} times in the line of free {word}s"
        if held[piece] and queued[piece]:
            yield f"{word} {piece} is held by a request and may be handed out as well"
        if memory.queue is None:
            continue
        told, here = int(places[piece]), (bool(held[piece]), bool(queued[piece]))
        if here != (told == HELD, told >= CACHED):
            yield f"{word} {piece} is {PLACES[told]} (held, free for use: {here[0]}, {here[1]})"
        if not any(here) and not waits[piece]:
            yield f"{word} {piece} is nowhere: not held, not free, in no outstanding batch"


def _touchable(seen: Observation, account: Account) -> Mask:
    """Mark the blocks of rows of batches behind which an older one, or they, are not back.

    What a transfer pins is marked as well.
    """
    marked = np.zeros(len(account.blocks.places) + 1, dtype=bool)
    out = seen.outstanding()
    for batch in seen.recent if out else ():
        if batch.ident >= out[0].ident:
            for row in batch.rows:
                marked[row.table] = True
    return marked[:-1] | (account.blocks.pins > 0)


def _foreign_slots(seen: Observation, request: Request, row: Row) -> list[int]:
    """Return the slots before a row whose blocks do not obviously hold the request's history."""
    size, memory = seen.limits.block_size, seen.blocks
    slots = np.arange(-(-row.position // size))
    blocks = row.table[: len(slots)]
    keys = np.full(len(slots), NONE)
    keys[: len(request.keys)] = request.keys[: len(slots)]
    held = memory.key[blocks]
    same = (memory.handle[blocks] == request.handle) & (memory.slot[blocks] == slots)
    same |= (held == keys) & (held != NONE)
    return where(~same | (memory.filled[blocks] < _needed(row, slots, size)))


def _needed(row: Row, slots: Ints, size: int) -> Ints:
    """Return how many positions of each slot lie before a row."""
    return np.minimum(row.position - slots * size, size)


def _not_content(seen: Observation, content: Content | None) -> str:
    if content is None:
        return "no batch that came back wrote it"
    if not content.filled:
        return f"{content.writer} wrote what nobody may read into it"
    if content.filled < seen.limits.block_size:
        return f"only {content.filled} positions of request {content.handle} are written"
    return f"it holds slot {content.slot} of request {content.handle}, which has another key"


def _not_history(seen: Observation, request: Request, row: Row, slot: int) -> str | None:
    block = int(row.table[slot])
    if block == NONE:
        return "the host was never told its block"
    load = None if request.runs_on is None else seen.transfers.get(request.runs_on)
    if load is not None and block in load.blocks:
        return None
    content = seen.blocks.get(block)
    if content is None:
        return f"no batch that came back wrote block {block}"
    needed = min(row.position - slot * seen.limits.block_size, seen.limits.block_size)
    if content.filled < needed:
        return f"block {block} has {content.filled} written positions, {needed} are read"
    owner = "nobody" if content.handle is None else f"request {content.handle}"
    return f"block {block} holds slot {content.slot} of {owner}, written by {content.writer}"


def _or_none(number: int) -> int | None:
    return None if number == NONE else number
