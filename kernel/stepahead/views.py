"""The kernel for people and checkers: plain records, a conservation audit, a digest, what may come.

Nothing here is used by a rule, and nothing here changes the kernel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from stepahead.arrays import EMPTY, Ints
from stepahead.batches import Batch
from stepahead.blocks import NO_KEY, BlockPool
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    Event,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    TransferDone,
    TransferFailed,
    Woke,
)
from stepahead.requests import Intent, Stay
from stepahead.state import State
from stepahead.tables import REQUEST, BatchState, RequestState


class Place(Enum):
    """Where a KV block is; the first that applies."""

    HELD = "held"
    PENDING = "pending"
    CACHED = "cached"
    FREE = "free"


#: The places in the order of their numbers in `PoolView.places`.
PLACES: Final[tuple[Place, ...]] = tuple(Place)
_HELD, _PENDING, _CACHED, _FREE = range(len(PLACES))


class Standing(NamedTuple):
    """A live request in numbers, cheap to read after every step; `RequestView` says more.

    ``blocks`` are its KV blocks, shallowest first, a copy of shape ``(blocks,)``.
    """

    handle: int
    state: RequestState
    epoch: int
    known: int
    scheduled: int
    settled: int
    intent: Intent
    seat: int | None
    blocks: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolView:
    """All KV blocks, or all host pages, as columns of shape ``(blocks,)``; all are copies.

    Args:
        places: number of the place in `PLACES`.
        references: how many holders there are.
        pins: of these, transfers.
        keys: identity of the content, or -1.
        queue: what may be handed out, in order; shape ``(available,)``.
    """

    places: Ints
    references: Ints
    pins: Ints
    keys: Ints
    queue: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A live request. Counts are tokens; ``blocks`` are its KV blocks, shallowest first."""

    request_id: str
    handle: int
    epoch: int
    state: RequestState
    intent: Intent
    rank: int
    seat: int | None
    prompt: int
    final: int
    known: int
    scheduled: int
    settled: int
    committed: int
    sampled: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """One request's share of a batch: it computes KV positions ``position`` to ``end - 1``.

    The last ``drafts`` of them are guesses.
    """

    seat: int
    handle: int
    epoch: int
    position: int
    end: int
    samples: bool
    live: bool
    drafts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A batch that is not retired."""

    batch_id: int
    state: BatchState
    rows: tuple[RowView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockView:
    """A KV block; ``key`` is None without content identity, ``fence`` 0 when it has passed.

    ``pins`` of the ``references`` are those of transfers.
    """

    block: int
    place: Place
    references: int
    pins: int
    key: int | None
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Counts by place, and one sentence for every law that does not hold."""

    free: int
    cached: int
    held: int
    pending: int
    total: int
    free_seats: int
    draining_seats: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible:
    """An event that may come next, with the batch, request or transfer it would name."""

    kind: type[Event]
    batch_id: int | None = None
    handle: int | None = None
    transfer_id: int | None = None


def standings(state: State) -> list[Standing]:
    """Return the live requests in numbers, in order of admission."""
    return [_standing(state, stay) for _, stay in sorted(state.live.items())]


def _standing(state: State, stay: Stay) -> Standing:
    columns, seat = state.columns, stay.seat
    if seat < 0:
        return Standing(
            stay.handle, stay.state, stay.epoch, stay.known, 0, 0, Intent.NONE, None, EMPTY
        )
    return Standing(
        handle=stay.handle,
        state=REQUEST.states[int(columns.state[seat])],
        epoch=stay.epoch,
        known=int(columns.known[seat]),
        scheduled=int(columns.scheduled[seat]),
        settled=int(columns.settled[seat]),
        intent=Intent(int(columns.intent[seat])),
        seat=seat,
        blocks=columns.held(seat).copy(),
    )


def view_requests(state: State) -> tuple[RequestView, ...]:
    """Return the live requests in order of admission."""
    return tuple(_view_request(state, stay) for _, stay in sorted(state.live.items()))


def _view_request(state: State, stay: Stay) -> RequestView:
    columns, seat, standing = state.columns, stay.seat, _standing(state, stay)
    return RequestView(
        request_id=stay.request_id,
        handle=stay.handle,
        epoch=stay.epoch,
        state=standing.state,
        intent=standing.intent,
        rank=stay.rank,
        seat=standing.seat,
        prompt=stay.prompt,
        final=stay.final,
        known=standing.known,
        scheduled=standing.scheduled,
        settled=standing.settled,
        committed=int(columns.committed[seat]) if seat >= 0 else 0,
        sampled=tuple((columns.sampled(seat) if seat >= 0 else stay.sampled).tolist()),
        blocks=tuple(standing.blocks.tolist()),
    )


