"""How far a bounded exploration goes, and which moves clients, host and device have within it.

Time is dropped: every event carries the same instant, and when the host reports that it is ready is
a free choice. Requests arrive in the order of their numbers. Sampled tokens are tags that name
request and position, so that one request's token given to another is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Final

import numpy as np

from stepahead.arrays import Ints
from stepahead.batches import Batch
from stepahead.config import BatchPreference, KernelConfig, WaitingOrder
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
)
from stepahead.kernel import Kernel
from stepahead.state import Snapshot
from stepahead.views import Possible

EOS: Final = 7
#: What the device returns in rows whose request has ended; nobody may look at it.
GARBAGE: Final = -1
_TAGS: Final = 1000
#: What somebody beside clients, host and device may want; nobody owes such a move either.
_OPERATOR: Final[dict[type[Event], Event]] = {
    PauseRequested: PauseRequested(at=0),
    ResumeRequested: ResumeRequested(at=0),
    CacheResetRequested: CacheResetRequested(at=0),
}
_CLIENT: Final = (RequestArrived, RequestCancelled, *_OPERATOR)


class Actor(Enum):
    """Who makes a move. Fairness binds CPU and NPU; clients and faults owe nobody a move."""

    CLIENT = "client"
    CPU = "cpu"
    NPU = "npu"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that may happen next."""

    actor: Actor
    event: Event


def tag(handle: int, position: int) -> int:
    """Return the token of a request at a position of its sequence; no two have the same."""
    return _TAGS * handle + 10 + position


