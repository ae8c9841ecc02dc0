"""The canonical form of a kernel's state: equal forms behave alike from here on.

Requests are named by rank, batches by their place among the outstanding ones, blocks and seats in
the order in which tables, rows and fences first name them; time and counters are left out, no rule
reads them. A fence is the number of outstanding batches that it waits for, and whether the last of
them is the fence itself. Tokens are kept relative to their request, so that a foreign one still
shows. That much is a renaming and sound always.

The order of the free blocks is left out **only without prefix caching**: then free blocks differ in
nothing but their number, so which one is handed out next is a renaming too. With prefix caching a
free block may hold content, and the order decides what is forgotten first; it is kept, and so is
what a batch under construction would put back if it were refused.

The row set that the planner remembers (`Steady`) is left out: it repeats a selection that would be
made again without it. That is an assumption about the kernel, and it is not taken on trust: with
``steady`` it is kept, and a test holds both explorations equal but for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from stepahead.batches import Batch
from stepahead.blocks import Receipt
from stepahead.columns import COLUMNS
from stepahead.requests import NO_SEAT, Stay
from stepahead.state import Snapshot
from stepahead.tables import BatchState
from stepahead_specs.explorer.bounds import untag

#: A nest of tuples of integers and words.
Form: TypeAlias = tuple[object, ...]

_COLUMN: Final = {name: index for index, name in enumerate(COLUMNS)}
_KNOWN, _PROMPT = _COLUMN["known"], _COLUMN["prompt"]
_BLOCKS, _LAST = _COLUMN["blocks"], _COLUMN["last_token"]
#: What a request with a seat is, beside its tokens and blocks.
_KEPT: Final = tuple(
    _COLUMN[name]
    for name in ("state", "intent", "known", "scheduled", "settled", "prompt", "final", "committed")
)

#: Flags that count: paused, pause due, device failed. The rest belongs to just-in-time selection.
_FLAGS: Final = 3


class _Names:
    """Numbers in the order of first mention."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}

    def __call__(self, thing: int) -> int:
        return self.given.setdefault(thing, len(self.given))


