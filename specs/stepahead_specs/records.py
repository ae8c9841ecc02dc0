"""The neutral records of what is seen of a scheduler: requests, batches, blocks, tokens, facts.

A scheduler that can be looked into adds an `Account`, its own view of its state. This module
imports no scheduler, ours included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

EMPTY: Final[Ints] = np.zeros(0, dtype=np.int64)
#: Stands in columns for a block that was never told, a key that is not there, and the like.
NONE: Final = -1

QUEUED = "queued"
PREPARED = "prepared"
DISPATCHED = "dispatched"
FILLED = "filled"
COMPLETED = "completed"
CANCELLED = "cancelled"

OUTSTANDING = (QUEUED, PREPARED, DISPATCHED)

#: Where a block is, in words and, in columns, by number.
PLACES: Final = ("held", "pending", "cached", "free")
HELD, PENDING, CACHED, FREE = range(len(PLACES))


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
    #: Blocks that fit into a cache on the host.
    host_pages: int = 0
    num_speculative_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One request's share of one batch, with the block table that it reads and writes through.

    ``table`` are the request's blocks from slot 0 up to the end of the row, `NONE` where the host
    was told none; it is never written. ``fresh`` are the (slot, block) entries that came with this
    batch. The last ``drafts`` positions are guesses.
    """

    handle: int
    epoch: int
    seat: int
    position: int
    count: int
    samples: bool
    table: Ints = field(default_factory=lambda: EMPTY)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """A copy between KV blocks and the host, or from a remote store; arrays are never written.

    Args:
        ident: its number.
        store: to the host; otherwise it is a load.
        blocks: what is read by a store, written by a load; shape ``(blocks,)``.
        pages: the other side, one per block; empty for the remote store.
        keys: identity of each content.
        handle: of a load, the request that it is for.
        layerwise: of a load, the request runs meanwhile.
    """

    ident: int
    store: bool
    blocks: Ints
    pages: Ints
    keys: Ints
    handle: int | None = None
    layerwise: bool = False


@dataclass(slots=True, kw_only=True)
class Batch:
    """One batch and what has happened to it; steps are numbers of scheduler steps."""

    ident: int
    rows: tuple[Row, ...]
    state: str = QUEUED
    selected_at: int
    #: The newest batch before it.
    after: int = NONE
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

    def granted(self, block_size: int) -> Iterator[int]:
        """Iterate over the blocks that its rows got to write."""
        for row in self.rows:
            for slot, block in row.fresh:
                if (slot + 1) * block_size > row.position:
                    yield block


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
    keys: Ints
    final_length: int
    #: How many of its blocks a lookup found in the remote store; None where nobody looked.
    remote_blocks: int | None = None
    epoch: int = -1
    seat: int = -1
    #: Its blocks by slot, as the host was told, `NONE` where it was not; replaced, never written.
    table: Ints = field(default_factory=lambda: EMPTY)
    #: Rows selected in this epoch that were not taken back.
    rows: int = 0
    #: The layer-wise load that this epoch runs on, as long as it is not complete.
    runs_on: int | None = None
    #: The last epoch of which nothing counts, because the load that it ran on failed.
    void: int = -1
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
        return int(self.keys[slot]) if slot < len(self.keys) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestAccount:
    """What the scheduler says of one request that has a seat or waits.

    ``blocks`` are its KV blocks, shallowest first.
    """

    handle: int
    state: str
    epoch: int
    known: int
    scheduled: int
    settled: int
    intent: str
    seat: int | None
    blocks: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Which piece of a memory has the content with which key; ``keys`` ascend."""

    keys: Ints
    pieces: Ints

    def lead(self, keys: Ints) -> Ints:
        """Return the piece that each key leads to, or `NONE`."""
        if not len(self.keys):
            return np.full(len(keys), NONE)
        places = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.pieces[places], NONE)

    def get(self, key: int) -> int | None:
        """Return the piece that a key leads to, or None."""
        piece = int(self.lead(np.array([key]))[0])
        return None if piece == NONE else piece


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryAccount:
    """What the scheduler says of its KV blocks, or of its host pages, as columns by number.

    Args:
        places: numbers of `PLACES`.
        references: how many holders there are.
        pins: of these, transfers.
        keys: identity of the content, or `NONE`.
        queue: what may be handed out, in order; None where it is not told.
        index: from key to piece; None where it is not told.
    """

    places: Ints
    references: Ints
    pins: Ints
    keys: Ints
    queue: Ints | None = None
    index: Index | None = None

    @cached_property
    def queued(self) -> Ints:
        """How often each piece stands in the queue."""
        queue = EMPTY if self.queue is None else self.queue
        return tally(queue, len(self.places))


def tally(pieces: Ints, size: int) -> Ints:
    """Count how often each of ``size`` numbers occurs; others are left out."""
    own = pieces[(pieces >= 0) & (pieces < size)]
    return np.bincount(own, minlength=size)


def where(mask: NDArray[np.bool_] | Ints) -> list[int]:
    """Return the numbers at which a mask holds."""
    found: list[int] = mask.nonzero()[0].tolist()
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """The scheduler's own view of its state after a step.

    Args:
        requests: by handle, those that have a seat or wait.
        batches: state by number.
        blocks: its KV blocks.
        pages: its host pages; None without.
        transfers: copies that it waits for; None where it does not say.
        late: of these, loads whose end will be ignored.
        seats_free, seats_draining, seats: places in the block tables, where they are counted.
        counters: what it counted.
        idle: whether it says that nothing is left to do; None if it does not say.
        problems: what its own audit complains about.
    """

    requests: Mapping[int, RequestAccount]
    batches: Mapping[int, str]
    blocks: MemoryAccount
    pages: MemoryAccount | None = None
    transfers: frozenset[int] | None = None
    late: frozenset[int] = frozenset()
    seats_free: int | None = None
    seats_draining: int = 0
    seats: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    idle: bool | None = None
    problems: Sequence[str] = ()

    @cached_property
    def entries(self) -> Ints:
        """How many table entries name each block."""
        tables = [EMPTY, *(request.blocks for request in self.requests.values())]
        return tally(np.concatenate(tables), len(self.blocks.places))


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
    #: Transfers that were asked for, that are complete (with how many blocks), that failed.
    asked: list[Transfer] = field(default_factory=list[Transfer])
    copied: list[tuple[Transfer, int]] = field(default_factory=list[tuple[Transfer, int]])
    lost: list[Transfer] = field(default_factory=list[Transfer])
    #: Requests whose epoch is void, because the load that it ran on failed.
    voided: list[int] = field(default_factory=list[int])
    paused: int = 0
    reset: bool | None = None
    #: Which memories the reset was about.
    forgotten: tuple[str, ...] = ("block", "page")
    #: The newest request before this step.
    newest: int = -1
    #: Sentences about facts that fit nothing that is known, keyed by the invariant they break.
    strays: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: The order of the answer: words of batch, token and finish commands.
    order: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
