"""What can be seen of a scheduler from outside, in neutral words.

An `Observation` is told facts (a request arrived, a batch was selected, its tokens came back ...)
by an observer of some scheduler, and keeps what follows from them alone: requests, batches, the
block tables that the host was told, what each KV block and host page contains, what is being copied
between them, which token came from which batch. The invariants compare that with the scheduler's
own `Account`. No scheduler is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from stepahead_specs.memory import Content, Memory
from stepahead_specs.records import (
    CANCELLED,
    COMPLETED,
    DISPATCHED,
    EMPTY,
    FILLED,
    NONE,
    OUTSTANDING,
    PREPARED,
    Account,
    Batch,
    Facts,
    Ints,
    Limits,
    Request,
    Row,
    Token,
    Transfer,
)

#: How the counters of wasted rows are named by the reason of the end.
_WASTE: Final = {"abort": "abort", "error": "error"}
_ENDED: Final = (COMPLETED, CANCELLED)


@dataclass(slots=True)
class Observation:
    """All that is known of one scheduler's run up to now.

    Args:
        limits: what the scheduler must keep to.
        truth: the output tokens and the finish reason that an eager, unbatched run gives the
            request with this handle, or None where nobody knows.
    """

    limits: Limits
    truth: Callable[[int], tuple[Sequence[int], str]] | None = None
    step: int = 0
    requests: dict[int, Request] = field(default_factory=dict[int, Request])
    #: Of these, the ones that may be live.
    alive: dict[int, Request] = field(default_factory=dict[int, Request])
    batches: dict[int, Batch] = field(default_factory=dict[int, Batch])
    #: Of these, in order: from the oldest on that has not ended.
    recent: list[Batch] = field(default_factory=list[Batch])
    #: Copies that are not reported yet, by number.
    transfers: dict[int, Transfer] = field(default_factory=dict[int, Transfer])
    blocks: Memory = field(init=False)
    pages: Memory = field(init=False)
    account: Account | None = None
    #: The account before the last one.
    before: Account | None = None
    now: Facts = field(default_factory=Facts)
    paused: bool = False
    pausing: bool = False
    device_failed: bool = False
    totals: dict[str, int] = field(default_factory=dict[str, int])
    #: Commands were asked to wait for a wake that has not come.
    wake_pending: bool = False
    #: The newest request and the newest batch.
    newest: int = NONE
    newest_batch: int = NONE

    def __post_init__(self) -> None:
        self.blocks = Memory(self.limits.num_blocks)
        self.pages = Memory(self.limits.host_pages)

    def copy(self) -> Observation:
        """Return an independent copy; what never changes is shared."""
        copied = replace(
            self,
            requests={
                handle: replace(
                    request, sampled=list(request.sampled), emitted=list(request.emitted)
                )
                for handle, request in self.requests.items()
            },
            batches={
                ident: replace(batch, values=dict(batch.values))
                for ident, batch in self.batches.items()
            },
            transfers=dict(self.transfers),
            totals=dict(self.totals),
        )
        copied.alive = {handle: copied.requests[handle] for handle in self.alive}
        copied.recent = [copied.batches[batch.ident] for batch in self.recent]
        copied.blocks, copied.pages = self.blocks.copy(), self.pages.copy()
        return copied

    def begin(self, event: str) -> None:
        """Start the facts of the next step."""
        self.step += 1
        self.now = Facts(event=event, newest=self.newest)
        while self.recent and self.recent[0].state in _ENDED:
            del self.recent[0]

    # -- questions ----------------------------------------------------------------------------

    def live(self) -> list[Request]:
        """Return the requests that have not ended, in order of arrival."""
        return [request for request in self.alive.values() if request.live]

    def outstanding(self) -> list[Batch]:
        """Return the batches that are QUEUED, PREPARED or DISPATCHED, oldest first."""
        return [batch for batch in self.recent if batch.state in OUTSTANDING]

    def counts(self, row: Row) -> bool:
        """Tell whether a row is of a live request, in an epoch that is not void."""
        request = self.requests[row.handle]
        return request.live and row.epoch > request.void

    def outstanding_rows(self) -> dict[int, list[tuple[Batch, Row]]]:
        """Return the outstanding rows of each request, oldest first, without void epochs."""
        found: dict[int, list[tuple[Batch, Row]]] = {}
        for batch in self.outstanding():
            for row in batch.rows:
                if row.epoch > self.requests[row.handle].void:
                    found.setdefault(row.handle, []).append((batch, row))
        return found

    def rows_of(self, handle: int) -> list[tuple[Batch, Row]]:
        """Return the outstanding rows of one request; see `outstanding_rows`."""
        return self.outstanding_rows().get(handle, [])

    def drains(self, handle: int) -> bool:
        """Tell whether a request has ended and still has rows outstanding."""
        return not self.requests[handle].live and bool(self.rows_of(handle))

    def draining(self) -> int:
        """Count the requests that have ended and still have rows outstanding."""
        handles = {row.handle for batch in self.outstanding() for row in batch.rows}
        return sum(not self.requests[handle].live for handle in handles)

    def rank(self, request: Request) -> tuple[int, int]:
        """Return the place in the line: smaller is served first."""
        return (request.priority if self.limits.by_priority else 0, request.handle)

    def ends_by(self, request: Request, index: int, value: int) -> str | None:
        """Return how ``value`` as output ``index`` ends the request: stop, length, or None."""
        stops = set(request.stop_token_ids)
        if self.limits.eos_token_id is not None and not request.ignore_eos:
            stops.add(self.limits.eos_token_id)
        if value in stops and index + 1 >= request.min_tokens:
            return "stop"
        return "length" if request.prompt_length + index + 1 >= request.final_length else None

    def drafts_max(self, row: Row) -> int:
        """Return how many drafts a row may have: none unless it reads one sampled token."""
        limits, request = self.limits, self.requests[row.handle]
        if row.known_end != row.position + 1 or row.position < request.prompt_length:
            return 0
        most = min(limits.num_speculative_tokens, limits.max_tokens_per_row - 1)
        return min(most, request.final_length - 1 - row.known_end)

    # -- facts --------------------------------------------------------------------------------

    def admitted(self, request: Request) -> None:
        """Note that a request waits from now on."""
        if request.handle in self.requests:
            self.stray("INV-24", f"handle {request.handle} is given to a second request")
        self.count("admitted")
        self.newest = max(self.newest, request.handle)
        self.requests[request.handle] = self.alive[request.handle] = request
        self.now.admitted.append(request.handle)

    def cancelled(self, request_id: str, handle: int | None) -> None:
        """Note that a client left; ``handle`` None means its newest live request."""
        if handle is None:
            named = [r for r in self.live() if r.request_id == request_id]
        else:
            known = self.requests.get(handle)
            named = [known] if known is not None and known.live else []
            named = [r for r in named if r.request_id == request_id]
        if named:
            named[-1].cancelled_at = self.step
            self.now.cancelled.append(named[-1].handle)
        else:
            self.count("ignored_cancels")

    def selected(self, batch: Batch) -> None:
        """Note a new batch whose rows carry ``fresh`` blocks; the tables are completed here."""
        rows: list[Row] = []
        for row in batch.rows:
            request = self.requests.get(row.handle)
            if request is None:
                self.stray(
                    "INV-10", f"batch {batch.ident} has a row of unknown request {row.handle}"
                )
                continue
            rows.append(self._seated(request, row))
        batch.rows = tuple(rows)
        batch.after, self.newest_batch = self.newest_batch, max(self.newest_batch, batch.ident)
        self.batches[batch.ident] = batch
        self.recent.append(batch)
        self.now.selected.append(batch)

    def _seated(self, request: Request, row: Row) -> Row:
        """Complete a new row with its table, and note where its request stands now."""
        if row.epoch != request.epoch:
            if request.epoch >= 0:
                self.now.resumed.append(row.handle)
            request.epoch = row.epoch
            request.table = EMPTY
            request.chunks = request.rows = 0
            request.runs_on = None
        if not request.rows:
            request.scheduled = request.cached = row.position
            request.runs_on = self._load_under(row)
        if row.fresh:
            request.table = _extended(request.table, row.fresh)
        request.rows += 1
        request.seat = row.seat
        request.chunks += row.position < request.prompt_length
        slots = -(-row.end // self.limits.block_size)
        table = request.table[:slots]
        if len(table) < slots:
            table = np.concatenate((table, np.full(slots - len(table), NONE)))
        seated = replace(row, table=table, after=request.scheduled, starts=request.cached)
        request.scheduled = row.end
        return seated

    def _load_under(self, row: Row) -> int | None:
        """Return the layer-wise load whose blocks a first row got to read, if there is one."""
        told = {block for _, block in row.fresh}
        for ident, load in self.transfers.items():
            if load.layerwise and load.handle == row.handle and told.issuperset(load.blocks):
                return ident
        return None

    def prepared(self, ident: int) -> None:
        """Note that the host built the batch."""
        batch = self.batches[ident]
        batch.state = PREPARED
        self.now.built.append(batch)

    def dispatched(
        self,
        ident: int,
        live: tuple[bool, ...],
        fills: tuple[tuple[int, int], ...],
        *,
        pruned: bool = False,
    ) -> None:
        """Note that the NPU owns the batch; ``fills`` are (row index, token).

        ``pruned``: the rows that are not ``live`` are left out of the batch from now on.
        """
        batch = self.batches.get(ident)
        if batch is None:
            self.stray("INV-25", f"batch {ident} is dispatched and was never selected")
            return
        if batch.state != PREPARED:
            self.stray("INV-25", f"batch {ident} is dispatched and was {batch.state}, not prepared")
        batch.pruned = pruned
        if pruned:
            live, fills = self._prune(batch, live, fills)
        batch.state = DISPATCHED
        batch.dispatched_at = self.step
        batch.live = live
        batch.fills = fills
        self.now.dispatched.append(batch)
        for row in batch.rows:
            request = self.requests[row.handle]
            if row.epoch <= request.void:
                self.count("wasted_rows_error")
            elif not request.live:
                request.wasted += 1
                self.count(f"wasted_rows_{_WASTE.get(request.finish or '', 'stop')}")

    def _prune(
        self, batch: Batch, live: tuple[bool, ...], fills: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[bool, ...], tuple[tuple[int, int], ...]]:
        kept = [index for index, alive in enumerate(live) if alive]
        for index, row in enumerate(batch.rows):
            if index not in kept and self.counts(row):
                self.stray("INV-25", f"batch {batch.ident} leaves out live request {row.handle}")
        batch.rows = tuple(batch.rows[index] for index in kept)
        moved = {old: new for new, old in enumerate(kept)}
        for index, value in fills:
            if index not in moved:
                self.stray("INV-7", f"batch {batch.ident} fills row {index} with {value}, left out")
        return (True,) * len(kept), tuple((moved[i], v) for i, v in fills if i in moved)

    def executed(self, ident: int, values: Sequence[Sequence[int]]) -> None:
        """Note what came back, for each sampling row in order its accepted drafts and one more."""
        batch = self.batches[ident]
        batch.state = FILLED
        self.now.executed.append(batch)
        returned = iter(values)
        for index, row in enumerate(batch.rows):
            garbage = index < len(batch.live) and not batch.live[index]
            told = tuple(next(returned)) if row.samples else ()
            written = row.known_end - 1 + len(told) if row.drafts else row.end
            self._write(batch, row, row.position if garbage else written)
            if not row.samples:
                continue
            batch.values[row.handle] = told
            if self.counts(row):
                self._return(batch, row, told)

    def _return(self, batch: Batch, row: Row, values: tuple[int, ...]) -> None:
        """Note the tokens of a live row, up to the one that ends its request."""
        request = self.requests[row.handle]
        self.count("drafted_tokens", row.drafts)
        self.count("accepted_tokens", len(values) - 1)
        for index, value in enumerate(values, start=row.known_end - request.prompt_length):
            token = Token(
                handle=row.handle, epoch=row.epoch, index=index, batch=batch.ident, value=value
            )
            request.sampled.append(token)
            self.now.returned.append(token)
            if self.ends_by(request, index, value) is not None:
                break
        if row.drafts:
            request.scheduled = request.known - 1
            request.table = request.table[: -(-request.scheduled // self.limits.block_size)]

    def withdrawn(self, ident: int) -> None:
        """Note a batch that was refused or abandoned, with the younger rows that depend on it."""
        batch = self.batches.get(ident)
        if batch is None:
            self.stray("INV-25", f"batch {ident} is abandoned and was never selected")
            return
        batch.state = CANCELLED
        self.now.withdrawn.append(batch)
        lost = {row.handle for row in batch.rows if self.counts(row)}
        self._undo(batch, lost)
        for younger in self.outstanding():
            if younger.ident > ident and any(row.handle in lost for row in younger.rows):
                self._undo(younger, lost)
                younger.rows = tuple(row for row in younger.rows if row.handle not in lost)

    def failed(self, ident: int, *, device: bool) -> None:
        """Note that the device failed a batch, or altogether."""
        hit = self.outstanding() if device else [self.batches[ident]]
        self.now.spoiled = hit
        for batch in hit:
            batch.state = CANCELLED
            for row in batch.rows:
                self._write(batch, row, row.position)
        failed = {row.handle for row in self.batches[ident].rows if self.counts(row)}
        for request in self.live():
            if device or request.handle in failed:
                request.failed = True
                self.now.failed.append(request.handle)
        self.device_failed = self.device_failed or device

    def emitted(self, ident: int, handle: int, offset: int, value: int) -> None:
        """Note a token that went out to a client, made by batch ``ident``."""
        request = self.requests.get(handle)
        if request is None:
            self.stray("INV-11", f"batch {ident} emits a token of unknown request {handle}")
            return
        token = Token(handle=handle, epoch=request.epoch, index=offset, batch=ident, value=value)
        request.emitted.append(token)
        self.now.emitted.append(token)

    def finished(self, handle: int, request_id: str, reason: str, output_tokens: int) -> None:
        """Note the last word that a client gets."""
        request = self.requests.get(handle)
        if request is None:
            self.stray("INV-11", f"unknown request {handle} is finished")
            return
        request.finishes += 1
        if request.finishes > 1:
            self.stray("INV-11", f"request {handle} is finished a second time")
            return
        if request.request_id != request_id:
            self.stray(
                "INV-24",
                f"request {handle} is {request.request_id!r} and finished as {request_id!r}",
            )
        if output_tokens != len(request.emitted):
            self.stray(
                "INV-11",
                f"request {handle} finishes with {output_tokens} tokens, "
                f"{len(request.emitted)} went out",
            )
        request.finish = reason
        request.finished_at = self.step
        self.alive.pop(handle, None)
        self.count("ended")
        if any(batch.state == DISPATCHED for batch, _ in self.rows_of(handle)):
            self.count("discarded_rows")
        self.now.finished.append(handle)

    def pause_asked(self) -> None:
        """Note that nothing more shall be selected."""
        self.pausing = True

    def resumed(self) -> None:
        """Note that selection goes on."""
        self.paused = self.pausing = False

    def pause_reported(self) -> None:
        """Note that the scheduler says that nothing is outstanding."""
        if not self.pausing:
            self.stray("INV-19", "a pause is reported that nobody waits for")
        self.now.paused += 1
        self.paused, self.pausing = True, False

    def accounted(self, account: Account | None) -> None:
        """Take the scheduler's own view; None where it has none between two steps.

        An epoch that has grown is a preemption, but for one that is void.
        """
        if account is None:
            self.before, self.account = self.account or self.before, None
            return
        self.before = self.account or self.before
        if self.before is not None:
            older = self.before.requests
            for handle, request in account.requests.items():
                if handle in older and request is not older[handle]:
                    grown = request.epoch - older[handle].epoch - (handle in self.now.voided)
                    self.count("preemptions", grown)
            self.count("expired_loads", len(account.late - self.before.late))
        self.account = account

    # -- copies -------------------------------------------------------------------------------

    def asked(self, transfer: Transfer) -> None:
        """Note that the host is to copy something; what it writes cannot be read meanwhile."""
        self.transfers[transfer.ident] = transfer
        self.now.asked.append(transfer)
        if transfer.store:
            self.pages.spoil(transfer.pages, -transfer.ident)
        else:
            self.blocks.spoil(transfer.blocks, -transfer.ident)

    def copied(self, ident: int, count: int) -> None:
        """Note that a copy is complete: ``count`` blocks, shallowest first; negative: all."""
        transfer = self.transfers.pop(ident, None)
        if transfer is None:
            self.count("ignored_transfers")
            return
        filled = len(transfer.blocks) if count < 0 else count
        self.now.copied.append((transfer, filled))
        blocks, pages = transfer.blocks[:filled], transfer.pages[:filled]
        if transfer.store:
            self.pages.bring(pages, self.blocks, blocks, -ident)
            self.count("stored_blocks", filled)
            return
        if len(transfer.pages):
            self.blocks.bring(blocks, self.pages, pages, -ident)
        else:
            self.blocks.fill(blocks, transfer.keys[:filled], self.limits.block_size, -ident)
        self._loaded(transfer, filled)

    def _loaded(self, load: Transfer, filled: int) -> None:
        request = self.requests.get(load.handle or 0)
        if request is not None and request.runs_on == load.ident:
            request.runs_on = None
        known = self.account or self.before
        if known is not None and load.ident in known.late:
            self.count("ignored_transfers")
        else:
            tier = "host" if len(load.pages) else "remote"
            self.count(f"{tier}_tokens", filled * self.limits.block_size)

    def lost(self, ident: int) -> None:
        """Note that a copy came to nothing; an epoch that ran on it is void."""
        transfer = self.transfers.pop(ident, None)
        if transfer is None:
            self.count("ignored_transfers")
            return
        self.now.lost.append(transfer)
        self.count("failed_transfers")
        request = self.requests.get(transfer.handle or 0)
        if transfer.store or request is None or request.runs_on != ident or not request.live:
            return
        for batch, _ in self.rows_of(request.handle):
            self.count("discarded_rows", batch.state == DISPATCHED)
        request.void = request.epoch
        request.runs_on = None
        self.now.voided.append(request.handle)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a total of our own, to be compared with the scheduler's counter of that name."""
        self.totals[name] = self.totals.get(name, 0) + amount

    def reset(self, *, done: bool, memories: tuple[str, ...] = ("block", "page")) -> None:
        """Note the answer to a request to forget the cached content of some memories."""
        self.now.reset, self.now.forgotten = done, memories
        for name, memory in (("block", self.blocks), ("page", self.pages)):
            if done and name in memories:
                memory.forget()

    def retired(self) -> None:
        """Note that the host is ready again: batches that came back are complete."""
        for batch in self.recent:
            if batch.state == FILLED:
                batch.state = COMPLETED

    def stray(self, key: str, sentence: str) -> None:
        """Note a fact that fits nothing known."""
        self.now.strays.append((key, sentence))

    def forget(self) -> None:
        """Drop ended batches, and requests without outstanding rows: long runs stay small."""
        out = self.outstanding()
        # A fence passes in order: blocks of a refused batch wait for the older ones as well.
        oldest = out[0].ident if out else self.newest_batch
        self.batches = {
            ident: batch
            for ident, batch in self.batches.items()
            if ident >= oldest or batch.state == FILLED
        }
        self.recent = [batch for batch in self.recent if batch.ident in self.batches]
        kept = {row.handle for batch in self.batches.values() for row in batch.rows}
        kept |= {load.handle for load in self.transfers.values() if load.handle is not None}
        self.requests = {
            handle: request
            for handle, request in self.requests.items()
            if request.live or handle in kept
        }

    # -- what a block contains ----------------------------------------------------------------

    def _write(self, batch: Batch, row: Row, end: int) -> None:
        """Note that a row has written its positions; from ``end`` on nobody may read them."""
        size, memory = self.limits.block_size, self.blocks
        for slot in range(row.position // size, -(-row.end // size)):
            block = int(row.table[slot])
            start = max(row.position - slot * size, 0)
            stop = min(end - slot * size, size)
            before = memory.get(block) if start else None
            if before is not None and (before.handle, before.slot) != (row.handle, slot):
                before = None
            if before is None:
                written = 0 if start else max(stop, 0)
            elif stop <= start:
                written = min(before.filled, start)
            else:
                written = stop if before.filled >= start else 0
            memory.put(block, self._content(batch, row, slot, written))

    def _content(self, batch: Batch, row: Row, slot: int, filled: int) -> Content:
        full = filled == self.limits.block_size
        return Content(
            handle=row.handle if filled else None,
            slot=slot,
            filled=filled,
            key=self.requests[row.handle].key_of(slot) if full else None,
            age=self.blocks.resets,
            origin=batch.ident,
        )

    def _undo(self, batch: Batch, handles: set[int]) -> None:
        for row in batch.rows:
            if row.handle not in handles:
                continue
            request = self.requests[row.handle]
            if row.epoch != request.epoch:
                continue
            request.scheduled = min(request.scheduled, row.position)
            request.rows -= 1
            request.table = _without(request.table, row.fresh)


def _extended(table: Ints, fresh: Sequence[tuple[int, int]]) -> Ints:
    """Return a block table with more (slot, block) entries."""
    entries = np.array(fresh, dtype=np.int64)
    longer = np.full(max(len(table), int(entries[:, 0].max()) + 1), NONE)
    longer[: len(table)] = table
    longer[entries[:, 0]] = entries[:, 1]
    return longer


def _without(table: Ints, fresh: Sequence[tuple[int, int]]) -> Ints:
    """Return a block table without these (slot, block) entries, as short as can be."""
    if not fresh:
        return table
    shorter = table.copy()
    for slot, block in fresh:
        if slot < len(shorter) and shorter[slot] == block:
            shorter[slot] = NONE
    (told,) = (shorter != NONE).nonzero()
    return shorter[: int(told[-1]) + 1] if len(told) else EMPTY
