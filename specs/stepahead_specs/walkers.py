"""Requests and batches walked through the `transitions` library beside the kernel.

From what was seen from outside, `Walkers` derives which triggers fired, in which order, fires them
on machines built from the same declared tables, and compares the states with the kernel's account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stepahead.tables import (
    BATCH_ROWS,
    REQUEST_ROWS,
    BatchState,
    BatchTrigger,
    RequestState,
    RequestTrigger,
)
from stepahead_specs.lockstep import Lockstep
from stepahead_specs.observation import Observation
from stepahead_specs.records import Batch

_ENDS: Mapping[str, RequestTrigger] = {
    "stop": RequestTrigger.FINISH,
    "length": RequestTrigger.FINISH,
    "abort": RequestTrigger.CANCEL,
    "error": RequestTrigger.FAIL,
}


class Walkers:
    """One walker per request and batch of an observed kernel."""

    def __init__(self) -> None:
        self.requests: Lockstep[int, RequestState, RequestTrigger] = Lockstep(
            "request", REQUEST_ROWS, RequestState.QUEUED
        )
        self.batches: Lockstep[int, BatchState, BatchTrigger] = Lockstep(
            "batch", BATCH_ROWS, BatchState.QUEUED
        )

    def follow(self, seen: Observation) -> list[str]:
        """Take one step; return a sentence for each missing edge and each state that differs."""
        refused = [*self._batch_triggers(seen), *self._request_triggers(seen)]
        return [sentence for sentence in refused if sentence is not None] + self._compare(seen)

    def _batch_triggers(self, seen: Observation) -> Iterator[str | None]:
        now, fire = seen.now, self.batches.fire
        if now.event == "HostReady":
            for ident in list(self.batches.shadows):
                if self.batches.state(ident) == BatchState.FILLED.name:
                    yield fire(ident, BatchTrigger.RETIRE)
        refused = BatchTrigger.REFUSE if now.event == "BatchRefused" else BatchTrigger.ABANDON
        yield from (fire(batch.ident, BatchTrigger.FAIL) for batch in now.spoiled)
        yield from (fire(batch.ident, BatchTrigger.FILL) for batch in now.executed)
        yield from (fire(batch.ident, BatchTrigger.PREPARE) for batch in now.built)
        yield from (fire(batch.ident, refused) for batch in now.withdrawn)
        yield from (fire(batch.ident, BatchTrigger.DISPATCH) for batch in now.dispatched)
        for batch in now.selected:
            self.batches.state(batch.ident)

    def _request_triggers(self, seen: Observation) -> Iterator[str | None]:  # noqa: C901 - an order
        now, fire = seen.now, self.requests.fire
        for handle in now.admitted:
            self.requests.state(handle)
        for handle in _live_in(seen, now.executed):
            yield fire(handle, RequestTrigger.FILL)
            if seen.requests[handle].live and seen.rows_of(handle):
                yield fire(handle, RequestTrigger.SELECT)
        for handle in now.voided:
            yield from self._void(handle)
        for handle, first in _taken_back(seen):
            back = RequestTrigger.WITHDRAW if first else RequestTrigger.RESTORE
            yield fire(handle, back)
        for handle in now.finished:
            yield fire(handle, _ENDS[seen.requests[handle].finish or "error"])
        for handle in _preempted(seen):
            yield fire(handle, RequestTrigger.PREEMPT)
        for handle in _live_in(seen, now.selected):
            if len(seen.rows_of(handle)) == 1:
                yield fire(handle, RequestTrigger.SELECT)
        for handle in _live_in(seen, now.dispatched):
            if seen.requests[handle].live:
                yield fire(handle, RequestTrigger.DISPATCH)

    def _void(self, handle: int) -> Iterator[str | None]:
        """The load that a request runs on has failed: it stands in the line again."""
        prepared = self.requests.state(handle) == RequestState.PREPARED.name
        back = (RequestTrigger.FILL, RequestTrigger.PREEMPT)
        for trigger in (RequestTrigger.WITHDRAW,) if prepared else back:
            yield self.requests.fire(handle, trigger)

    def _compare(self, seen: Observation) -> list[str]:
        if seen.account is None:
            return []
        found = [
            self.requests.compare(handle, account.state.upper())
            for handle, account in seen.account.requests.items()
        ]
        found += [
            self.batches.compare(ident, state.upper())
            for ident, state in seen.account.batches.items()
        ]
        return [sentence for sentence in found if sentence is not None]


def _preempted(seen: Observation) -> list[int]:
    if seen.before is None or seen.account is None:
        return []
    after, before = seen.account.requests, seen.before.requests
    void = seen.now.voided
    return [h for h in after if h in before and after[h].epoch - (h in void) > before[h].epoch]


def _taken_back(seen: Observation) -> Iterator[tuple[int, bool]]:
    """Yield the live requests whose only row was refused, and whether it was their first one."""
    for batch in seen.now.withdrawn:
        for row in batch.rows:
            others = [b for b, _ in seen.rows_of(row.handle) if b not in seen.now.selected]
            if seen.counts(row) and not others:
                yield row.handle, row.position == row.starts


def _live_in(seen: Observation, batches: Iterable[Batch]) -> list[int]:
    """Return the requests of these batches that were live when the step began."""
    return [
        row.handle
        for batch in batches
        for row in batch.rows
        if seen.requests[row.handle].finished_at in (None, seen.step)
        and row.epoch > seen.requests[row.handle].void
    ]
