"""Requests as records, what does not change while they are here; and the waiting line."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from stepahead.arrays import EMPTY, Ints
from stepahead.tables import RequestState

NO_SEAT = -1


class Intent(Enum):
    """What is decided about a live request but must wait for its outstanding rows."""

    NONE = 0
    PREEMPT = 1


@dataclass(slots=True, kw_only=True)
class Stay:
    """One stay of a request in the engine, from admission to its end.

    While the request has a seat, its columns hold what changes; while it waits, this record does:
    ``epoch``, ``sampled`` (tokens sampled before a preemption) and ``settled_before`` (KV positions
    that the preemption gave up). ``load_epoch`` is the epoch in which it loaded from another tier,
    ``cleared_epoch`` the one in which it had blocks written back for that. ``remote_blocks`` of its
    ``keys`` may be in the remote store.
    """

    request_id: str
    handle: int
    rank: int
    prompt: int
    final: int
    floor: int
    eos: int
    stops: frozenset[int]
    keys: Ints
    remote_blocks: int
    seat: int = NO_SEAT
    state: RequestState = RequestState.QUEUED
    epoch: int = 0
    sampled: Ints = field(default_factory=lambda: EMPTY)
    settled_before: int = 0
    load_epoch: int = -1
    cleared_epoch: int = -1

    @property
    def known(self) -> int:
        """Tokens whose value is known while the request waits."""
        return self.prompt + len(self.sampled)

    def copy(self) -> Stay:
        """Return an independent copy; the arrays are never written."""
        return replace(self)


class WaitingLine:
    """Waiting requests by rank, smallest first; removal leaves an empty place that is skipped."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._stays: dict[int, Stay] = {}

    def __len__(self) -> int:
        return len(self._stays)

    def add(self, stay: Stay) -> None:
        """Put a request in the line at its rank."""
        heapq.heappush(self._heap, stay.rank)
        self._stays[stay.rank] = stay

    def head(self) -> Stay | None:
        """Return the first in the line, or None."""
        while self._heap:
            stay = self._stays.get(self._heap[0])
            if stay is not None:
                return stay
            heapq.heappop(self._heap)
        return None

    def remove(self, stay: Stay) -> None:
        """Take a request out of the line."""
        del self._stays[stay.rank]

    def __iter__(self) -> Iterator[Stay]:
        """Iterate in order of rank."""
        return (self._stays[rank] for rank in sorted(self._stays))
