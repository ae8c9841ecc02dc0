"""Who got tokens when, stored per emission: a request is a few ranges of emissions.

Emissions are buffered and worked through many at a time, because a run has hundreds of thousands
of them and a request takes part in hundreds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

from stepahead.commands import EmitTokens
from stepahead_models.tokens import Ints, checksum_words

_NONE: Final = -2
_BUFFERED_MAX: Final = 1 << 16


def _grown(column: Ints, size: int, fill: int) -> Ints:
    more = np.full(size - len(column), fill, dtype=column.dtype)
    return np.concatenate([column, more])


class Emissions:
    """Checksums and ranges per handle; every column has shape ``(handles,)``."""

    def __init__(self) -> None:
        self.times: Final = array("q")
        #: Emissions in a row to equally many requests: how many emissions, and requests of each.
        self._runs: Final = array("q")
        self.first = np.empty(0, dtype=np.int64)
        self.last = np.empty(0, dtype=np.int64)
        self.checksums = np.empty(0, dtype=np.uint64)
        #: Tokens beyond the first of an emission.
        self.extra = np.empty(0, dtype=np.int64)
        self._open = np.empty(0, dtype=np.int64)
        self._segments: Final[list[Ints]] = []
        # Of each buffered command: handles, first emission, last emission; offsets and tokens of
        # the commands with a single step.
        self._handles: Final[list[Ints]] = []
        self._spans: Final[list[tuple[int, int, int]]] = []
        self._offsets: Final[list[Ints]] = []
        self._tokens: Final[list[Ints]] = []
        self._token_handles: Final[list[Ints]] = []
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

    def add(self, command: EmitTokens, times: Sequence[int]) -> None:
        """Take in a command; step ``i`` of it is out at ``times[i]``."""
        steps, requests = len(times), len(command.handles)
        first = len(self.times)
        self.times.extend(times)
        self._runs.extend((steps, requests))
        self._handles.append(command.handles)
        self._spans.append((first, first + steps - 1, requests))
        if len(command.tokens) == 1:
            self._offsets.append(command.offsets)
            self._tokens.append(command.tokens[0])
            self._token_handles.append(command.handles)
        else:
            self._sum_up(command)
        self._buffered += requests
        if self._buffered > _BUFFERED_MAX:
            self.flush()

    def _sum_up(self, command: EmitTokens) -> None:
        """Add the checksum words of a command with several tokens per request."""
        places = np.arange(len(command.tokens), dtype=np.int64)[:, None]
        words = checksum_words(command.tokens, command.offsets + places)
        if command.counts is not None:
            words[places >= command.counts] = 0
            self.extra[command.handles] += command.counts - 1
        np.add.at(self.checksums, command.handles, words.sum(axis=0, dtype=np.uint64))

    def flush(self) -> None:
        """Work through what is buffered."""
        if self._tokens:
            handles = np.concatenate(self._token_handles)
            words = checksum_words(np.concatenate(self._tokens), np.concatenate(self._offsets))
            np.add.at(self.checksums, handles, words)
        if self._handles:
            spans = np.array(self._spans, dtype=np.int64)
            self._link(
                np.concatenate(self._handles),
                np.repeat(spans[:, 0], spans[:, 2]),
                np.repeat(spans[:, 1], spans[:, 2]),
            )
        for buffer in (self._handles, self._offsets, self._tokens, self._token_handles):
            buffer.clear()
        self._spans.clear()
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
        live = np.flatnonzero(self.last >= 0)
        self._segments.append(np.stack([live, self._open[live], self.last[live]]))
        return np.concatenate(self._segments, axis=1)

    def counts(self) -> Ints:
        """Return to how many requests each emission went."""
        runs = np.array(self._runs, dtype=np.int64).reshape(-1, 2)
        return np.repeat(runs[:, 1], runs[:, 0])

    def out(self, column: Ints) -> Ints:
        """Return the times of emissions given by number; -1 for those below 0."""
        times = np.frombuffer(self.times, dtype=np.int64)
        if not len(times):
            return np.full(len(column), -1, dtype=np.int64)
        return np.where(column >= 0, times[column], -1)
