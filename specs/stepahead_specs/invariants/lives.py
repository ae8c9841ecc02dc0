"""How requests come, wait, are served in turn, and end."""

from collections.abc import Iterator
from typing import Final

from stepahead_specs.invariants.registry import Kind, invariant
from stepahead_specs.observation import Observation
from stepahead_specs.records import DISPATCHED, QUEUED

_CATALOGUE: Final = "catalogue of known defects"

#: The counters that can be counted from outside.
COUNTED: Final = (
    "admitted",
    "refused",
    "ended",
    "ignored_cancels",
    "preemptions",
    "wasted_rows_stop",
    "wasted_rows_abort",
    "wasted_rows_error",
    "discarded_rows",
    "refused_batches",
    "host_tokens",
    "remote_tokens",
    "stored_blocks",
    "failed_transfers",
    "expired_loads",
    "ignored_transfers",
    "drafted_tokens",
    "accepted_tokens",
)


@invariant("INV-11", source=f"{_CATALOGUE}: one terminal event")
def every_arrival_is_answered_once(seen: Observation) -> Iterator[str]:
    """An arrival is admitted or refused, in its own step and once; no fact is about a stranger."""
    answers = len(seen.now.admitted) + len(seen.now.refused)
    if answers != len(seen.now.arrived):
        yield f"{len(seen.now.arrived)} arrivals get {answers} answers"
    for key, sentence in seen.now.strays:
        yield f"{sentence} [{key}]"


@invariant("INV-11", source=f"{_CATALOGUE}: nothing after the terminal event")
def a_client_that_left_hears_nothing_more(seen: Observation) -> Iterator[str]:
    """A cancel or failure ends a live request in its own step; no token goes out after an end."""
    due = [(handle, "abort", "was cancelled") for handle in seen.now.cancelled]
    due += [(handle, "error", "was on the device that failed") for handle in seen.now.failed]
    for handle, reason, why in due:
        request = seen.requests[handle]
        if request.finish != reason or request.finished_at != seen.step:
            yield f"request {handle} {why} and is {request.finish or 'still live'}"
    for handle in seen.now.finished:
        request = seen.requests[handle]
        if request.finish == "abort" and request.cancelled_at is None:
            yield f"request {handle} ends by abort, and nobody cancelled it"
        if request.finish == "error" and not request.failed:
            yield f"request {handle} ends by error, and no device failed"
    ended: set[int] = set()
    for word, handle in seen.now.order:
        if word == "finish":
            ended.add(handle)
        elif word == "emit" and (handle in ended or _ended_before(seen, handle)):
            yield f"request {handle} is sent a token after its end"


@invariant("INV-12", source=f"{_CATALOGUE}: no work for the ended")
def an_ended_request_is_not_selected(seen: Observation) -> Iterator[str]:
    """No new batch has a row of a request that has ended."""
    for batch in seen.now.selected:
        for row in batch.rows:
            request = seen.requests[row.handle]
            if not request.live:
                ended = request.finished_at
                yield f"batch {batch.ident} selects request {row.handle}, ended at step {ended}"


@invariant("INV-12", source=f"{_CATALOGUE}: bounded waste")
def waste_is_bounded_by_the_lookahead(seen: Observation) -> Iterator[str]:
    """An end by length wastes no row, by stop at most ``lookahead``, by cancel max(1, that).

    With a host cache a cancel may waste one more: of a batch that waits for a write-back.
    """
    depth = seen.limits.lookahead
    waiting = int(seen.limits.host_pages > 0)
    for handle in seen.now.finished:
        rows = seen.rows_of(handle)
        if seen.requests[handle].finish == "length" and rows:
            ident = rows[0][0].ident
            yield f"request {handle} ends by length and has a row in outstanding batch {ident}"
    bounds = {"length": 0, "stop": depth}
    for batch in seen.now.dispatched:
        for handle in {row.handle for row in batch.rows}:
            request = seen.requests[handle]
            bound = bounds.get(request.finish or "", max(1, depth + waiting))
            if request.wasted > bound:
                yield (
                    f"batch {batch.ident} wastes row {request.wasted} of request {handle}, "
                    f"ended by {request.finish}; at most {bound} may be"
                )


@invariant("INV-15", source=f"{_CATALOGUE}: progress")
def an_idle_device_gets_work(seen: Observation) -> Iterator[str]:
    """A ready host without an outstanding batch gets one while a live request waits."""
    # What is being copied may be what it waits for; its end will be reported.
    stopped = seen.paused or seen.pausing or seen.device_failed or bool(seen.transfers)
    if seen.now.event != "HostReady" or stopped or seen.outstanding():
        return
    if live := seen.live():
        yield f"nothing is outstanding or selected, and request {live[0].handle} waits for ever"


@invariant("INV-15", source=f"{_CATALOGUE}: progress", kind=Kind.EVENTUALLY)
def every_request_ends(seen: Observation) -> Iterator[str]:
    """Once clients, host and NPU have done their part, every request has had its last word."""
    for request in seen.live():
        yield f"request {request.handle} has not ended"
    for batch in seen.outstanding():
        yield f"batch {batch.ident} is still {batch.state}"
    for ident in seen.transfers:
        yield f"transfer {ident} is still open"