def view_batches(state: State) -> tuple[BatchView, ...]:
    """Return the batches that are not retired, oldest first."""
    return tuple(_view_batch(batch) for batch in [*state.filled, *state.outstanding])


def _view_batch(batch: Batch) -> BatchView:
    rows = zip(
        batch.seats.tolist(),
        batch.handles.tolist(),
        batch.epochs.tolist(),
        batch.positions.tolist(),
        batch.ends.tolist(),
        batch.samples.tolist(),
        batch.live.tolist(),
        [0] * len(batch.seats) if batch.drafts is None else batch.drafts.tolist(),
        strict=True,
    )
    names = ("seat", "handle", "epoch", "position", "end", "samples", "live", "drafts")
    return BatchView(
        batch_id=batch.batch_id,
        state=batch.state,
        rows=tuple(RowView(**dict(zip(names, row, strict=True))) for row in rows),
    )


def view_pools(state: State) -> tuple[PoolView, PoolView | None]:
    """Return the KV blocks and, where there are any, the host pages, as columns."""
    pool, pages, ledger = state.pool, state.pages, state.ledger
    blocks = _view_pool(pool, ledger.pins(pool.num_blocks))
    if not pages.num_blocks:
        return blocks, None
    return blocks, _view_pool(pages, ledger.page_pins(pages.num_blocks))


def _view_pool(pool: BlockPool, pins: Ints) -> PoolView:
    queue = pool.queued()
    places = np.full(pool.num_blocks, _PENDING)
    places[queue] = np.where(pool.key[queue] >= 0, _CACHED, _FREE)
    places[pool.references > pins] = _HELD
    return PoolView(
        places=places,
        references=pool.references.copy(),
        pins=pins,
        keys=pool.key.copy(),
        queue=queue,
    )


def view_blocks(state: State) -> tuple[BlockView, ...]:
    """Return all KV blocks by number."""
    pool = state.pool
    seen, _ = view_pools(state)
    fences = np.where(pool.fence > pool.passed, pool.fence, 0)
    arrays = (seen.places, seen.references, seen.pins, seen.keys, fences)
    columns: list[list[int]] = [array.tolist() for array in arrays]
    places, references, pins, keys, waits = columns
    return tuple(
        BlockView(
            block=block,
            place=PLACES[places[block]],
            references=references[block],
            pins=pins[block],
            key=keys[block] if keys[block] >= 0 else None,
            fence=waits[block],
        )
        for block in range(pool.num_blocks)
    )


def audit(state: State) -> Audit:
    """Recount everything from scratch; cheap enough to run in production whenever idle."""
    pool, columns = state.pool, state.columns
    queued = pool.queued()
    keyed = pool.key[queued] >= 0
    pins = state.ledger.pins(pool.num_blocks)
    held = pool.references > pins
    pending = pool.references == 0
    pending[queued] = False
    problems: list[str] = []
    twice = len(queued) - int(np.count_nonzero(np.bincount(queued)))
    taken = int((pool.references[queued] > 0).sum())
    if twice or taken:
        problems.append(f"{twice} blocks are queued twice, {taken} queued and held")
    if int(pending.sum()) != pool.pending_count:
        problems.append(
            f"{int(pending.sum())} blocks are pending, {pool.pending_count} are counted"
        )
    stuck = pending & (pool.fence <= pool.passed)
    if stuck.any():
        problems.append(f"blocks {np.flatnonzero(stuck).tolist()} wait for a fence that has passed")
    tables = [EMPTY, *(columns.held(int(seat)) for seat in state.order)]
    owners = np.bincount(np.concatenate(tables), minlength=pool.num_blocks)
    wrong = np.flatnonzero(owners + pins != pool.references)
    if len(wrong):
        problems.append(
            f"blocks {wrong.tolist()} have references that no block table and no transfer accounts "
            "for"
        )
    problems.extend(_audit_keys(pool, "block"))
    if state.pages.num_blocks:
        problems.extend(_audit_pages(state))
    draining = len(state.fenced_seats)
    seats = len(state.seated)
    if len(columns.free_seats) + draining + len(state.order) != seats:
        problems.append(
            f"{len(columns.free_seats)} free, {draining} draining and {len(state.order)} taken "
            f"seats are not {seats}"
        )
    return Audit(
        free=int((~keyed).sum()),
        cached=int(keyed.sum()),
        held=int(held.sum()),
        pending=int(pending.sum()) + int(((pins > 0) & ~held).sum()),
        total=pool.num_blocks,
        free_seats=len(columns.free_seats),
        draining_seats=draining,
        problems=tuple(problems),
    )


