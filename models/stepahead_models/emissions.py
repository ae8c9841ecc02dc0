"""Who got tokens when, stored per emission: a request is a few ranges of emissions.

Emissions are buffered and worked through many at a time, because a run has hundreds of thousands
of them and a request takes part in hundreds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, Ints, arange, concatenate
from stepahead.commands import EmitTokens
from stepahead_models.tokens import checksum_words

_NONE: Final = -2
_BUFFERED_MAX: Final = 1 << 14


def _grown(column: Ints, size: int, fill: int) -> Ints:
    more = np.full(size - len(column), fill, dtype=column.dtype)
    return np.concatenate([column, more])


def _lengths(command: EmitTokens) -> Ints:
    """Return how many tokens each request of a command gets."""
    if command.counts is not None:
        return command.counts
    return np.full(len(command.handles), len(command.tokens), dtype=np.int64)


def _in_entries(command: EmitTokens) -> Ints:
    """Return the tokens of a command, those of one request behind those of another."""
    tokens = command.tokens
    if command.counts is not None:
        return tokens.T[np.arange(len(tokens)) < command.counts[:, None]]
    return tokens.ravel() if len(tokens) == 1 else tokens.T.ravel()


class Emissions:
    """Checksums and ranges per handle; every column has shape ``(handles,)``."""

    def __init__(self) -> None:
        #: When each emission was out, ns; known with `segments`.
        self.times = EMPTY
        self.first = np.empty(0, dtype=np.int64)
        self.last = np.empty(0, dtype=np.int64)
        self.checksums = np.empty(0, dtype=np.uint64)
        #: Tokens beyond the first of an emission.
        self.extra = np.empty(0, dtype=np.int64)
        self._open = np.empty(0, dtype=np.int64)
        self._segments: Final[list[Ints]] = []
        #: The times of what is worked through.
        self._times: Final = bytearray()
        #: Buffered commands, and when the steps of each were out: the last one, and those before.
        self._commands: Final[list[EmitTokens]] = []
        self._lasts: Final[list[int]] = []
        self._earlier: Final[list[Ints]] = []
        self._buffered = 0

    def make_room(self, handle: int) -> None:
        """Add columns for handles up to ``handle``."""
        if handle >= len(self.first):
            size = max(2 * len(self.first), handle + 1, 64)
            self.first = _grown(self.first, size, _NONE)
            self.last = _grown(self.last, size, _NONE)
            self._open = _grown(self._open, size, _NONE)
            self.extra = _grown(self.extra, size, 0)
            self.checksums = np.concatenate(
                [self.checksums, np.zeros(size - len(self.checksums), dtype=np.uint64)]
            )

    def add(self, command: EmitTokens, earlier: Ints, last: int) -> None:
        """Take in a command; its last step is out at ``last``, those before it at ``earlier``."""
        self._commands.append(command)
        self._lasts.append(last)
        self._earlier.append(earlier)
        self._buffered += command.tokens.size
        if self._buffered > _BUFFERED_MAX:
            self.flush()

    def flush(self) -> None:
        """Work through what is buffered: one entry per command and request."""
        commands = self._commands
        if not commands:
            return
        handles = concatenate([command.handles for command in commands])
        offsets = concatenate([command.offsets for command in commands])
        counts = np.array([len(command.handles) for command in commands])
        # All steps of a command but the last one came earlier; a command with drafts is one step.
        earlier = np.array([len(times) for times in self._earlier])
        spans = (earlier + 1).repeat(counts)
        before = len(self._times) // EMPTY.itemsize
        lasts = (earlier + 1).cumsum() + (before - 1)
        lengths = spans
        if any(command.counts is not None for command in commands):
            lengths = np.concatenate([_lengths(command) for command in commands])
            np.add.at(self.extra, handles, lengths - spans)
        # The tokens of an entry stand together, so that one sum per entry is left of them.
        tokens = concatenate([_in_entries(command) for command in commands])
        ends = lengths.cumsum()
        begins = ends - lengths
        places = arange(len(tokens)) + (offsets - begins).repeat(lengths)
        sums = np.add.reduceat(checksum_words(tokens, places), begins)
        np.add.at(self.checksums, handles, sums)
        self._link(handles, (lasts - earlier).repeat(counts), lasts.repeat(counts))
        times = np.insert(concatenate(self._earlier), earlier.cumsum(), self._lasts)
        self._times.extend(times.tobytes())
        commands.clear()
        self._lasts.clear()
        self._earlier.clear()
        self._buffered = 0

    def _link(self, handles: Ints, firsts: Ints, lasts: Ints) -> None:
        """Join ranges that follow each other; close the range of a request that was left out."""
        order = np.argsort(handles, kind="stable")
        handles, firsts, lasts = handles[order], firsts[order], lasts[order]
        before = np.empty_like(lasts)
        before[1:] = lasts[:-1]
        begins = np.ones(len(handles), dtype=np.bool_)
        begins[1:] = handles[1:] != handles[:-1]
        before[begins] = self.last[handles[begins]]
        broken = np.flatnonzero(firsts != before + 1)
        owners, starts, previous = handles[broken], firsts[broken], before[broken]
        opened = self._open[owners]
        again = np.flatnonzero(owners[1:] == owners[:-1]) + 1
        opened[again] = starts[again - 1]
        closed = previous >= 0
        self._segments.append(np.stack([owners[closed], opened[closed], previous[closed]]))
        self.first[owners[~closed]] = starts[~closed]
        # With repeated indices NumPy keeps the last value, which is the newest.
        self._open[owners] = starts
        self.last[handles] = lasts

    def segments(self) -> Ints:
        """Return all ranges as rows handle, first, last; shape ``(3, segments)``.

        Call it once, at the end.
        """
        self.flush()
        self.times = np.frombuffer(self._times, dtype=np.int64)
        live = np.flatnonzero(self.last >= 0)
        self._segments.append(np.stack([live, self._open[live], self.last[live]]))
        return np.concatenate(self._segments, axis=1)

    def out(self, column: Ints) -> Ints:
        """Return the times of emissions given by number; -1 for those below 0."""
        if not len(self.times):
            return np.full(len(column), -1, dtype=np.int64)
        return np.where(column >= 0, self.times[column], -1)
