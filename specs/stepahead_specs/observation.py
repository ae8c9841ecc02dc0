"""What can be seen of a scheduler from outside, in neutral words.

An `Observation` is told facts (a request arrived, a batch was selected, its tokens came back ...)
by an observer of some scheduler, and keeps what follows from them alone: requests, batches, the
block tables that the host was told, what each KV block contains, which token came from which batch.
A scheduler that can be looked into adds an `Account`, its own view of its state. The invariants
compare the two. This module imports no scheduler, ours included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

QUEUED = "queued"
PREPARED = "prepared"
DISPATCHED = "dispatched"
FILLED = "filled"
COMPLETED = "completed"
CANCELLED = "cancelled"

OUTSTANDING = (QUEUED, PREPARED, DISPATCHED)

#: How the counters of wasted rows are named by the reason of the end.
_WASTE = {"abort": "abort", "error": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the scheduler was told to keep to; the words are those of the kernel's configuration."""

    num_blocks: int
    block_size: int
    max_concurrency: int
    max_num_batched_tokens: int
    max_tokens_per_row: int
    max_model_len: int
    lookahead: int
    eos_token_id: int | None = None
    by_priority: bool = False
    prefix_caching: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request's share of one batch, with the block table that it reads and writes through.

    ``table`` are the request's blocks from slot 0 up to the end of the row; ``fresh`` are the
    (slot, block) entries that came with this batch.
    """

    handle: int
    epoch: int
    seat: int
    position: int
    count: int
    samples: bool
    table: tuple[int | None, ...] = ()
    fresh: tuple[tuple[int, int], ...] = ()
    #: Where the request's row before this one ended.
    after: int = 0

    @property
    def end(self) -> int:
        """Position after the last one that the row computes; a sampled token belongs here."""
        return self.position + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token with its origin: whose it is, at which output index, and who made it."""

    handle: int
    epoch: int
    index: int
    batch: int
    value: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a block holds: the first ``filled`` positions of slot ``slot`` of request ``handle``.

    ``handle`` None means that nobody may read it. ``age`` counts the cache resets before it was
    written.
    """

    handle: int | None
    slot: int
    filled: int
    batch: int
    age: int


@dataclass(slots=True, kw_only=True)
class Batch:
    """One batch and what has happened to it; steps are numbers of scheduler steps."""

    ident: int
    rows: tuple[Row, ...]
    state: str = QUEUED
    selected_at: int
    history: tuple[tuple[int, int, int], ...] = ()
    dispatched_at: int | None = None
    live: tuple[bool, ...] = ()
    fills: tuple[tuple[int, int], ...] = ()
    #: What came back for each sampling row, by request.
    values: dict[int, int] = field(default_factory=dict[int, int])
    #: True when the arrays of the host were changed by the scheduler after they were given.
    tampered: bool = False


@dataclass(slots=True, kw_only=True)
class Request:
    """One stay of a client's request, from outside."""

    handle: int
    request_id: str
    prompt_length: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    priority: int
    keys: tuple[int, ...]
    final_length: int
    epoch: int = -1
    seat: int = -1
    table: dict[int, int] = field(default_factory=dict[int, int])
    scheduled: int = 0
    #: Position of the first row of this epoch: tokens that came from the prefix cache.
    cached: int = 0
    #: Rows selected in this epoch that compute prompt tokens.
    chunks: int = 0
    sampled: list[Token] = field(default_factory=list[Token])
    emitted: list[Token] = field(default_factory=list[Token])
    finish: str | None = None
    finished_at: int | None = None
    finishes: int = 0
    cancelled_at: int | None = None
    failed: bool = False
    #: Rows that were dispatched after the end.
    wasted: int = 0

    @property
    def live(self) -> bool:
        """The client has not got its last word yet."""
        return self.finish is None

    @property
    def known(self) -> int:
        """Tokens whose value is known: the prompt and what came back for the live request."""
        return self.prompt_length + len(self.sampled)

    def key_of(self, slot: int) -> int | None:
        """Return the content identity of block ``slot``, or None if it has none."""
        return self.keys[slot] if slot < len(self.keys) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAccount:
    """What the scheduler says of one request that has a seat or waits."""

    handle: int
    state: str
    epoch: int
    known: int
    scheduled: int
    settled: int
    intent: str
    seat: int | None
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAccount:
    """What the scheduler says of one block; ``place`` is held, pending, cached or free."""

    place: str
    references: int
    key: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The scheduler's own view of its state after a step.

    ``queue`` are the blocks that may be handed out, in order; ``index`` maps key to block.
    """

    requests: Mapping[int, RequestAccount]
    batches: Mapping[int, str]
    blocks: Sequence[BlockAccount]
    queue: Sequence[int] | None = None
    index: Mapping[int, int] | None = None
    seats_free: int | None = None
    seats_draining: int = 0
    seats: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    #: What the scheduler's own audit complains about.
    problems: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Facts:
    """What happened in the last step: one event and what the scheduler answered."""

    event: str = ""
    arrived: list[str] = field(default_factory=list[str])
    admitted: list[int] = field(default_factory=list[int])
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: Live requests that the event cancelled or failed, which must end in this step.
    cancelled: list[int] = field(default_factory=list[int])
    failed: list[int] = field(default_factory=list[int])
    selected: list[Batch] = field(default_factory=list[Batch])
    dispatched: list[Batch] = field(default_factory=list[Batch])
    executed: list[Batch] = field(default_factory=list[Batch])
    withdrawn: list[Batch] = field(default_factory=list[Batch])
    spoiled: list[Batch] = field(default_factory=list[Batch])
    #: Tokens that came back in this step for live requests.
    returned: list[Token] = field(default_factory=list[Token])
    emitted: list[Token] = field(default_factory=list[Token])
    finished: list[int] = field(default_factory=list[int])
    #: Requests that come back to work in a new epoch.
    resumed: list[int] = field(default_factory=list[int])
    paused: int = 0
    reset: bool | None = None
    wake: bool = False
    #: Sentences about facts that fit nothing that is known, keyed by the invariant they break.
    strays: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: The order of the answer: words of batch, token and finish commands.
    order: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


@dataclass(slots=True)
class Observation:
    """All that is known of one scheduler's run up to now.

    Args:
        limits: what the scheduler must keep to.
        truth: the output tokens and the finish reason that an eager, unbatched run gives the request
            with this handle, or None where nobody knows.
    """

    limits: Limits
    truth: Callable[[int], tuple[Sequence[int], str]] | None = None
    step: int = 0
    requests: dict[int, Request] = field(default_factory=dict[int, Request])
    batches: dict[int, Batch] = field(default_factory=dict[int, Batch])
    contents: dict[int, Content] = field(default_factory=dict[int, Content])
    account: Account | None = None
    #: The account after the step before.
    before: Account | None = None
    now: Facts = field(default_factory=Facts)
    paused: bool = False
    pausing: bool = False
    device_failed: bool = False
    resets: int = 0
    totals: dict[str, int] = field(default_factory=dict[str, int])
    #: Commands were asked to wait for a wake that has not come.
    wake_pending: bool = False

    def begin(self, event: str) -> None:
        """Start the facts of the next step."""
        self.step += 1
        self.now = Facts(event=event)

    # -- questions ----------------------------------------------------------------------------

    def live(self) -> list[Request]:
        """Return the requests that have not ended, in order of arrival."""
        return [request for request in self.requests.values() if request.live]

    def outstanding(self) -> list[Batch]:
        """Return the batches that are QUEUED, PREPARED or DISPATCHED, oldest first."""
        return [batch for batch in self.batches.values() if batch.state in OUTSTANDING]

    def rows_of(self, handle: int) -> list[tuple[Batch, Row]]:
        """Return the outstanding rows of a request, oldest first."""
        return [
            (batch, row)
            for batch in self.outstanding()
            for row in batch.rows
            if row.handle == handle
        ]

    def draining(self) -> int:
        """Count the requests that have ended and still have rows outstanding."""
        handles = {row.handle for batch in self.outstanding() for row in batch.rows}
        return sum(not self.requests[handle].live for handle in handles)

    def rank(self, request: Request) -> tuple[int, int]:
        """Return the place in the line: smaller is served first."""
        return (request.priority if self.limits.by_priority else 0, request.handle)

    # -- facts --------------------------------------------------------------------------------

    def admitted(self, request: Request) -> None:
        """Note that a request waits from now on."""
        if request.handle in self.requests:
            self.stray("INV-24", f"handle {request.handle} is given to a second request")
        self.count("admitted")
        self.requests[request.handle] = request
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
            if row.epoch != request.epoch:
                if request.epoch >= 0:
                    self.now.resumed.append(row.handle)
                request.epoch = row.epoch
                request.table = {}
                request.chunks = 0
                request.scheduled = request.cached = row.position
            elif not request.table:
                request.scheduled = request.cached = row.position
            request.table.update(row.fresh)
            request.seat = row.seat
            request.chunks += row.position < request.prompt_length
            slots = -(-row.end // self.limits.block_size)
            table = tuple(request.table.get(slot) for slot in range(slots))
            rows.append(replace(row, table=table, after=request.scheduled))
            request.scheduled = row.end
        batch.rows = tuple(rows)
        self.batches[batch.ident] = batch
        self.now.selected.append(batch)
        self.now.order.append(("select", batch.ident))

    def prepared(self, ident: int) -> None:
        """Note that the host built the batch."""
        self.batches[ident].state = PREPARED

    def dispatched(
        self, ident: int, live: tuple[bool, ...], fills: tuple[tuple[int, int], ...]
    ) -> None:
        """Note that the NPU owns the batch; ``fills`` are (row index, token)."""
        batch = self.batches.get(ident)
        if batch is None:
            self.stray("INV-25", f"batch {ident} is dispatched and was never selected")
            return
        if batch.state != PREPARED:
            self.stray("INV-25", f"batch {ident} is dispatched and was {batch.state}, not prepared")
        batch.state = DISPATCHED
        batch.dispatched_at = self.step
        batch.live = live
        batch.fills = fills
        self.now.dispatched.append(batch)
        self.now.order.append(("dispatch", ident))
        for row in batch.rows:
            request = self.requests[row.handle]
            if not request.live:
                request.wasted += 1
                self.count(f"wasted_rows_{_WASTE.get(request.finish or '', 'stop')}")

    def executed(self, ident: int, values: Sequence[int]) -> None:
        """Note the tokens that came back, one per sampling row in the order of the rows."""
        batch = self.batches[ident]
        batch.state = FILLED
        self.now.executed.append(batch)
        returned = iter(values)
        for index, row in enumerate(batch.rows):
            request = self.requests[row.handle]
            self._write(batch, row, garbage=index < len(batch.live) and not batch.live[index])
            if not row.samples:
                continue
            value = batch.values[row.handle] = next(returned)
            if request.live:
                token = Token(
                    handle=row.handle,
                    epoch=row.epoch,
                    index=row.end - request.prompt_length,
                    batch=ident,
                    value=value,
                )
                request.sampled.append(token)
                self.now.returned.append(token)

    def withdrawn(self, ident: int) -> None:
        """Note a batch that was refused or abandoned, with the younger rows that depend on it."""
        batch = self.batches.get(ident)
        if batch is None:
            self.stray("INV-25", f"batch {ident} is abandoned and was never selected")
            return
        batch.state = CANCELLED
        self.now.withdrawn.append(batch)
        self._undo(batch, {row.handle for row in batch.rows})
        lost = {row.handle for row in batch.rows}
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
                self._write(batch, row, garbage=True)
        for request in self.live():
            if device or any(row.handle == request.handle for row in self.batches[ident].rows):
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
        self.now.order.append(("emit", handle))

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
                f"request {handle} finishes with {output_tokens} tokens, {len(request.emitted)} went out",
            )
        request.finish = reason
        request.finished_at = self.step
        self.count("ended")
        if any(batch.state == DISPATCHED for batch, _ in self.rows_of(handle)):
            self.count("discarded_rows")
        self.now.finished.append(handle)
        self.now.order.append(("finish", handle))

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

    def accounted(self, account: Account) -> None:
        """Take the scheduler's own view; an epoch that has grown is a preemption."""
        self.before = self.account
        if self.before is not None:
            for handle, request in account.requests.items():
                older = self.before.requests.get(handle)
                if older is not None and request.epoch != older.epoch:
                    self.count("preemptions", request.epoch - older.epoch)
        self.account = account

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a total of our own, to be compared with the scheduler's counter of that name."""
        self.totals[name] = self.totals.get(name, 0) + amount

    def reset(self, *, done: bool) -> None:
        """Note the answer to a request to forget all cached content."""
        self.now.reset = done
        if done:
            self.resets += 1

    def retired(self) -> None:
        """Note that the host is ready again: batches that came back are complete."""
        for batch in self.batches.values():
            if batch.state == FILLED:
                batch.state = COMPLETED

    def stray(self, key: str, sentence: str) -> None:
        """Note a fact that fits nothing known."""
        self.now.strays.append((key, sentence))

    def forget(self) -> None:
        """Drop ended batches and requests without outstanding rows, so that long runs stay small."""
        out = self.outstanding()
        kept = {row.handle for batch in out for row in batch.rows}
        kept |= {content.handle for content in self.contents.values() if content.handle is not None}
        newest = max(self.batches, default=0)
        self.batches = {
            ident: batch
            for ident, batch in self.batches.items()
            if batch.state in (*OUTSTANDING, FILLED) or ident == newest
        }
        self.requests = {
            handle: request
            for handle, request in self.requests.items()
            if request.live or handle in kept
        }

    # -- what a block contains ----------------------------------------------------------------

    def _write(self, batch: Batch, row: Row, *, garbage: bool) -> None:
        size = self.limits.block_size
        for slot in range(row.position // size, -(-row.end // size)):
            block = row.table[slot]
            if block is None:
                continue
            start = max(row.position - slot * size, 0)
            stop = min(row.end - slot * size, size)
            before = self.contents.get(block)
            joins = before is not None and (before.handle, before.slot) == (row.handle, slot)
            if garbage:
                if start and joins and before is not None:
                    self.contents[block] = replace(before, filled=min(before.filled, start))
                else:
                    self.contents[block] = Content(None, slot, 0, batch.ident, self.resets)
            elif start == 0:
                self.contents[block] = Content(row.handle, slot, stop, batch.ident, self.resets)
            elif joins and before is not None and before.filled >= start:
                self.contents[block] = replace(before, filled=stop, batch=batch.ident)
            else:
                self.contents[block] = Content(None, slot, 0, batch.ident, self.resets)

    def _undo(self, batch: Batch, handles: set[int]) -> None:
        for row in batch.rows:
            if row.handle not in handles:
                continue
            request = self.requests[row.handle]
            if row.epoch != request.epoch:
                continue
            request.scheduled = min(request.scheduled, row.position)
            for slot, block in row.fresh:
                if request.table.get(slot) == block:
                    del request.table[slot]
