"""The KV sanitizer: is what a row reads its own history?

The claim that is checked, for every row of every batch: each block below the row's position holds
the state that the request's own oracle expects there. Comparing every block at every step would
cost as much as the trace has KV, so the same claim is kept by induction, in work proportional to
what changes:

* when a block enters a table as a cached prefix, its content is compared with the oracle;
* every position that a row writes lies in a block of its table;
* when a block enters a table to be written, nobody else may hold it: a holder with outstanding rows
  is a violation at once, any other holder loses its table, and a later row of the same stay (that
  is, without a preemption in between) is the violation;
* every row goes on exactly where its request stopped, reads there the state that the oracle has,
  and gets as input the token that its request sampled last. A request stops behind its last
  accepted draft: what was written for rejected ones counts as never written.

A request's own rows write forward only, so between these moments no block of a table can change.
A request that comes back after a preemption must arrive at the state that it had reached before.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead.commands import PrepareBatch
from stepahead_models.errors import SanitizerError
from stepahead_models.memory import KvMemory
from stepahead_models.seats import NOBODY, SeatTables
from stepahead_models.tokens import Ints, Words


class Sanitizer:
    """Who holds which block, and what every request expects to read; columns as in `SeatTables`.

    Args:
        memory: the simulated KV memory.
        seats: the host's block tables.
        names: request id per handle, for messages.
    """

    def __init__(self, memory: KvMemory, seats: SeatTables, names: dict[int, str]) -> None:
        self._memory: Final = memory
        self._seats: Final = seats
        self._names: Final = names
        self._holders: Final = np.zeros(memory.num_blocks, dtype=np.int64)
        count = len(seats.handle)
        self._outstanding = np.zeros(count, dtype=np.int64)
        self._next = np.zeros(count, dtype=np.int64)
        self._state = np.zeros(count, dtype=np.uint64)
        self._token = np.zeros(count, dtype=np.int64)
        self._ended = np.zeros(count, dtype=np.bool_)
        self._lost_block = np.full(count, -1, dtype=np.int64)
        self._any_lost = False
        self._draining = 0
        #: Handle -> (next position, state, last token) of live requests that left their seat.
        self._reached: Final[dict[int, tuple[int, int, int]]] = {}

    # -- a batch is prepared ------------------------------------------------------------------

    def sit(self, batch: PrepareBatch, row: int) -> None:
        """A request takes a seat: forget the table that the seat had, before `SeatTables.sit`."""
        seat = int(batch.seats[row])
        if seat >= len(self._next):
            self._make_room()
        handle = int(self._seats.handle[seat])
        if self._outstanding[seat]:
            raise self._error(
                int(batch.handles[row]),
                batch.batch_id,
                None,
                f"seat {seat} still has outstanding rows of request {self._name(handle)!r}",
            )
        if handle in self._names:
            self._keep(handle, seat)
        self._drop(seat)
        if batch.epochs[row]:
            self._leave_old_seats(int(batch.handles[row]))
            self._token[seat] = self._reached.get(int(batch.handles[row]), (0, 0, 0))[2]
        self._ended[seat] = False
        self._lost_block[seat] = -1
        self._next[seat] = batch.positions[row]

    def take(self, batch: PrepareBatch) -> None:
        """Blocks enter tables, after `SeatTables.extend`; those to be written must be nobody's."""
        blocks = batch.blocks
        fresh = batch.block_slots * self._memory.block_size >= batch.positions[batch.block_rows]
        held = np.flatnonzero(fresh & (self._holders[blocks] > 0))
        for entry in held.tolist():
            self._claim(batch, entry)
        np.add.at(self._holders, blocks, 1)

    def select(self, batch: PrepareBatch) -> None:
        """The batch is outstanding from now on."""
        if self._any_lost:
            lost = np.flatnonzero(self._lost_block[batch.seats] >= 0)
            if len(lost):
                row = int(lost[0])
                raise self._error(
                    int(batch.handles[row]),
                    batch.batch_id,
                    int(self._lost_block[batch.seats[row]]),
                    "the block was given to another request before",
                )
        ends = batch.positions + batch.token_counts
        held = self._seats.length[batch.seats] * self._memory.block_size
        if (ends > held).any():
            row = int((ends > held).argmax())
            raise self._error(
                int(batch.handles[row]),
                batch.batch_id,
                None,
                f"the row writes up to position {int(ends[row]) - 1}, its blocks end before "
                f"{int(held[row])}",
            )
        self._outstanding[batch.seats] += 1

    def withdraw(self, batch: PrepareBatch) -> None:
        """The batch was refused or abandoned, and `SeatTables.withdraw` took its blocks out."""
        self._outstanding[batch.seats] -= 1
        np.subtract.at(self._holders, batch.blocks, 1)

    def check_prefix(self, batch: PrepareBatch, row: int, expected: Words) -> None:
        """Compare the blocks of a cached prefix with ``expected``, the state at the end of each."""
        blocks = self._seats.held(int(batch.seats[row]))[: len(expected)]
        wrong = np.flatnonzero(self._memory.ends(blocks) != expected)
        if len(wrong):
            raise self._error(
                int(batch.handles[row]),
                batch.batch_id,
                int(blocks[wrong[0]]),
                f"prefix block {int(wrong[0])} holds other content than the prompt",
            )

    def _claim(self, batch: PrepareBatch, entry: int) -> None:
        row, block = int(batch.block_rows[entry]), int(batch.blocks[entry])
        seat = int(batch.seats[row])
        tables = self._seats.table
        depth = np.arange(tables.shape[1]) < self._seats.length[:, None]
        for other in np.flatnonzero(((tables == block) & depth).any(axis=1)).tolist():
            if other == seat and (self._seats.held(seat) == block).sum() < 2:  # noqa: PLR2004 - twice
                continue
            if self._outstanding[other] or other == seat:
                raise self._error(
                    int(batch.handles[row]),
                    batch.batch_id,
                    block,
                    f"the block is still in use by request {self._name_in(other)!r}",
                )
            self._drop(other)
            self._lost_block[other] = block
            self._any_lost = True

    # -- a batch is executed ------------------------------------------------------------------

    def check_rows(
        self, batch: PrepareBatch, rows: Ints, states: Words, live: NDArray[np.bool_]
    ) -> None:
        """Compare what live rows read just below their position with what their requests expect."""
        seats, positions = batch.seats[rows], batch.positions[rows]
        same = (self._state[seats] == states) & (self._next[seats] == positions)
        same |= ~live[rows]
        if same.all():
            return
        row = int(np.flatnonzero(~same)[0])
        seat, position = int(seats[row]), int(positions[row])
        handle = int(self._seats.handle[seat])
        if self._next[seat] != position:
            raise self._error(
                handle,
                batch.batch_id,
                None,
                f"the row begins at position {position}, its KV ends at {int(self._next[seat])}",
            )
        slot = (position - 1) // self._memory.block_size
        raise self._error(
            handle,
            batch.batch_id,
            int(self._seats.table[seat, slot]),
            f"position {position - 1} holds another history than its own",
        )

    def check_fill(
        self, batch: PrepareBatch, rows: Ints, tokens: Ints, live: NDArray[np.bool_]
    ) -> None:
        """Compare the filled tokens with those that the requests sampled last."""
        wrong = np.flatnonzero((self._token[batch.seats[rows]] != tokens) & live[rows])
        if len(wrong):
            row = int(rows[wrong[0]])
            seat = int(batch.seats[row])
            raise self._error(
                int(batch.handles[row]),
                batch.batch_id,
                None,
                f"token {int(tokens[wrong[0]])} was filled in at position "
                f"{_filled_at(batch, row)}, it had sampled "
                f"{int(self._token[seat])}",
            )

    def expected(self, seat: int) -> int:
        """Return the state that the request in ``seat`` has reached."""
        return int(self._state[seat])

    def begin(self, seat: int, state: int) -> None:
        """The request's KV so far is a cached prefix, or nothing, with this state at its end."""
        self._state[seat] = state

    def advance(self, seats: Ints, positions: Ints, states: Words, tokens: Ints) -> None:
        """Rows have run: their KV ends before ``positions``, and they sampled ``tokens``."""
        self._state[seats] = states
        self._next[seats] = positions
        self._token[seats] = tokens

    def advance_chunk(self, batch: PrepareBatch, row: int, words: Words, token: int) -> None:
        """A row of several positions has run: ``words`` its states, ``token`` its sample or -1."""
        seat, position = int(batch.seats[row]), int(batch.positions[row])
        handle = int(batch.handles[row])
        reached = self._reached.get(handle)
        if reached is not None and position < reached[0] <= position + len(words):
            if int(words[reached[0] - 1 - position]) != reached[1]:
                raise self._error(
                    handle,
                    batch.batch_id,
                    None,
                    f"recomputed KV differs at or before position {reached[0] - 1}",
                )
            del self._reached[handle]
        self._state[seat] = words[-1]
        self._next[seat] = position + len(words)
        if token >= 0:
            self._token[seat] = token

    def roll_back(self, seats: Ints, ends: Ints) -> None:
        """What rows wrote at and behind ``ends`` was rejected; before `SeatTables.shorten`.

        Blocks that begin there are the kernel's again, which may give them to anybody.
        """
        kept = -(-ends // self._memory.block_size)
        for place in np.flatnonzero(kept < self._seats.length[seats]).tolist():
            self._holders[self._seats.held(int(seats[place]))[int(kept[place]) :]] -= 1

    def complete(self, seats: Ints) -> None:
        """Rows are back, or were pruned: tables of requests that ended before are forgotten."""
        self._outstanding[seats] -= 1
        if self._draining:
            over = self._ended[seats] & (self._outstanding[seats] == 0)
            for seat in seats[over].tolist():
                self._leave(seat)
                self._ended[seat] = False
                self._draining -= 1

    def end(self, handle: int) -> None:
        """A request has ended; its table is forgotten once its last row is back."""
        self._reached.pop(handle, None)
        for seat in np.flatnonzero(self._seats.handle == handle).tolist():
            self.void(seat)

    def void(self, seat: int) -> None:
        """What the rows of this seat reach says nothing; after the last, its table is forgotten."""
        if self._ended[seat]:
            return
        if self._outstanding[seat]:
            self._ended[seat] = True
            self._draining += 1
        else:
            self._leave(seat)

    # -- within -------------------------------------------------------------------------------

    def _keep(self, handle: int, seat: int) -> None:
        reached = self._reached.get(handle)
        place = int(self._next[seat])
        if not self._ended[seat] and place and (reached is None or reached[0] < place):
            self._reached[handle] = (place, int(self._state[seat]), int(self._token[seat]))

    def _leave_old_seats(self, handle: int) -> None:
        for seat in np.flatnonzero(self._seats.handle == handle).tolist():
            self._keep(handle, seat)
            self.void(seat)

    def _leave(self, seat: int) -> None:
        self._drop(seat)
        self._seats.handle[seat] = NOBODY

    def _drop(self, seat: int) -> None:
        self._holders[self._seats.held(seat)] -= 1
        self._seats.length[seat] = 0

    def _make_room(self) -> None:
        more = len(self._seats.handle) - len(self._next)
        for name in ("_outstanding", "_next", "_state", "_token", "_ended"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self._lost_block = np.concatenate([self._lost_block, np.full(more, -1, dtype=np.int64)])

    def _name_in(self, seat: int) -> str:
        return self._name(int(self._seats.handle[seat]))

    def _name(self, handle: int) -> str:
        return self._names.get(handle, f"with handle {handle}")

    def _error(self, handle: int, batch_id: int, block: int | None, fault: str) -> SanitizerError:
        return SanitizerError(
            request=self._name(handle), batch_id=batch_id, block=block, fault=fault
        )


def _filled_at(batch: PrepareBatch, row: int) -> int:
    """Return the position that a row's fill goes to: its last one before its drafts."""
    drafts = 0 if batch.drafts is None else int(batch.drafts[row])
    return int(batch.positions[row] + batch.token_counts[row]) - drafts - 1