@invariant("INV-16", source=f"{_CATALOGUE}: order")
def nobody_overtakes_in_the_line(seen: Observation) -> Iterator[str]:
    """A request that gets its first rows stands before every request that is left waiting."""
    rows = seen.outstanding_rows() if seen.now.selected else {}
    started = [
        (batch, seen.requests[row.handle])
        for batch in seen.now.selected
        for row in batch.rows
        if row.position == row.starts and len(rows.get(row.handle, ())) == 1
    ]
    waiting = [r for r in seen.live() if _waits(seen, r.handle)] if started else []
    for batch, request in started:
        for other in waiting:
            if seen.rank(other) < seen.rank(request):
                yield (
                    f"batch {batch.ident} starts request {request.handle}, "
                    f"and request {other.handle} before it waits"
                )


@invariant("INV-31", source="design: preemption is lazy, and takes the youngest")
def a_marked_victim_joins_no_batch(seen: Observation) -> Iterator[str]:
    """A request that waits to be preempted is in no new batch."""
    if seen.account is None:
        return
    for batch in seen.now.selected:
        for row in batch.rows:
            account = seen.account.requests.get(row.handle)
            if account is not None and account.intent == "preempt":
                yield f"batch {batch.ident} selects request {row.handle}, which is to be preempted"


@invariant("INV-31", source="design: preemption is lazy, and takes the youngest")
def the_youngest_are_the_victims(seen: Observation) -> Iterator[str]:
    """Who is marked or preempted by a selection is younger than every running one that is not."""
    if seen.account is None or seen.before is None or seen.now.event not in ("HostReady", "Woke"):
        return
    before, after = seen.before.requests, seen.account.requests
    chosen = [
        handle
        for handle, now in after.items()
        if handle in before
        and (now.epoch > before[handle].epoch or now.intent != before[handle].intent)
    ]
    for handle in chosen:
        for other, account in before.items():
            spared = account.seat is not None and other not in chosen and account.intent == "none"
            last = seen.requests[other].final_length - 1
            if not spared or account.scheduled >= last:
                continue
            if seen.rank(seen.requests[other]) > seen.rank(seen.requests[handle]):
                yield f"request {handle} is chosen as victim, and request {other} is younger"


@invariant("INV-19", source=f"{_CATALOGUE}: pause")
def a_pause_waits_for_the_device(seen: Observation) -> Iterator[str]:
    """A pause is reported once, exactly when no batch and no transfer is outstanding.

    Nothing is selected in it.
    """
    out = seen.outstanding()
    if seen.now.paused and out:
        yield f"the pause is reported and batch {out[0].ident} is {out[0].state}"
    if seen.now.paused and seen.transfers:
        yield f"the pause is reported and transfer {next(iter(seen.transfers))} is open"
    if seen.pausing and not out and not seen.transfers:
        yield "nothing is outstanding, and the pause is not reported"
    if seen.now.selected and (seen.paused or seen.pausing):
        yield f"batch {seen.now.selected[0].ident} is selected during a pause"


@invariant("INV-20", source=f"{_CATALOGUE}: gauges")
def counters_equal_what_was_seen(seen: Observation) -> Iterator[str]:
    """Counters of the scheduler equal the same counts taken from outside."""
    if seen.account is None:
        return
    for name, value in seen.account.counters.items():
        if name in COUNTED and value != seen.totals.get(name, 0):
            yield f"the counter {name} is {value}, {seen.totals.get(name, 0)} were seen"


@invariant("INV-24", source=f"{_CATALOGUE}: identity")
def a_handle_names_one_stay(seen: Observation) -> Iterator[str]:
    """Handles only grow; an id is refused as duplicate exactly while a live request has it."""
    for handle in seen.now.admitted:
        if handle <= seen.now.newest:
            yield f"request {handle} is admitted after request {seen.now.newest}"
        name = seen.requests[handle].request_id
        for other in seen.live():
            if other.handle != handle and other.request_id == name:
                yield f"request {handle} is admitted as {name!r}, as is request {other.handle}"
    for name, reason in seen.now.refused:
        twins = [request for request in seen.live() if request.request_id == name]
        if reason == "duplicate_id" and not twins:
            yield f"{name!r} is refused as a duplicate, and no live request has that id"


@invariant("INV-28", source="design: a live request's state follows its oldest row not yet filled")
def a_state_follows_the_oldest_row(seen: Observation) -> Iterator[str]:
    """PREPARED: its oldest row is not dispatched; DISPATCHED: it is; else none is out."""
    if seen.account is None:
        return
    outstanding = seen.outstanding_rows()
    for handle, account in seen.account.requests.items():
        request = seen.alive.get(handle)
        if request is None or not request.live:
            continue
        rows = outstanding.get(handle)
        if rows:
            expected = "dispatched" if rows[0][0].state == DISPATCHED else "prepared"
        else:
            expected = "filled" if len(account.blocks) else "queued"
        if account.state != expected:
            rows = rows or []
            out = ", ".join(f"{batch.ident} is {batch.state}" for batch, _ in rows) or "none is out"
            yield f"request {handle} is {account.state}; its batches: {out}"


def _ended_before(seen: Observation, handle: int) -> bool:
    request = seen.requests.get(handle)
    return request is not None and not request.live and request.finished_at != seen.step


def _waits(seen: Observation, handle: int) -> bool:
    if seen.account is not None and handle in seen.account.requests:
        return seen.account.requests[handle].state == QUEUED
    return seen.requests[handle].epoch < 0
