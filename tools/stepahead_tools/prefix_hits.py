"""How much of the prompts a prefix cache could have had, what it had, and why not the rest.

Counts from the trace alone what an unbounded cache would hit if requests came one after the other,
and watches a run to say for every token that it could have hit and did not why. Neither count looks
into the kernel: both go by the rules of the cache (a request computes at least its last known
token; a block counts when it is whole and its rows are back).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepahead.arrays import Ints
from stepahead.commands import AdmitRequest, Command, PrepareBatch
from stepahead.events import BatchExecuted, Event, RequestArrived
from stepahead_models.traces import Trace, block_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Tokens and blocks of all prompts; a prompt's partial last block counts as a block.

    ``seen`` tokens belong to hash blocks, partial ones included, that an earlier request began with
    as well. Of them ``hit_tokens`` in ``hit_blocks`` are whole blocks that may be hit;
    ``partial_tokens`` are lost to block boundaries, ``last_tokens`` because the last token of a
    prompt is always computed.
    """

    tokens: int
    blocks: int
    seen: int
    hit_tokens: int
    hit_blocks: int
    partial_tokens: int
    last_tokens: int


def count_reuse(trace: Trace, block_size: int) -> Reuse:
    """Count what an unbounded cache hits when each request waits for the one before."""
    seen_ids: set[tuple[int, int]] = set()
    seen_keys: set[int] = set()
    keys = block_keys(trace, block_size)
    seen = hit_blocks = last = partial = 0
    for index, length in enumerate(trace.input_lengths.tolist()):
        ids: list[int] = trace.hash_ids[
            trace.hash_offsets[index] : trace.hash_offsets[index + 1]
        ].tolist()
        size = trace.hash_block_size
        spans = [(ident, min(size, length - place * size)) for place, ident in enumerate(ids)]
        reusable = _tokens_of_prefix(spans, seen_ids)
        seen_ids.update(spans)
        mine: list[int] = keys.keys_of(index).tolist()
        whole = 0
        while whole < len(mine) and mine[whole] in seen_keys:
            whole += 1
        seen_keys.update(mine)
        hit = min(whole, (length - 1) // block_size)
        seen += reusable
        hit_blocks += hit
        last += (whole - hit) * block_size
        partial += reusable - whole * block_size
    return Reuse(
        tokens=int(trace.input_lengths.sum()),
        blocks=int((-(-trace.input_lengths // block_size)).sum()),
        seen=seen,
        hit_tokens=hit_blocks * block_size,
        hit_blocks=hit_blocks,
        partial_tokens=partial,
        last_tokens=last,
    )


def _tokens_of_prefix(spans: list[tuple[int, int]], seen: set[tuple[int, int]]) -> int:
    tokens = 0
    for span in spans:
        if span not in seen:
            break
        tokens += span[1]
    return tokens


@dataclass(slots=True)
class Shortfall:
    """Blocks that an unbounded, sequential cache would have hit, by what became of them.

    ``in_flight``: an earlier request has it, but no batch with it had come back yet;
    ``evicted``: it was there, and was reused for something else before.
    """

    hit: int = 0
    in_flight: int = 0
    evicted: int = 0


class HitWatch:
    """An observer of a run (`stepahead_models.simulation.Observer`) that fills a `Shortfall`.

    Args:
        block_size: tokens per KV block.
        key_count: keys are below it.
    """

    def __init__(self, block_size: int, key_count: int) -> None:
        self.shortfall: Final = Shortfall()
        self._size: Final = block_size
        self._asked: Final = np.zeros(key_count, dtype=np.bool_)
        self._written: Final = np.zeros(key_count, dtype=np.bool_)
        #: Keys that may be hit, and of them how many an earlier request has; by handle.
        self._reusable: Final[dict[int, tuple[Ints, int]]] = {}
        self._keys: Final[dict[int, Ints]] = {}
        self._batches: Final[dict[int, PrepareBatch]] = {}

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Take one step of the run."""
        if isinstance(event, RequestArrived):
            for command in commands:
                if isinstance(command, AdmitRequest) and event.block_keys is not None:
                    self._arrive(command.handle, event.block_keys, event.prompt_length)
        elif isinstance(event, BatchExecuted):
            self._come_back(event.batch_id)
        for command in commands:
            if isinstance(command, PrepareBatch):
                self._select(command)

    def _arrive(self, handle: int, keys: Ints, length: int) -> None:
        asked = self._asked[keys]
        count = int(asked.argmin()) if not asked.all() else len(keys)
        self._asked[keys] = True
        self._keys[handle] = keys
        self._reusable[handle] = (keys, min(count, (length - 1) // self._size))

    def _select(self, command: PrepareBatch) -> None:
        self._batches[command.batch_id] = command
        for handle, position in zip(
            command.handles.tolist(), command.positions.tolist(), strict=True
        ):
            keys, count = self._reusable.pop(handle, (None, 0))
            if keys is None:
                continue
            hit = min(position // self._size, count)
            missed = self._written[keys[hit:count]]
            self.shortfall.hit += hit
            self.shortfall.evicted += int(missed.sum())
            self.shortfall.in_flight += int((~missed).sum())

    def _come_back(self, batch_id: int) -> None:
        command = self._batches.pop(batch_id, None)
        if command is None:
            return
        ends = command.positions + command.token_counts
        for handle, end in zip(command.handles.tolist(), ends.tolist(), strict=True):
            keys = self._keys.get(handle)
            if keys is not None:
                self._written[keys[: end // self._size]] = True
                if end // self._size >= len(keys):
                    del self._keys[handle]