class _Pool:
    """The pool of a snapshot as lists, and its blocks' names."""

    def __init__(self, saved: Snapshot, *, ordered: bool) -> None:
        pool = saved.pool
        arrays = [array.tolist() for array in pool.arrays]
        self.ordered = ordered
        self.references, self.key, self.fence = arrays[:3]
        head, tail, self.layout, available, _ = pool.counts
        self.queue: list[int] = [block for block in arrays[-2][head:tail] if block >= 0]
        self.position: list[int] = arrays[-1]
        if len(self.queue) != available:
            raise RuntimeError(
                f"{len(self.queue)} blocks are read from the queue of a snapshot that has "
                f"{available}; bring this module in step with BlockPool.snapshot"
            )
        self.passed = pool.fences[0]
        self.outstanding = [batch.batch_id for batch in saved.batches[saved.filled :]]
        self.pending: list[int] = [int(block) for _, blocks in pool.pending for block in blocks]
        self.names = _Names()

    def waits(self, fence: int) -> tuple[int, bool]:
        """Return how many outstanding batches a fence waits for, and whether it is one of them."""
        return sum(ident <= fence for ident in self.outstanding), fence in self.outstanding

    def what(self, block: int) -> Form:
        """Return all that distinguishes a block but its number."""
        fence = self.fence[block]
        passed = fence <= self.passed
        return self.references[block], self.key[block], passed, self.waits(0 if passed else fence)

    def form(self) -> Form:
        """Return the pool's form; to be called when every table has named its blocks."""
        if self.ordered:
            pending = tuple(self.names(block) for block in self.pending)
            queue = tuple(self.names(block) for block in self.queue)
            return pending, queue, tuple(self.what(block) for block in self.names.given)
        held = tuple(self.what(block) for block in self.names.given)
        rest = sorted(self.what(block) for block in self.pending)
        return held, tuple(rest), tuple(sorted(self.what(block) for block in self.queue))

    def undone(self, receipts: list[Receipt]) -> Form:
        """Return where the blocks of one selection's receipts would stand if all were given back.

        Their places are told among the blocks that are queued now, and among each other: blocks of
        several receipts go back into one queue.
        """
        names = tuple(tuple(self.names(b) for b in receipt.blocks.tolist()) for receipt in receipts)
        if not self.ordered:
            return names
        stood: list[int] = [place for entry in receipts for place in entry.queued_at.tolist()]
        queued = [self.position[block] for block in self.queue]
        places = tuple(sum(other < place for other in queued) for place in stood)
        order = tuple(sorted(range(len(stood)), key=stood.__getitem__))
        loose = tuple(place < 0 for place in stood)
        forgotten = tuple(tuple(receipt.forgotten.tolist()) for receipt in receipts)
        same = tuple(receipt.layout == self.layout for receipt in receipts)
        return names, places, order, loose, forgotten, same


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a canonical form keeps that it could leave out.

    Args:
        ordered: the order of the free blocks; necessary with prefix caching.
        steady: the row set that the planner remembers.
        named: the handles of requests, as a model without renaming has them.
        follow: which request has this handle, for its own behaviour.
    """

    ordered: bool = False
    steady: bool = False
    named: bool = False
    follow: int | None = None


def canonical(saved: Snapshot, arrived: int, kept: Kept) -> Form:
    """Return the canonical form of a state.

    Args:
        saved: the state.
        arrived: how many requests have arrived, admitted or refused.
        kept: what must not be left out.
    """
    arena: list[list[int]] = saved.columns.arena.tolist()
    pool = _Pool(saved, ordered=kept.ordered)
    seats, handles = _Names(), _Names()
    epochs: dict[int, int] = {}
    requests: list[Form] = []
    for stay in sorted(saved.stays, key=_rank):
        handles(stay.handle)
        epochs[stay.handle] = stay.epoch
        requests.append(_request(saved, stay, arena, pool, seats))
    batches = tuple(
        _batch(batch, handles, epochs, seats, pool) for batch in saved.batches[saved.filled :]
    )
    fenced = sorted((*pool.waits(fence), seats(seat)) for fence, seat in saved.fenced_seats)
    oldest = min(pool.outstanding, default=saved.marks[2])
    return (
        arrived,
        tuple(requests),
        batches,
        saved.filled,
        pool.form(),
        oldest - pool.passed,
        tuple(fenced),
        len(saved.columns.free_seats),
        saved.flags[:_FLAGS],
        tuple(handles.given) if kept.named else None,
        None if kept.follow is None else handles.given.get(kept.follow),
        _steady(saved, seats) if kept.steady else None,
    )


def _steady(saved: Snapshot, seats: _Names) -> Form | None:
    known = saved.steady
    if known is None:
        return None
    # Batches of the remembered row set share its array, and rules ask for that.
    shared = tuple(batch.seats is known.seats for batch in saved.batches[saved.filled :])
    named = tuple(seats(seat) for seat in known.seats.tolist())
    return known.turns, known.thinned, named, shared


def _rank(stay: Stay) -> int:
    return stay.rank


def _request(
    saved: Snapshot, stay: Stay, arena: list[list[int]], pool: _Pool, seats: _Names
) -> Form:
    handle, seat, priority = stay.handle, stay.seat, stay.rank - stay.handle
    if seat == NO_SEAT:
        sampled = tuple(untag(token, handle) for token in stay.sampled.tolist())
        return stay.state.value, priority, stay.prompt, stay.final, sampled
    column = [row[seat] for row in arena]
    outputs = column[_KNOWN] - column[_PROMPT]
    tokens = saved.columns.tokens[seat, :outputs].tolist()
    last = untag(column[_LAST], handle) if outputs else None
    return (
        priority,
        seats(seat),
        bool((saved.order == seat).any()),
        tuple(column[index] for index in _KEPT),
        tuple(untag(token, handle) for token in tokens),
        last,
        tuple(pool.names(block) for block in saved.columns.table[seat, : column[_BLOCKS]].tolist()),
    )


def _batch(
    batch: Batch,
    handles: _Names,
    epochs: dict[int, int],
    seats: _Names,
    pool: _Pool,
) -> Form:
    columns = zip(
        batch.handles.tolist(),
        batch.epochs.tolist(),
        batch.seats.tolist(),
        batch.positions.tolist(),
        batch.ends.tolist(),
        batch.samples.tolist(),
        batch.live.tolist(),
        [0] * len(batch.seats) if batch.drafts is None else batch.drafts.tolist(),
        strict=True,
    )
    rows = tuple(
        (
            handles(handle),
            epochs[handle] - epoch if live and handle in epochs else 0,
            seats(seat),
            position,
            end,
            samples,
            live,
            drafts,
        )
        for handle, epoch, seat, position, end, samples, live, drafts in columns
    )
    undo: Form = ()
    if batch.state is BatchState.QUEUED:
        hit = tuple(seats(seat) for seat in batch.hits)
        undone = pool.undone([batch.grant, *batch.hits.values()])
        undo = (tuple(batch.grant_rows.tolist()), hit, undone)
    return batch.state.value, batch.decode, rows, undo