def untag(token: int, handle: int) -> int:
    """Return the position that a token of this request belongs to; nonsense for a foreign one."""
    return token - _TAGS * handle - 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds, and the options of the kernel that is explored within them.

    Args:
        requests: how many arrive at most.
        blocks: KV blocks of the pool.
        tokens: output tokens of each request at most.
        lookahead: as in the kernel's configuration.
        prompts: prompt lengths, repeated over the requests; empty: 1 and 2 in turn where both fit
            into the pool, else 1.
        priorities: priorities, repeated over the requests; empty: first come, first served.
        block_size: tokens per block.
        rows: rows per batch at most; 0: as many as requests.
        budget: tokens per batch at most.
        row_tokens: tokens per row at most.
        prefill_first: prompt chunks get the token budget before decode rows.
        caching: prefix caching; all prompts share one prefix.
        prune: rows whose request has ended are dropped before the dispatch.
        refusals: the host may refuse to build a batch.
        failures: the device may fail, one batch or altogether.
        pauses: somebody may ask for a pause, end it, or ask to forget what is cached.
        drafts: draft tokens per decode row at most, with lookahead 0; the device accepts any number
            of them.
        leaps: the device may answer several steps at once where the kernel offers it.
    """

    requests: int = 2
    blocks: int = 3
    tokens: int = 3
    lookahead: int = 1
    prompts: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    block_size: int = 1
    rows: int = 0
    budget: int = 1024
    row_tokens: int = 1024
    prefill_first: bool = False
    caching: bool = False
    prune: bool = False
    refusals: bool = False
    failures: bool = False
    pauses: bool = False
    leaps: bool = False
    drafts: int = 0

    def prompt(self, number: int) -> int:
        """Return the prompt length of request ``number``, counted from 0."""
        if self.prompts:
            return self.prompts[number % len(self.prompts)]
        return 1 + number % 2 if self.tokens + 1 <= self.blocks * self.block_size else 1

    def config(self) -> KernelConfig:
        """Return the configuration of the kernel that is explored."""
        longest = max(self.prompt(number) for number in range(self.requests))
        return KernelConfig(
            num_blocks=self.blocks,
            block_size=self.block_size,
            max_concurrency=self.rows or self.requests,
            max_num_batched_tokens=self.budget,
            max_tokens_per_row=self.row_tokens,
            max_model_len=longest + self.tokens,
            lookahead=self.lookahead,
            num_speculative_tokens=self.drafts,
            order=(
                WaitingOrder.PRIORITY if self.priorities else WaitingOrder.FIRST_COME_FIRST_SERVED
            ),
            preference=(
                BatchPreference.PREFILL_FIRST
                if self.prefill_first
                else BatchPreference.DECODE_FIRST
            ),
            prune=self.prune,
            prefix_caching=self.caching,
            eos_token_id=EOS,
        )

    def arrival(self, number: int) -> RequestArrived:
        """Return the arrival of request ``number``, counted from 0."""
        prompt = self.prompt(number)
        keys = np.arange(prompt // self.block_size, dtype=np.int64)
        return RequestArrived(
            request_id=chr(ord("a") + number),
            prompt_length=prompt,
            max_tokens=self.tokens,
            at=0,
            arrived_at=0,
            priority=self.priorities[number % len(self.priorities)] if self.priorities else 0,
            block_keys=keys if self.caching else None,
        )


def moves(kernel: Kernel, saved: Snapshot, bounds: Bounds, arrived: int) -> list[Move]:
    """Return what may happen next in the state ``saved``, in which ``kernel`` stands."""
    found: list[Move] = []
    for possible in kernel.enabled():
        if possible.kind in _CLIENT:
            found.extend(_wishes(possible, saved, bounds, arrived))
        else:
            found.extend(_work(kernel, possible, saved, bounds))
    return found


def _wishes(possible: Possible, saved: Snapshot, bounds: Bounds, arrived: int) -> Iterator[Move]:
    """Yield what clients and operators may do, which nobody can count on."""
    kind = possible.kind
    if kind is RequestArrived:
        if arrived < bounds.requests:
            yield Move(Actor.CLIENT, bounds.arrival(arrived))
    elif kind is RequestCancelled:
        names = {stay.handle: stay.request_id for stay in saved.stays}
        handle = possible.handle or 0
        event = RequestCancelled(request_id=names[handle], handle=handle, at=0)
        yield Move(Actor.CLIENT, event)
    elif bounds.pauses:
        yield Move(Actor.CLIENT, _OPERATOR[kind])


def _work(kernel: Kernel, possible: Possible, saved: Snapshot, bounds: Bounds) -> Iterator[Move]:
    """Yield what host and device may do, faults included."""
    kind, batch_id = possible.kind, possible.batch_id or 0
    if kind is HostReady:
        yield Move(Actor.CPU, HostReady(at=0))
    elif kind is BatchPrepared:
        yield Move(Actor.CPU, BatchPrepared(batch_id=batch_id, at=0))
    elif kind is BatchRefused and bounds.refusals:
        yield Move(Actor.FAULT, BatchRefused(batch_id=batch_id, at=0))
    elif kind is BatchExecuted:
        turns = kernel.repeat() if bounds.leaps else None
        for steps in range(1, 2 if turns is None else turns.steps + 1):
            for event in executions(saved.batches[saved.filled], steps):
                yield Move(Actor.NPU, event)
    elif kind is BatchFailed and bounds.failures:
        for scope in FailureScope:
            yield Move(Actor.FAULT, BatchFailed(batch_id=batch_id, scope=scope, at=0))


def executions(batch: Batch, steps: int = 1) -> Iterator[BatchExecuted]:
    """Return the results that a batch may have: in the last step each live row goes on or ends."""
    if batch.drafts is not None:
        yield from _verifications(batch, batch.drafts)
        return
    before: list[list[int]] = []
    choices: list[tuple[int, ...]] = []
    rows = zip(
        batch.handles.tolist(),
        batch.ends.tolist(),
        batch.samples.tolist(),
        batch.live.tolist(),
        strict=True,
    )
    for handle, end, samples, live in rows:
        if samples:
            before.append([tag(handle, end + step) for step in range(steps - 1)])
            choices.append((tag(handle, end + steps - 1), EOS) if live else (GARBAGE,))
    for last in product(*choices):
        columns = [[*tokens, token] for tokens, token in zip(before, last, strict=True)]
        tokens = np.array(columns, dtype=np.int64).reshape(len(columns), steps).T
        yield BatchExecuted(batch_id=batch.batch_id, tokens=tokens, at=0)


def _verifications(batch: Batch, drafts: Ints) -> Iterator[BatchExecuted]:
    """Return the results that a batch with drafts may have.

    Of a live row any number of drafts is right, and it goes on or ends with any of its tokens, also
    with one that more right drafts follow.
    """
    mask = batch.samples
    ends = (batch.ends - drafts)[mask].tolist()
    wide, most = drafts[mask].tolist(), int(drafts[mask].max())
    columns: list[list[list[int]]] = []
    for handle, end, live, drafted in zip(
        batch.handles[mask].tolist(), ends, batch.live[mask].tolist(), wide, strict=True
    ):
        tags = [tag(handle, end + place) for place in range(drafted + 1)]
        right = [tags[: accepted + 1] for accepted in range(drafted + 1)]
        ended = [[*tags[:last], EOS] for last in range(drafted + 1)]
        behind = [[*tags[:last], EOS, *tags[last + 1 :]] for last in range(drafted)]
        columns.append(right + ended + behind if live else [[GARBAGE] * (drafted + 1)])
    for chosen in product(*columns):
        tokens = np.full((most + 1, len(chosen)), GARBAGE, dtype=np.int64)
        for row, values in enumerate(chosen):
            tokens[: len(values), row] = values
        accepted = np.array([len(values) - 1 for values in chosen], dtype=np.int64)
        yield BatchExecuted(batch_id=batch.batch_id, tokens=tokens, at=0, accepted=accepted)


def impossible(kernel: Kernel, saved: Snapshot) -> Iterator[Event]:
    """Return events that contradict what was reported before, about every batch there may be."""
    possible = {(entry.kind, entry.batch_id) for entry in kernel.enabled()}
    if (HostReady, None) not in possible:
        yield HostReady(at=0)
    yield HostReady(at=-1)
    newest = saved.marks[2] - 1
    for ident in range(max(newest - len(saved.batches), 0), newest + 2):
        if (BatchPrepared, ident) not in possible:
            yield BatchPrepared(batch_id=ident, at=0)
        if (BatchRefused, ident) not in possible:
            yield BatchRefused(batch_id=ident, at=0)
        if (BatchExecuted, ident) not in possible:
            yield BatchExecuted(batch_id=ident, tokens=np.ones((1, 1), dtype=np.int64), at=0)
        if (BatchFailed, ident) not in possible:
            for scope in FailureScope:
                yield BatchFailed(batch_id=ident, scope=scope, at=0)
    for batch in saved.batches[saved.filled :]:
        if (BatchExecuted, batch.batch_id) in possible:
            yield from _wrong_results(batch)


def _wrong_results(batch: Batch) -> Iterator[BatchExecuted]:
    """Return results with too many rows, no step, or a placeholder for a live row."""
    event = next(executions(batch))
    right, accepted = event.tokens, event.accepted
    shapes = [np.zeros((1, right.shape[1] + 1), dtype=np.int64), right[:0]]
    judged = [] if accepted is None else [None, accepted[1:]]
    if (batch.live & batch.samples).any():
        shapes.append(np.full_like(right, -1))
        judged += [] if accepted is None else [accepted - 1, accepted + len(right)]
    for tokens in shapes:
        yield BatchExecuted(batch_id=batch.batch_id, tokens=tokens, at=0, accepted=accepted)
    for numbers in judged:
        yield BatchExecuted(batch_id=batch.batch_id, tokens=right, at=0, accepted=numbers)
