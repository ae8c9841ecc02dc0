"""The neutral records of what is seen of a scheduler: requests, batches, blocks, tokens, facts.

A scheduler that can be looked into adds an `Account`, its own view of its state. This module
imports no scheduler, ours included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

QUEUED = "queued"
PREPARED = "prepared"
DISPATCHED = "dispatched"
FILLED = "filled"
COMPLETED = "completed"
CANCELLED = "cancelled"

OUTSTANDING = (QUEUED, PREPARED, DISPATCHED)


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
    #: Waiting requests at most, or None where nobody counts.
    max_waiting: int | None = None
    num_speculative_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request's share of one batch, with the block table that it reads and writes through.

    ``table`` are the request's blocks from slot 0 up to the end of the row; ``fresh`` are the
    (slot, block) entries that came with this batch. The last ``drafts`` positions are guesses.
    """

    handle: int
    epoch: int
    seat: int
    position: int
    count: int
    samples: bool
    table: tuple[int | None, ...] = ()
    fresh: tuple[tuple[int, int], ...] = ()
    #: Where the request's row before this one ended, and where the first one of its epoch began.
    after: int = 0
    starts: int = 0
    drafts: int = 0

    @property
    def end(self) -> int:
        """Position after the last one that the row computes."""
        return self.position + self.count

    @property
    def known_end(self) -> int:
        """Position after the last known one; the first sampled token belongs here."""
        return self.end - self.drafts


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
    #: Request, position and value of each input that was sampled before a preemption.
    history: tuple[tuple[int, int, int], ...] = ()
    dispatched_at: int | None = None
    live: tuple[bool, ...] = ()
    fills: tuple[tuple[int, int], ...] = ()
    #: Rows were left out at the dispatch.
    pruned: bool = False
    #: What came back for each sampling row, by request: its accepted drafts and one token more.
    values: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
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
    #: Whether the scheduler says that nothing is left to do; None if it does not say.
    idle: bool | None = None
    #: What the scheduler's own audit complains about.
    problems: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Facts:
    """What happened in the last step: one event and what the scheduler answered."""

    event: str = ""
    arrived: list[str] = field(default_factory=list[str])
    admitted: list[int] = field(default_factory=list[int])
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: What was refused, as it would have been admitted, and for which reason.
    declined: list[tuple[Request, str]] = field(default_factory=list[tuple[Request, str]])
    #: Live requests that the event cancelled or failed, which must end in this step.
    cancelled: list[int] = field(default_factory=list[int])
    failed: list[int] = field(default_factory=list[int])
    selected: list[Batch] = field(default_factory=list[Batch])
    built: list[Batch] = field(default_factory=list[Batch])
    dispatched: list[Batch] = field(default_factory=list[Batch])
    executed: list[Batch] = field(default_factory=list[Batch])
    withdrawn: list[Batch] = field(default_factory=list[Batch])
    spoiled: list[Batch] = field(default_factory=list[Batch])
    #: Tokens that came back in this step for live requests, none behind one that ends its request.
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
