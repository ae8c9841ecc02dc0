"""From the identity of a content to the block that holds it, and back.

Keys are numbered from 0 on by whoever names the contents, and a long run sees far more of them than
there are blocks. So the table behind the index is cut into pages of neighbouring keys, and a page
in which nothing is known any more is used again: memory follows the blocks, not the keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, ZERO, Ints, Mask, arange, concatenate, ints, quick

UNKNOWN: Final = -1
_LOOK: Final = 64  # keys of a prompt that are looked up first; most of them are new
_BITS: Final = 10
_PAGE: Final = 1 << _BITS
#: As an array: a number would be made one at every shift.
_SHIFT: Final = np.array(_BITS)


class KeyIndex:
    """A one-to-one map between blocks and keys, for whole arrays at once.

    What counts is ``key``, the key of each block, or -1; shape ``(blocks,)``. To write -1 there is
    to forget a key. The way back is a table of where each key was put last: ``cells[key +
    offset[key >> 10]]`` is its block if that one has the key still. Page 0 of the cells stays
    unknown, and every key whose own page does not exist leads there; so does -1, "no key", through
    the last offset.
    """

    def __init__(self, blocks: int) -> None:
        # With an entry more, for cells that are unknown.
        self._keys: Ints = quick(np.full(blocks + 1, -1))
        self.key: Ints = self._keys[:-1]
        self._cells: Ints = quick(np.full(2 * _PAGE, UNKNOWN))
        self._offset: Ints = _nowhere(2)
        #: Which page of keys each page of cells belongs to; -1: none.
        self._owner: Ints = quick(np.full(2, -1))
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
        blocks, known = self._look_up(keys)
        blocks[~known] = UNKNOWN
        return blocks

    def prefix(self, keys: Ints) -> Ints:
        """Return the blocks of the longest known prefix of ``keys``."""
        if not len(keys):
            return EMPTY
        looked = _LOOK
        while True:
            blocks, known = self._look_up(keys[:looked])
            unknown = known.argmin()
            if not known[unknown]:
                return blocks[:unknown]
            if len(blocks) == len(keys):
                return blocks
            looked *= 4

    def _look_up(self, keys: Ints) -> tuple[Ints, Mask]:
        """Return where each key was put last, and whether that block has it still."""
        blocks: Ints = self._cells[keys + self._offset[keys >> _SHIFT]]
        return blocks, self._keys[blocks] == keys

    def put(self, keys: Ints, blocks: Ints) -> None:
        """Let each key, all of them distinct, lead to its block, and to no other."""
        if not len(keys):
            return
        pages = keys >> _SHIFT
        places = keys + self._offset[pages]
        opened = [0]
        while places[first := places.argmin()] < _PAGE:
            opened.append(self._open(int(pages[first]), opened))
            places = keys + self._offset[pages]
        before = self._cells[places]
        if before[before.argmax()] != UNKNOWN:
            older = before[self._keys[before] == keys]
            self.key[older] = -1
        self._cells[places] = blocks
        self.key[blocks] = keys

    def known(self) -> tuple[Ints, Ints]:
        """Return all keys that lead to a block, ascending, and the blocks."""
        pages = self._owner.argsort()
        cells = self._cells.reshape(-1, _PAGE)[pages].ravel()
        (places,) = (cells != UNKNOWN).nonzero()
        keys = (self._owner[pages[places >> _BITS]] << _BITS) + (places & (_PAGE - 1))
        blocks, known = self._look_up(keys)
        return keys[known], blocks[known]

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
        used = ints(len(self._owner))
        used.fill(0)
        used[kept] = 1
        pages = self.key[self.key >= 0] >> _SHIFT
        used[pages + (self._offset[pages] >> _SHIFT)] = 1
        idle: Mask = (self._owner >= 0) & (used == ZERO)
        self._cells.reshape(-1, _PAGE)[idle] = UNKNOWN
        owners = self._owner[idle]
        self._offset[owners] = -owners << _BITS
        self._owner[idle] = -1
        self._free += np.flatnonzero(idle).tolist()
        pages = len(self._owner)
        if len(self._free) < pages // 2:
            self._cells = concatenate((self._cells, np.full(pages * _PAGE, UNKNOWN)))
            self._owner = concatenate((self._owner, np.full(pages, -1)))
            self._free += range(pages, 2 * pages)


def _nowhere(length: int) -> Ints:
    """Return offsets that lead from every key to page 0, and from -1 as well."""
    offsets = -arange(length) << _BITS
    offsets[-1] = _PAGE
    return offsets
