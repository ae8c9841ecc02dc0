"""The kernel seen as the formal models see it: one abstraction, shared by all comparisons.

In `specs/formal/Overlap.tla` and `specs/formal/overlap.pml` a state has for each request where it
is and what is known, scheduled and settled of it, the outstanding batches with their rows and the
blocks that wait for them, and how many batches wait to be retired. `abstract` reads the same from a
snapshot of the real kernel. The models know one token per block, no prefix cache, no budget that
binds and no fault; `modelled` says whether bounds are within that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from stepahead.batches import Batch
from stepahead.columns import COLUMNS
from stepahead.events import RequestArrived
from stepahead.kernel import Kernel
from stepahead.requests import NO_SEAT, Intent
from stepahead.state import Snapshot
from stepahead.tables import REQUEST
from stepahead_specs.explorer.bounds import Bounds, moves
from stepahead_specs.explorer.search import Options, Search

#: Event -> action of the models.
ACTIONS: Final = {
    "RequestArrived": "Arrive",
    "RequestCancelled": "Cancel",
    "HostReady": "HostReady",
    "BatchPrepared": "Prepared",
    "BatchExecuted": "Executed",
}


class AbstractRequest(NamedTuple):
    """A request in the models; ``at`` is its state, or new or ended."""

    at: str
    known: int = 0
    sched: int = 0
    settled: int = 0
    marked: bool = False


class AbstractBatch(NamedTuple):
    """A batch in the models; a row is (request, first position, position after the last)."""

    at: str
    rows: frozenset[tuple[int, int, int]]
    owes: int


class Abstract(NamedTuple):
    """A state of the models."""

    req: tuple[AbstractRequest, ...]
    batches: tuple[AbstractBatch, ...]
    filled: int


@dataclass(frozen=True, slots=True)
class AbstractGraph:
    """States, and edges as (state, action, state), those that stay where they are included.

    ``steps`` counts (state, event) pairs where the source of the graph tells them; several events
    of one kind may make one edge.
    """

    states: frozenset[Abstract]
    edges: frozenset[tuple[Abstract, str, Abstract]]
    steps: int | None = None


def modelled(bounds: Bounds) -> bool:
    """Tell whether the formal models cover these bounds."""
    plain = Bounds(
        requests=bounds.requests,
        blocks=bounds.blocks,
        tokens=bounds.tokens,
        lookahead=bounds.lookahead,
        prompts=bounds.prompts,
    )
    longest = max(bounds.prompt(number) for number in range(bounds.requests)) + bounds.tokens
    return bounds == plain and longest - 1 <= bounds.blocks


def abstract(saved: Snapshot, arrived: int, requests: int) -> Abstract:
    """Return the abstract state of a snapshot; request i has handle i, counted from 1."""
    known = {stay.handle: stay for stay in saved.stays}
    arena: list[list[int]] = saved.columns.arena.tolist()
    seen: list[AbstractRequest] = []
    for handle in range(1, requests + 1):
        stay = known.get(handle)
        if stay is None:
            seen.append(AbstractRequest("ended" if handle <= arrived else "new"))
        elif stay.seat == NO_SEAT:
            seen.append(AbstractRequest(stay.state.value, stay.known))
        else:
            column = dict(zip(COLUMNS, (row[stay.seat] for row in arena), strict=True))
            seen.append(
                AbstractRequest(
                    REQUEST.states[column["state"]].value,
                    column["known"],
                    column["scheduled"],
                    column["settled"],
                    column["intent"] == Intent.PREEMPT.value,
                )
            )
    fences = [int(saved.pool.arrays[2][b]) for _, blocks in saved.pool.pending for b in blocks]
    batches = tuple(_batch(batch, fences) for batch in saved.batches[saved.filled :])
    return Abstract(tuple(seen), batches, saved.filled)


def _batch(batch: Batch, fences: list[int]) -> AbstractBatch:
    rows = zip(batch.handles.tolist(), batch.positions.tolist(), batch.ends.tolist(), strict=True)
    return AbstractBatch(batch.state.value, frozenset(rows), fences.count(batch.batch_id))


def kernel_graph(bounds: Bounds) -> AbstractGraph:
    """Explore the kernel and return its abstract graph.

    Raises:
        ValueError: the models do not cover these bounds, the exploration did not finish, or the
            abstraction leaves out something that tells two states apart.
    """
    if not modelled(bounds):
        raise ValueError(f"the formal models do not cover {bounds}")

    def view(saved: Snapshot, arrived: int) -> Abstract:
        return abstract(saved, arrived, bounds.requests)

    found = Search(bounds, Options(invariants=False, view=view)).run()
    if not found.passed:
        raise ValueError(f"the exploration of {bounds} is not complete")
    views: list[Abstract] = [entry for entry in found.graph.views if isinstance(entry, Abstract)]
    states = frozenset(views)
    edges = frozenset(
        (views[edge.source], ACTIONS[edge.kind], views[edge.target]) for edge in found.graph.edges
    )
    if len(states) != found.states:
        raise ValueError(f"{found.states} states of {bounds} have {len(states)} abstractions")
    return AbstractGraph(states, edges, found.steps)


def kernel_trace(bounds: Bounds, seed: int, length: int) -> Iterator[tuple[str, Abstract]]:
    """Walk through the kernel at random; yield each action with the state after it.

    Cancels are rare, so that walks get somewhere.
    """
    draw = random.Random(seed)  # noqa: S311 - a repeatable walk, nothing secret
    kernel = Kernel(bounds.config())
    arrived = 0
    for _ in range(length):
        saved = kernel.snapshot()
        choices = moves(kernel, saved, bounds, arrived)
        if draw.random() < 0.9:  # noqa: PLR2004
            choices = [
                move for move in choices if type(move.event).__name__ != "RequestCancelled"
            ] or choices
        event = draw.choice(choices).event
        kernel.step(event)
        arrived += isinstance(event, RequestArrived)
        yield ACTIONS[type(event).__name__], abstract(kernel.snapshot(), arrived, bounds.requests)
