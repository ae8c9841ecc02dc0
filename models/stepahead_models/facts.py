"""Facts that wait for the host, in the order in which it takes them up.

The host is one thread that is never interrupted. A fact that occurs while it works is delivered
when that work is done; of the facts that wait then, the class decides, and within a class the order
in which they became known.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import Final


class FactClass(IntEnum):
    """What happened; the number is the order of delivery.

    Prepared stands before executed, so that a dispatch precedes the processing of results.
    """

    CANCEL = 0
    TRANSFER = 1
    PREPARED = 2
    EXECUTED = 3
    ARRIVAL = 4
    WOKE = 5


class Facts:
    """A heap by time of occurrence, and a heap by class of what has occurred."""

    def __init__(self) -> None:
        self._coming: Final[list[tuple[int, int, int, int]]] = []
        self._waiting: Final[list[tuple[int, int, int]]] = []
        self._sequence = 0

    def add(self, at: int, kind: FactClass, subject: int) -> None:
        """Something happens at ``at``; ``subject`` is the number of a request, batch or wake-up."""
        self._sequence += 1
        heappush(self._coming, (at, kind, self._sequence, subject))

    def next_at(self) -> int | None:
        """Return when the next fact occurs that has not occurred yet."""
        return self._coming[0][0] if self._coming else None

    def any_by(self, at: int) -> bool:
        """Tell whether a fact waits or occurs by ``at``."""
        return bool(self._waiting) or (bool(self._coming) and self._coming[0][0] <= at)

    def any(self) -> bool:
        """Tell whether a fact waits or is to occur."""
        return bool(self._waiting) or bool(self._coming)

    def take(self, free_at: int) -> tuple[int, int, int]:
        """Take the next fact for a host that is free at ``free_at``: (delivery, class, subject).

        There must be one.
        """
        coming, waiting = self._coming, self._waiting
        if not waiting:
            at, kind, sequence, subject = heappop(coming)
            free_at = max(free_at, at)
            if not coming or coming[0][0] > free_at:
                return free_at, kind, subject
            heappush(waiting, (kind, sequence, subject))
        while coming and coming[0][0] <= free_at:
            _, kind, sequence, subject = heappop(coming)
            heappush(waiting, (kind, sequence, subject))
        kind, _, subject = heappop(waiting)
        return free_at, kind, subject
