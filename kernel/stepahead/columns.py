"""Requests with a seat, as columns: one number per seat and fact.

A seat is a request's place in the columns and the block table while it may have KV. It is reused
only when every batch that may touch it is back, so a row number in flight never changes its owner.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from stepahead.arrays import Ints, arange, quick

#: The facts kept per seat, in tokens unless named otherwise.
COLUMNS: Final = (
    "known",  # tokens whose value is known: prompt + sampled
    "scheduled",  # KV positions given to rows
    "settled",  # KV positions of batches that came back
    "prompt",
    "final",  # length at which the request ends at the latest
    "floor",  # length below which EOS and stop tokens do not end it
    "blocks",  # blocks in the seat's table
    "committed",  # of them, how many have got their key
    "eos",  # the token that ends it, or -1
    "last_token",  # newest sampled token
    "handle",
    "epoch",
    "rank",  # place in the running and waiting order
    "state",  # number of the RequestState
    "intent",  # number of the Intent
)


class ColumnsCopy(NamedTuple):
    """A copy of `Columns`."""

    arena: Ints
    table: Ints
    tokens: Ints
    free_seats: tuple[int, ...]


class Columns:
    """The columns and block tables of ``seats`` seats; every column has shape ``(seats,)``.

    ``table`` has shape ``(seats, blocks per request)``; ``tokens`` holds the sampled tokens, shape
    ``(seats, width)``, and grows in width when a request with a longer output is seated.
    """

    known: Ints
    scheduled: Ints
    settled: Ints
    prompt: Ints
    final: Ints
    floor: Ints
    blocks: Ints
    committed: Ints
    eos: Ints
    last_token: Ints
    handle: Ints
    epoch: Ints
    rank: Ints
    state: Ints
    intent: Ints

    def __init__(self, seats: int, blocks_per_request: int) -> None:
        self.arena: Ints = quick(np.zeros((len(COLUMNS), seats), dtype=np.int64))
        self.table: Ints = quick(np.zeros((seats, blocks_per_request), dtype=np.int64))
        self.tokens: Ints = quick(np.zeros((seats, 16), dtype=np.int64))
        #: The places of a block table: 0, 1, 2, ...; never written.
        self.slots: Ints = arange(blocks_per_request)
        self.slots.flags.writeable = False
        self.free_seats: list[int] = list(range(seats - 1, -1, -1))
        for name, row in zip(COLUMNS, self.arena, strict=True):
            setattr(self, name, row)

    def widen(self, outputs: int) -> None:
        """Make room for ``outputs`` sampled tokens per seat."""
        seats, width = self.tokens.shape
        if outputs > width:
            grown = quick(np.zeros((seats, max(2 * width, outputs)), dtype=np.int64))
            used = np.ones(seats, dtype=bool)
            used[self.free_seats] = False  # most are, and memory not touched costs nothing
            grown[used, :width] = self.tokens[used]
            self.tokens = grown

    def held(self, seat: int) -> Ints:
        """Return the blocks of a seat, shallowest first."""
        return self.table[seat, : self.blocks.item(seat)]

    def sampled(self, seat: int) -> Ints:
        """Return a copy of the sampled tokens of a seat."""
        return self.tokens[seat, : self.known[seat] - self.prompt[seat]].copy()

    def snapshot(self) -> ColumnsCopy:
        """Return a copy of everything, for `restore`."""
        seats = tuple(self.free_seats)
        return ColumnsCopy(self.arena.copy(), self.table.copy(), self.tokens.copy(), seats)

    def restore(self, saved: ColumnsCopy) -> None:
        """Return to a `snapshot` of these columns."""
        self.arena[:] = saved.arena
        self.table[:] = saved.table
        self.tokens = saved.tokens.copy()
        self.free_seats = list(saved.free_seats)