def _audit_pages(state: State) -> list[str]:
    pages = state.pages
    pins = state.ledger.page_pins(pages.num_blocks)
    queued = np.zeros(pages.num_blocks, dtype=np.int64)
    np.add.at(queued, pages.queued(), 1)
    problems = _audit_keys(pages, "page")
    if (pins != pages.references).any() or (queued != (pins == 0)).any():
        wrong = np.flatnonzero((pins != pages.references) | (queued != (pins == 0)))
        problems.append(f"host pages {wrong.tolist()} are neither in transfer nor free for use")
    return problems


def _audit_keys(pool: BlockPool, name: str) -> list[str]:
    keys, blocks = pool.index.known()
    led = np.full(pool.num_blocks, NO_KEY)
    led[blocks] = keys
    # As many keys as blocks have one, so no two of them lead to the same block.
    if len(keys) != np.count_nonzero(pool.key >= 0) or not np.array_equal(led, pool.key):
        return [f"{name} to key and key to {name} disagree"]
    return []


def enabled(state: State) -> tuple[Possible, ...]:
    """Return the events that may come next under the host contract, in a fixed order."""
    batches = state.outstanding
    building = bool(batches) and batches[-1].state is BatchState.QUEUED
    possible: list[Possible] = []
    if building:
        newest = batches[-1].batch_id
        possible.append(Possible(kind=BatchPrepared, batch_id=newest))
        possible.append(Possible(kind=BatchRefused, batch_id=newest))
    else:
        possible.append(Possible(kind=HostReady))
    if batches and batches[0].state is BatchState.DISPATCHED:
        oldest = batches[0].batch_id
        if not any(state.ledger.waited_for(load) for load in batches[0].loads):
            possible.append(Possible(kind=BatchExecuted, batch_id=oldest))
        possible.append(Possible(kind=BatchFailed, batch_id=oldest))
    for ident in state.ledger.open:
        possible.append(Possible(kind=TransferDone, transfer_id=ident))
        possible.append(Possible(kind=TransferFailed, transfer_id=ident))
    if state.wake is not None:
        possible.append(Possible(kind=Woke))
    possible.extend(Possible(kind=RequestCancelled, handle=handle) for handle in sorted(state.live))
    possible.append(Possible(kind=RequestArrived))
    possible.append(Possible(kind=ResumeRequested if state.paused else PauseRequested))
    possible.append(Possible(kind=CacheResetRequested))
    return tuple(possible)


def digest(state: State) -> str:
    """Return a SHA-256 of everything that can influence a later command, as hex.

    Stale entries (free seats, table entries beyond a request's blocks, places in the queue) are
    left out, so equal digests mean equal futures and stretched equals single-stepped.
    """
    pool, columns = state.pool, state.columns
    hasher = hashlib.sha256()

    def feed(*parts: object) -> None:
        for part in parts:
            data = (
                part.astype("<i8").tobytes()
                if isinstance(part, np.ndarray)
                else repr(part).encode()
            )
            hasher.update(len(data).to_bytes(8, "little") + data)

    feed(pool.queued(), pool.references, pool.key)
    feed(np.where(pool.fence > pool.passed, pool.fence, 0), pool.passed)
    feed(np.concatenate([EMPTY, *(blocks for _, blocks in pool.pending)]))
    for stay in state.live.values():
        feed(stay.request_id, stay.handle, stay.rank, stay.prompt, stay.final, stay.floor, stay.eos)
        feed(
            sorted(stay.stops), stay.keys, stay.seat, stay.epoch, stay.sampled, stay.settled_before
        )
        if stay.seat >= 0:
            feed(columns.arena[:, stay.seat], columns.held(stay.seat), columns.sampled(stay.seat))
    feed(state.order, tuple(columns.free_seats), tuple(state.fenced_seats))
    for batch in [*state.filled, *state.outstanding]:
        feed(batch.batch_id, batch.state.value, batch.seats, batch.handles, batch.epochs)
        feed(batch.positions, batch.ends, batch.samples, batch.live)
        feed(sorted((row, reason.value) for row, reason in batch.dead.items()))
        if batch.drafts is not None:
            feed("drafts", batch.drafts)
    if state.tiers:
        pages, ledger = state.pages, state.ledger
        feed(pages.queued(), pages.references, pages.key, pool.uses)
        for transfer in ledger.open.values():
            feed(*(getattr(transfer, entry.name) for entry in fields(transfer)))
        feed(sorted(ledger.loading.items()), sorted(ledger.storing), sorted(ledger.late))
        feed(ledger.next_id, state.wake)
        stays = state.live.values()
        feed([(stay.load_epoch, stay.cleared_epoch, stay.remote_blocks) for stay in stays])
        feed([batch.loads for batch in state.outstanding])
    if state.timing is not None:
        feed(repr(state.timing), state.wake, state.joinable)
        feed([batch.dispatched_at for batch in state.outstanding[:1]])
    feed(state.next_batch, state.next_handle, state.paused, state.pause_due, state.device_failed)
    return hasher.hexdigest()
