"""From the identity of a content to the block that holds it.

Keys are numbered from 0 on by whoever names the contents, and a long run sees far more of them than
there are blocks. So the table behind the index is cut into pages of neighbouring keys, and a page
in which nothing is known any more is used again: memory follows the blocks, not the keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import Ints, Mask

UNKNOWN: Final = -1
_BITS: Final = 10
_PAGE: Final = 1 << _BITS
#: As an array: a number would be made one at every shift.
_SHIFT: Final = np.array(_BITS)


class KeyIndex:
    """A map from keys to blocks, for whole arrays at once.

    A key is found at ``cells[key + offset[key >> 10]]``. Page 0 of the cells stays unknown, and
    every key whose own page does not exist leads there; so does -1, "no key", through the last
    offset.
    """

    def __init__(self) -> None:
        self._cells: Ints = np.full(2 * _PAGE, UNKNOWN, dtype=np.int64)
        self._offset: Ints = _nowhere(2)
        #: Which page of keys each page of cells belongs to; -1: none.
        self._owner: Ints = np.full(2, -1, dtype=np.int64)
        self._free: list[int] = [1]

    @property
    def size(self) -> int:
        """How many keys have a cell, known or not."""
        return len(self._cells)

    @property
    def room(self) -> int:
        """How many keys may be asked for."""
        return (len(self._offset) - 1) << _BITS

    def make_room(self, key_max: int) -> None:
        """Let keys up to ``key_max`` be asked for."""
        pages = (key_max >> _BITS) + 1
        before = len(self._offset) - 1
        if pages > before:
            grown = _nowhere(max(pages, before + before // 2) + 1)
            grown[:before] = self._offset[:-1]
            self._offset = grown

    def find(self, keys: Ints) -> Ints:
        """Return the block of each key, or `UNKNOWN`; shape as given."""
        found: Ints = self._cells[keys + self._offset[keys >> _SHIFT]]
        return found

    def put(self, keys: Ints, blocks: Ints) -> Ints:
        """Let each key, all of them distinct, lead to its block; return where they led before."""
        pages = keys >> _SHIFT
        places = keys + self._offset[pages]
        opened = [0]
        while len(places) and places[first := places.argmin()] < _PAGE:
            opened.append(self._open(int(pages[first]), opened))
            places = keys + self._offset[pages]
        before: Ints = self._cells[places]
        self._cells[places] = blocks
        return before

    def drop(self, keys: Ints) -> None:
        """Forget keys; those that are not known, and -1, change nothing."""
        self._cells[keys + self._offset[keys >> _SHIFT]] = UNKNOWN

    def clear(self) -> None:
        """Forget every key."""
        self._cells[:] = UNKNOWN

    def known(self) -> tuple[Ints, Ints]:
        """Return all keys that lead to a block, ascending, and the blocks."""
        pages = self._owner.argsort()
        cells = self._cells.reshape(-1, _PAGE)[pages].ravel()
        (places,) = (cells != UNKNOWN).nonzero()
        keys = (self._owner[pages[places >> _BITS]] << _BITS) + (places & (_PAGE - 1))
        return keys, cells[places]

    def _open(self, page: int, kept: list[int]) -> int:
        """Give ``page`` cells, not those at ``kept``; return which."""
        if not self._free:
            self._recycle(kept)
        place = self._free.pop()
        self._owner[place] = page
        self._offset[page] = (place - page) << _BITS
        return place

    def _recycle(self, kept: list[int]) -> None:
        """Take pages back in which nothing is known; grow unless that gives half of them."""
        idle: Mask = self._cells.reshape(-1, _PAGE).max(axis=1) == UNKNOWN
        idle[kept] = False
        idle &= self._owner >= 0
        owners = self._owner[idle]
        self._offset[owners] = -owners << _BITS
        self._owner[idle] = -1
        self._free += np.flatnonzero(idle).tolist()
        pages = len(self._owner)
        if len(self._free) < pages // 2:
            self._cells = np.concatenate((self._cells, np.full(pages * _PAGE, UNKNOWN)))
            self._owner = np.concatenate((self._owner, np.full(pages, -1)))
            self._free += range(pages, 2 * pages)


def _nowhere(length: int) -> Ints:
    """Return offsets that lead from every key to page 0, and from -1 as well."""
    offsets = -np.arange(length, dtype=np.int64) << _BITS
    offsets[-1] = _PAGE
    return offsets
