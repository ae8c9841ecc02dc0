"""Situations that a search must reach, or it has proved nothing about them.

A goal is a predicate over the `Observation` after a step. The machines record each goal that they
reach; a run in CI that never reaches one fails and names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from stepahead_specs.observation import Observation
from stepahead_specs.records import DISPATCHED, PENDING, PREPARED, Request, Row

Seen: TypeAlias = Callable[[Observation], bool]


@dataclass(frozen=True, slots=True)
class Goal:
    """One situation, in words, and how it is recognised."""

    words: str
    reached: Seen


GOALS: Final[dict[str, Goal]] = {}


def goal(words: str) -> Callable[[Seen], Seen]:
    """Put the decorated predicate in the list."""

    def enlist(reached: Seen) -> Seen:
        GOALS[words] = Goal(words, reached)
        return reached

    return enlist


def reached(seen: Observation) -> list[str]:
    """Return the goals that hold after this step."""
    return [words for words, entry in GOALS.items() if entry.reached(seen)]


def _state_before(seen: Observation, handle: int) -> str | None:
    if seen.before is None or handle not in seen.before.requests:
        return None
    return seen.before.requests[handle].state


def _cancelled_while(state: str) -> Seen:
    def holds(seen: Observation) -> bool:
        return any(_state_before(seen, handle) == state for handle in seen.now.cancelled)

    return holds


for _state in ("queued", "prepared", "dispatched", "filled"):
    goal(f"a request is cancelled while {_state}")(_cancelled_while(_state))


@goal("a request is preempted at once")
def _preempted_at_once(seen: Observation) -> bool:
    return seen.now.event == "HostReady" and _epochs_grew(seen)


@goal("a victim with rows in flight is preempted at its last row")
def _preempted_at_fill(seen: Observation) -> bool:
    return seen.now.event == "BatchExecuted" and _epochs_grew(seen)


@goal("a victim waits for its rows")
def _marked(seen: Observation) -> bool:
    requests = seen.account.requests.values() if seen.account else ()
    return any(request.intent == "preempt" for request in requests)


@goal("a marked victim ends before it is preempted")
def _marked_ends(seen: Observation) -> bool:
    if seen.before is None:
        return False
    marked = {h for h, r in seen.before.requests.items() if r.intent == "preempt"}
    return any(handle in marked for handle in seen.now.finished)


@goal("a preempted request is selected again with sampled tokens to recompute")
def _recomputed(seen: Observation) -> bool:
    return any(batch.history for batch in seen.now.selected)


@goal("a dead row is in a batch that is prepared")
def _dead_prepared(seen: Observation) -> bool:
    return any(
        not seen.requests[row.handle].live
        for batch in seen.outstanding()
        if batch.state == PREPARED
        for row in batch.rows
    )


@goal("a batch of dead rows only is dispatched")
def _all_dead(seen: Observation) -> bool:
    return any(not any(batch.live) for batch in seen.now.dispatched)


@goal("a draining request is cancelled once more")
def _cancelled_draining(seen: Observation) -> bool:
    return (
        seen.now.event == "RequestCancelled"
        and not seen.now.cancelled
        and any(
            seen.rows_of(request.handle) for request in seen.requests.values() if not request.live
        )
    )


@goal("the same id is admitted again while its last rows drain")
def _same_id(seen: Observation) -> bool:
    names = {seen.requests[handle].request_id for handle in seen.now.admitted}
    return any(
        request.request_id in names and not request.live and seen.rows_of(request.handle)
        for request in seen.requests.values()
    )


@goal("a duplicate id is refused")
def _duplicate(seen: Observation) -> bool:
    return any(reason == "duplicate_id" for _, reason in seen.now.refused)


@goal("a request that can never fit is refused")
def _never_fits(seen: Observation) -> bool:
    return any(reason == "never_fits" for _, reason in seen.now.refused)


@goal("no block is free")
def _pool_full(seen: Observation) -> bool:
    queue = None if seen.account is None else seen.account.blocks.queue
    return queue is not None and not len(queue)


@goal("the host is ready and waits for a fence")
def _fenced_wait(seen: Observation) -> bool:
    return (
        seen.now.event == "HostReady"
        and not seen.now.selected
        and seen.account is not None
        and bool((seen.account.blocks.places == PENDING).any())
        and any(request.state == "queued" for request in seen.account.requests.values())
    )


@goal("EOS comes back for a request that was cancelled in flight")
def _eos_and_cancel(seen: Observation) -> bool:
    return any(
        seen.limits.eos_token_id in values and seen.requests[handle].finish == "abort"
        for batch in seen.now.executed
        for handle, values in batch.values.items()
    )


@goal("EOS is the first token")
def _eos_first(seen: Observation) -> bool:
    return any(_stopped(r) and len(r.emitted) == 1 for r in _finished(seen))


@goal("EOS ends a block")
def _eos_at_block_end(seen: Observation) -> bool:
    size = seen.limits.block_size
    return size > 1 and any(_stopped(r) and r.known % size == 0 for r in _finished(seen))


@goal("EOS stands one before the end of a block")
def _eos_before_block_end(seen: Observation) -> bool:
    size = seen.limits.block_size
    return size > 1 and any(_stopped(r) and r.known % size == size - 1 for r in _finished(seen))


@goal("a row is wasted by EOS")
def _wasted_by_stop(seen: Observation) -> bool:
    return _wasted(seen, "stop")


@goal("a row is wasted by a cancel")
def _wasted_by_cancel(seen: Observation) -> bool:
    return _wasted(seen, "abort")


@goal("a request ends by length with the next batch already prepared")
def _length_ahead(seen: Observation) -> bool:
    return any(r.finish == "length" for r in _finished(seen)) and bool(seen.outstanding())


@goal("a request of one output token ends")
def _one_token(seen: Observation) -> bool:
    return any(r.max_tokens == 1 and r.finish == "length" for r in _finished(seen))


@goal("a prompt is computed in three chunks")
def _three_chunks(seen: Observation) -> bool:
    return any(
        row.samples and seen.requests[row.handle].chunks == 3  # noqa: PLR2004
        for batch in seen.now.selected
        for row in batch.rows
    )


@goal("a prompt begins with cached blocks")
def _hit(seen: Observation) -> bool:
    return any(
        row.position and row.position == seen.requests[row.handle].cached
        for batch in seen.now.selected
        for row in batch.rows
    )


@goal("a cached block that waits for a fence is hit")
def _pending_hit(seen: Observation) -> bool:
    if seen.before is None:
        return False
    places = seen.before.blocks.places
    return any(
        (slot + 1) * seen.limits.block_size <= row.position and places[block] == PENDING
        for batch in seen.now.selected
        for row in batch.rows
        for slot, block in row.fresh
    )


@goal("a refused batch sends a request back to the line")
def _withdrawn(seen: Observation) -> bool:
    return bool(seen.now.withdrawn) and _moved(seen, "prepared", "queued")


@goal("a refused batch leaves a request where its last row was")
def _restored(seen: Observation) -> bool:
    return bool(seen.now.withdrawn) and _moved(seen, "prepared", "filled")


@goal("a batch fails and another behind it goes on")
def _batch_failed(seen: Observation) -> bool:
    return seen.now.event == "BatchFailed" and not seen.device_failed and bool(seen.now.dispatched)


@goal("the device fails with several batches outstanding")
def _device_failed(seen: Observation) -> bool:
    return seen.now.event == "BatchFailed" and seen.device_failed and len(seen.now.spoiled) > 1


@goal("a pause waits for the device")
def _pause_waits(seen: Observation) -> bool:
    return seen.now.paused > 0 and seen.now.event != "PauseRequested"


@goal("a cache reset is done")
def _reset_done(seen: Observation) -> bool:
    return seen.now.reset is True


@goal("a cache reset is refused")
def _reset_refused(seen: Observation) -> bool:
    return seen.now.reset is False


@goal("four batches are outstanding")
def _four_out(seen: Observation) -> bool:
    return len(seen.outstanding()) > 3  # noqa: PLR2004


@goal("a batch waits prepared while another is dispatched")
def _overlap(seen: Observation) -> bool:
    states = {batch.state for batch in seen.outstanding()}
    return {PREPARED, DISPATCHED} <= states


@goal("a wake brings a batch")
def _woken(seen: Observation) -> bool:
    return seen.now.event == "Woke" and bool(seen.now.selected)


@goal("dead rows are left out of a batch")
def _pruned(seen: Observation) -> bool:
    return any(batch.pruned for batch in seen.now.dispatched)


@goal("a batch of dead rows only is abandoned")
def _all_pruned(seen: Observation) -> bool:
    return seen.now.event != "BatchRefused" and any(
        not any(seen.requests[row.handle].live for row in batch.rows)
        for batch in seen.now.withdrawn
    )


@goal("a later arrival is served first by priority")
def _priority(seen: Observation) -> bool:
    return any(
        row.handle > other.handle and other.epoch < 0
        for batch in seen.now.selected
        for row in batch.rows
        for other in seen.live()
    )


@goal("all drafts of a row are right")
def _all_right(seen: Observation) -> bool:
    return any(row.drafts and len(values) == 1 + row.drafts for row, values in _verified(seen))


@goal("no draft of a row is right")
def _none_right(seen: Observation) -> bool:
    return any(row.drafts and len(values) == 1 for row, values in _verified(seen))


@goal("some drafts of a row are right, and some are not")
def _some_right(seen: Observation) -> bool:
    return any(1 < len(values) < 1 + row.drafts for row, values in _verified(seen))


@goal("a request ends within its accepted drafts")
def _end_within(seen: Observation) -> bool:
    return any(
        row.drafts and seen.requests[row.handle].known < row.known_end + len(values)
        for row, values in _verified(seen)
        if row.handle in seen.now.finished
    )


@goal("the last token of a request is behind its accepted drafts")
def _end_behind(seen: Observation) -> bool:
    return any(
        len(values) > 1 and seen.requests[row.handle].known == row.known_end + len(values)
        for row, values in _verified(seen)
        if row.handle in seen.now.finished
    )


@goal("a block of rejected drafts is given back")
def _given_back(seen: Observation) -> bool:
    size = seen.limits.block_size
    return any(
        -(-(row.known_end - 1 + len(values)) // size) < -(-row.end // size)
        for row, values in _verified(seen)
        if seen.requests[row.handle].live
    )


@goal("a row has fewer drafts than may be for want of tokens")
def _cut_by_tokens(seen: Observation) -> bool:
    return any(
        sum(row.count for row in batch.rows) == seen.limits.max_num_batched_tokens
        and any(_cut(seen, row) for row in batch.rows)
        for batch in seen.now.selected
    )


@goal("a row has fewer drafts than may be for want of a block")
def _cut_by_blocks(seen: Observation) -> bool:
    return _pool_full(seen) and any(
        row.end % seen.limits.block_size == 0 and _cut(seen, row)
        for batch in seen.now.selected
        for row in batch.rows
    )


@goal("a batch has prompts and drafts")
def _mixed(seen: Observation) -> bool:
    return any(
        any(row.drafts for row in batch.rows)
        and any(row.position < seen.requests[row.handle].prompt_length for row in batch.rows)
        for batch in seen.now.selected
    )


@goal("a request with drafts on the device is cancelled")
def _cancelled_with_drafts(seen: Observation) -> bool:
    rows = [row for batch in seen.outstanding() for row in batch.rows if row.drafts]
    return any(row.handle in seen.now.cancelled for row in rows)


@goal("a batch with drafts is taken back")
def _drafts_taken_back(seen: Observation) -> bool:
    return any(row.drafts for batch in seen.now.withdrawn for row in batch.rows)


def _verified(seen: Observation) -> Iterator[tuple[Row, tuple[int, ...]]]:
    """Yield the live rows that came back with tokens, and those."""
    for batch in seen.now.executed:
        for row in batch.rows:
            ended = seen.requests[row.handle].finished_at not in (None, seen.step)
            if row.handle in batch.values and not ended:
                yield row, batch.values[row.handle]


def _cut(seen: Observation, row: Row) -> bool:
    return row.drafts < seen.drafts_max(row)


def _epochs_grew(seen: Observation) -> bool:
    if seen.before is None or seen.account is None:
        return False
    after = seen.account.requests
    return any(h in after and after[h].epoch > r.epoch for h, r in seen.before.requests.items())


def _moved(seen: Observation, before: str, after: str) -> bool:
    if seen.account is None:
        return False
    return any(
        request.state == after and _state_before(seen, handle) == before
        for handle, request in seen.account.requests.items()
    )


def _finished(seen: Observation) -> list[Request]:
    return [seen.requests[handle] for handle in seen.now.finished]


def _stopped(request: Request) -> bool:
    return request.finish == "stop"


def _wasted(seen: Observation, reason: str) -> bool:
    return any(
        seen.requests[row.handle].finish == reason
        for batch in seen.now.dispatched
        for row in batch.rows
    )
