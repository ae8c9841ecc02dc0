"""The host's side of a seat: its block table and who sits there, from `PrepareBatch` alone."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead.commands import PrepareBatch
from stepahead_models.tokens import Ints

NOBODY: Final = -1
_NEVER: Final = -2


class SeatTables:
    """Block tables and identities per seat; every column has shape ``(seats,)``.

    Args:
        blocks_per_request: width of a block table.
        seats: how many seats to begin with; more are made when a batch names them.
    """

    def __init__(self, blocks_per_request: int, seats: int) -> None:
        self._width: Final = blocks_per_request
        self.table = np.zeros((seats, blocks_per_request), dtype=np.int64)
        self._flat = self.table.reshape(-1)
        self.handle = np.full(seats, NOBODY, dtype=np.int64)
        self.epoch = np.full(seats, NOBODY, dtype=np.int64)
        #: Blocks in the table.
        self.length = np.zeros(seats, dtype=np.int64)
        self.prompt = np.zeros(seats, dtype=np.int64)
        #: KV position whose row samples the EOS token.
        self.eos_position = np.full(seats, _NEVER, dtype=np.int64)

    def make_room(self, seat_max: int) -> None:
        """Add seats up to number ``seat_max``."""
        seats = len(self.handle)
        if seat_max < seats:
            return
        grown = SeatTables(self._width, max(2 * seats, seat_max + 1))
        for name in ("table", "handle", "epoch", "length", "prompt", "eos_position"):
            column: NDArray[np.int64] = getattr(grown, name)
            column[:seats] = getattr(self, name)
            setattr(self, name, column)
        self._flat = self.table.reshape(-1)

    def newcomers(self, batch: PrepareBatch) -> list[int]:
        """Return the rows of the batch that begin a stay or an epoch in their seat, in order."""
        rows = batch.block_rows
        seats = batch.seats[rows]
        self.make_room(int(seats.max()))
        changed = (self.handle[seats] != batch.handles[rows]) | (
            self.epoch[seats] != batch.epochs[rows]
        )
        return sorted(set(rows[changed].tolist()))

    def sit(self, batch: PrepareBatch, row: int, *, prompt: int, eos_position: int) -> None:
        """Give the row's seat to its request, with an empty table."""
        seat = int(batch.seats[row])
        self.handle[seat] = batch.handles[row]
        self.epoch[seat] = batch.epochs[row]
        self.length[seat] = 0
        self.prompt[seat] = prompt
        self.eos_position[seat] = eos_position

    def extend(self, seats: Ints, slots: Ints, blocks: Ints) -> None:
        """Write blocks into the tables; the slots of one seat ascend."""
        self.table[seats, slots] = blocks
        self.length[seats] = slots + 1

    def shorten(self, seats: Ints, ends: Ints, size: int) -> None:
        """Take the blocks behind position ``ends`` out of the tables; ``size`` tokens per block."""
        self.length[seats] = np.minimum(self.length[seats], -(-ends // size))

    def withdraw(self, batch: PrepareBatch) -> None:
        """Take the blocks of a refused or abandoned batch out of the tables again.

        A seat without blocks is nobody's: its request may be selected again with another prefix.
        """
        if len(batch.blocks):
            seats = batch.seats[batch.block_rows]
            np.minimum.at(self.length, seats, batch.block_slots)
            self.handle[seats[self.length[seats] == 0]] = NOBODY

    def blocks_at(self, seats: Ints, slots: Ints) -> Ints:
        """Return the block at one slot of each seat."""
        return self._flat.take(seats * self._width + slots)

    def held(self, seat: int) -> Ints:
        """Return the table of one seat, shallowest first; a view."""
        return self.table[seat, : self.length[seat]]
