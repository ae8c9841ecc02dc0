"""What each piece of a memory contains: KV blocks on the device, pages on the host.

A piece holds the first positions of one slot of one request, or what a copy brought, or nothing
that anybody may read. Kept as columns, so that a rule looks at thousands of pieces at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead_specs.records import NONE, Ints

_ROWS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What one piece holds: the first ``filled`` positions of slot ``slot`` of a request.

    Args:
        handle: whose rows wrote it; None where only its key is known.
        slot: which block of that request.
        filled: positions that may be read; 0: nobody may read it.
        key: the identity of the whole content; None as long as it is not full, or has none.
        age: how many resets of this memory came before it was written.
        origin: who wrote it last: a batch, or minus a transfer.
    """

    handle: int | None
    slot: int
    filled: int
    key: int | None
    age: int
    origin: int

    @property
    def writer(self) -> str:
        """Return who wrote it last, in words."""
        return f"transfer {-self.origin}" if self.origin < 0 else f"batch {self.origin}"


class Memory:
    """Columns of content, shape ``(size + 1,)``; number -1, no piece at all, contains nothing.

    ``handle`` and ``key`` are -1 for none, ``slot`` where nothing was ever written. ``resets``
    counts how often all was to be forgotten.
    """

    def __init__(self, size: int, resets: int = 0, columns: Ints | None = None) -> None:
        if columns is None:
            columns = np.full((_ROWS, size + 1), NONE, dtype=np.int64)
            columns[2] = 0
        self.size = size
        self.resets = resets
        self._columns = columns
        self.handle, self.slot, self.filled, self.key, self.age, self.origin = columns

    def copy(self) -> Memory:
        """Return an independent copy."""
        return Memory(self.size, self.resets, self._columns.copy())

    def get(self, piece: int) -> Content | None:
        """Return what a piece contains; None where nothing was ever written."""
        if not 0 <= piece < self.size or self.slot[piece] == NONE:
            return None
        handle, slot, filled, key, age, origin = self._columns[:, piece].tolist()
        return Content(
            handle=None if handle == NONE else handle,
            slot=slot,
            filled=filled,
            key=None if key == NONE else key,
            age=age,
            origin=origin,
        )

    def put(self, piece: int, content: Content) -> None:
        """Note what a piece contains from now on; what is no piece of this memory is ignored."""
        if 0 <= piece < self.size:
            self._columns[:, piece] = (
                NONE if content.handle is None else content.handle,
                content.slot,
                content.filled,
                NONE if content.key is None else content.key,
                content.age,
                content.origin,
            )

    def spoil(self, pieces: Ints, origin: int) -> None:
        """Nobody may read these pieces: they are being written, or a copy into them failed."""
        self._columns[:, pieces[self.has(pieces)]] = np.array(
            [[NONE], [0], [0], [NONE], [self.resets], [origin]]
        )

    def bring(self, pieces: Ints, source: Memory, places: Ints, origin: int) -> None:
        """Copy what ``places`` of another memory contain, as it is now; it is as new as can be."""
        own = self.has(pieces)
        pieces, places = pieces[own], np.where(source.has(places), places, NONE)[own]
        self._columns[:, pieces] = source._columns[:, places]
        self.age[pieces] = self.resets
        self.origin[pieces] = origin

    def fill(self, pieces: Ints, keys: Ints, size: int, origin: int) -> None:
        """Note content of which only the keys are known: it is whole, ``size`` positions each."""
        self.spoil(pieces, origin)
        own = self.has(pieces)
        self.filled[pieces[own]] = size
        self.key[pieces[own]] = keys[own]

    def has(self, pieces: Ints) -> NDArray[np.bool_]:
        """Tell for each number whether it is a piece of this memory."""
        return (pieces >= 0) & (pieces < self.size)

    def forget(self) -> None:
        """Everything is forgotten: what was written until now may not be found again."""
        self.resets += 1
