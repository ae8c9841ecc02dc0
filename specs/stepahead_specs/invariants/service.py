"""Nobody is kept waiting, sent away or thrown out without need.

Safety alone lets a scheduler do too little. These rules bound that from below: what a selection
leaves out really had no room, a victim was really needed, a refusal has a reason that holds, and
content that came back can be found again. All estimates are on the scheduler's side: a rule speaks
up only where no reading of the limits excuses what happened.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from stepahead_specs.invariants.registry import invariant
from stepahead_specs.observation import Observation
from stepahead_specs.records import (
    EMPTY,
    PENDING,
    QUEUED,
    Ints,
    MemoryAccount,
    Request,
    RequestAccount,
)

_CATALOGUE: Final = "catalogue of known defects"


@invariant("INV-31", source=f"{_CATALOGUE}: preempting fenced victims yields nothing")
def a_victim_is_chosen_for_want_of_blocks(seen: Observation) -> Iterator[str]:
    """What is free or coming back does not cover what older requests want, whoever else goes."""
    chosen = _victims(seen)
    if not chosen or seen.before is None or seen.now.withdrawn:
        return
    before, blocks = seen.before.requests, seen.before.blocks
    eldest = min(chosen, key=lambda handle: seen.rank(seen.requests[handle]))
    elders = [
        handle
        for handle, account in before.items()
        if account.seat is not None
        and not _leaves(seen, account)
        and seen.rank(seen.requests[handle]) < seen.rank(seen.requests[eldest])
    ]
    wanted = sum(_lack(seen, before[handle]) for handle in elders)
    coming = int((blocks.places == PENDING).sum()) + len(_queue(blocks))
    going = [handle for handle in chosen if handle != eldest]
    going += [handle for handle, account in before.items() if _leaves(seen, account)]
    held = np.unique(np.concatenate([EMPTY, *(before[handle].blocks for handle in going)]))
    coming += int((blocks.references[held] == 1).sum())
    if wanted <= coming:
        yield (
            f"request {eldest} is chosen as victim, its elders want {wanted} blocks and "
            f"{coming} are free or coming"
        )


@invariant("INV-32", source=f"{_CATALOGUE}: commit, then emit, then release")
def content_that_came_back_can_be_found(seen: Observation) -> Iterator[str]:
    """Full prompt blocks of a batch that came back have their keys, also where a request ended."""
    index = None if seen.account is None else seen.account.blocks.index
    if index is None or not seen.limits.prefix_caching:
        return
    for batch in seen.now.executed:
        for row in batch.rows:
            request = seen.requests[row.handle]
            gone = request.finished_at not in (None, seen.step) or row.epoch <= request.void
            if gone or row.epoch != request.epoch:
                continue
            size = seen.limits.block_size
            for slot in range(row.position // size, row.end // size):
                key = request.key_of(slot)
                if key is not None and index.get(key) is None:
                    where = f"slot {slot} of request {row.handle}"
                    yield f"{where} is back, and key {key} leads nowhere"


@invariant("INV-33", source=f"{_CATALOGUE}: a running request is silently skipped")
def nobody_is_left_out_while_there_is_room(seen: Observation) -> Iterator[str]:
    """With rows, tokens and blocks to spare, every running request that can have a row has one."""
    if not _has_room(seen) or seen.account is None:
        return
    chosen = {row.handle for batch in seen.now.selected for row in batch.rows}
    for handle, account in seen.account.requests.items():
        if account.seat is not None and handle not in chosen and not _leaves(seen, account):
            yield f"request {handle} has no row, and there is room for it"


@invariant("INV-33", source=f"{_CATALOGUE}: admission stops while the cache is mostly free")
def the_first_in_line_is_let_in_while_there_is_room(seen: Observation) -> Iterator[str]:
    """With seats, rows, tokens and blocks to spare, the first waiting request is admitted."""
    account, limits = seen.account, seen.limits
    if not _has_room(seen) or account is None or not account.seats_free:
        return
    line = [handle for handle, request in account.requests.items() if request.state == QUEUED]
    running = [request for request in account.requests.values() if request.seat is not None]
    if not line or len(running) >= limits.max_concurrency:
        return
    first = min((seen.requests[handle] for handle in line), key=seen.rank)
    if _may_await_a_copy(seen, first):
        return
    needs = _blocks(seen, account.requests[first.handle].known)
    promised = sum(max(_blocks(seen, r.known) - len(r.blocks), 0) for r in running)
    free = spare_blocks(seen)
    if needs + promised <= free:
        yield (
            f"request {first.handle} waits, its {needs} blocks and {promised} promised ones are "
            f"among {free} free ones"
        )


@invariant("INV-34", source=f"{_CATALOGUE}: one request that fits blocks the engine, or never fits")
def a_refusal_has_a_reason_that_holds(seen: Observation) -> Iterator[str]:
    """A request is refused for length, size or a full line exactly if that is so."""
    for request, reason in seen.now.declined:
        holds = _reasons(seen, request, waiting=_waiting(seen))
        if reason in _JUDGED and reason not in holds:
            yield f"{request.request_id!r} is refused as {reason}, which does not hold"
    for handle in seen.now.admitted:
        waiting = _waiting(seen) - 1
        for reason in _reasons(seen, seen.requests[handle], waiting=waiting):
            yield f"request {handle} is admitted, although {reason} holds"


@invariant("INV-35", source=f"{_CATALOGUE}: quiescence is real work in flight, not lists")
def idle_means_that_nothing_is_left(seen: Observation) -> Iterator[str]:
    """A scheduler calls itself idle exactly when nothing is live, outstanding or in transfer."""
    if seen.account is None or seen.account.idle is None:
        return
    left = [f"request {request.handle} is live" for request in seen.live()]
    left += [f"batch {batch.ident} is {batch.state}" for batch in seen.outstanding()]
    left += [f"transfer {ident} is open" for ident in seen.transfers]
    if seen.account.idle and left:
        yield f"the scheduler calls itself idle, and {left[0]}"
    if not seen.account.idle and not left:
        yield "the scheduler does not call itself idle, and nothing is left"


#: Reasons for a refusal that can be judged from outside.
_JUDGED: Final = ("empty_prompt", "prompt_too_long", "never_fits", "queue_full", "device_failed")


def _reasons(seen: Observation, request: Request, *, waiting: int) -> list[str]:
    limits = seen.limits
    judged = {
        "empty_prompt": request.prompt_length < 1,
        "prompt_too_long": request.prompt_length >= limits.max_model_len,
        "never_fits": _blocks(seen, request.final_length - 1) > limits.num_blocks,
        "queue_full": limits.max_waiting is not None and waiting >= limits.max_waiting,
        "device_failed": seen.device_failed,
    }
    return [reason for reason, holds in judged.items() if holds]


def _waiting(seen: Observation) -> int:
    requests = seen.account.requests.values() if seen.account else ()
    return sum(request.state == QUEUED for request in requests)


def _has_room(seen: Observation) -> bool:
    """Tell whether a selection, or one that did not happen, had rows, tokens and blocks left.

    Not so if a victim is awaited, or if anybody lacks a block for all that a row may compute.
    """
    limits, selected = seen.limits, seen.now.selected
    stopped = seen.paused or seen.pausing or seen.device_failed or seen.wake_pending
    if seen.now.withdrawn:
        return False
    asked = seen.now.event == "HostReady" and len(seen.outstanding()) <= limits.lookahead
    if not selected and (stopped or not asked):
        return False
    rows = [row for batch in selected for row in batch.rows]
    if len(rows) >= limits.max_concurrency:
        return False
    if sum(row.count for row in rows) >= limits.max_num_batched_tokens:
        return False
    return nobody_lacks(seen)


def nobody_lacks(seen: Observation) -> bool:
    """Tell whether there is a block for all that every running request may compute now.

    Not so if a victim is awaited, nor where nobody says which blocks are free.
    """
    account = seen.account
    if account is None or account.blocks.queue is None:
        return False
    counts = {row.handle: row.count for batch in seen.now.selected for row in batch.rows}
    lacking = 0
    for handle, request in account.requests.items():
        if request.intent != "none":
            return False
        if request.seat is not None:
            lacking += _lack(seen, request, given=counts.get(handle, 0))
    return lacking <= spare_blocks(seen)


def spare_blocks(seen: Observation) -> int:
    """Count the blocks that are free, and those that were taken for drafts alone."""
    rows = [row for batch in seen.now.selected for row in batch.rows]
    drafted = sum(_blocks(seen, row.end) - _blocks(seen, row.known_end) for row in rows)
    return drafted + free_blocks(seen)


def free_blocks(seen: Observation) -> int:
    """Count the blocks that may be handed out; 0 where nobody says."""
    return 0 if seen.account is None else len(_queue(seen.account.blocks))


def _lack(seen: Observation, account: RequestAccount, given: int = 0) -> int:
    """Return how many blocks a running request wants for one row beyond those that it has.

    ``given``: tokens of a row that it has got already and that count as scheduled.
    """
    limits = seen.limits
    start = account.scheduled - given
    end = min(max(account.known, start + 1), start + limits.max_tokens_per_row)
    end = min(end, seen.requests[account.handle].final_length - 1)
    return max(_blocks(seen, end) - len(account.blocks), 0)


def _leaves(seen: Observation, account: RequestAccount) -> bool:
    """Tell whether a running request gets no more rows: marked, or scheduled to its end."""
    last = seen.requests[account.handle].final_length - 1
    return account.seat is not None and (account.intent != "none" or account.scheduled >= last)


def _victims(seen: Observation) -> list[int]:
    """Return the requests that this selection has marked or preempted."""
    if seen.before is None or seen.account is None or seen.now.event not in ("HostReady", "Woke"):
        return []
    before, after = seen.before.requests, seen.account.requests
    return [
        handle
        for handle, now in after.items()
        if handle in before
        and (
            now.epoch > before[handle].epoch
            or (now.intent == "preempt" and before[handle].intent != "preempt")
        )
    ]


def _may_await_a_copy(seen: Observation, request: Request) -> bool:
    """Tell whether a waiting request may wait for the host rather than for room.

    For its own load, for somebody else's of content that it has too, or for a store that reads
    what its load would write.
    """
    return any(
        transfer.store
        or transfer.handle == request.handle
        or bool(np.isin(transfer.keys, request.keys).any())
        for transfer in seen.transfers.values()
    )


def _queue(memory: MemoryAccount) -> Ints:
    return EMPTY if memory.queue is None else memory.queue


def _blocks(seen: Observation, tokens: int) -> int:
    return -(-tokens // seen.limits.block_size)
