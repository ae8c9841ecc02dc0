"""The remote KV store (L3): the protocol that a simulation needs, and one store in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stepahead_models.dma import DmaChannel
from stepahead_models.tokens import Ints, Words, mix64_int

_MILLION = 1_000_000
_SEED_FACTOR = 0xD1B54A32D192ED03


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An answer: the contents of the first blocks asked for, ``(blocks, block_size)``.

    ``duration_ns`` is how long it took; ``failed`` answers have no content.
    """

    contents: Words
    duration_ns: int
    failed: bool = False


class RemoteStore(Protocol):
    """Blocks by content identity, somewhere else."""

    def put(self, keys: Ints, contents: Words) -> None:
        """Keep blocks; ``contents`` has shape ``(keys, block_size)``. It may forget them."""
        ...

    def lookup(self, keys: Ints) -> int:
        """Return how many blocks it says it has before the first one that is missing."""
        ...

    def get(self, keys: Ints) -> Fetched:
        """Return what it has of a prefix: the blocks before the first one that is missing."""
        ...


@dataclass(slots=True, kw_only=True)
class InProcessStore:
    """A remote store that is simulated. A lookup takes no time; our assumption.

    Args:
        link: latency of a request and rate of the answer.
        block_bytes: bytes of one block.
        blocks_max: blocks that it keeps; the oldest goes first.
        miss_ppm: share of kept blocks that it has lost when a load asks, in parts per million; a
            lookup finds them still.
        failure_ppm: share of requests that fail.
        seed: which of them.
    """

    link: DmaChannel
    block_bytes: int
    blocks_max: int = 1 << 20
    miss_ppm: int = 0
    failure_ppm: int = 0
    seed: int = 0
    requests: int = 0
    _kept: dict[int, Words] = field(default_factory=dict[int, Words])

    def put(self, keys: Ints, contents: Words) -> None:
        """Keep the blocks, the newest at the expense of the oldest."""
        for key, content in zip(keys.tolist(), contents, strict=True):
            self._kept.pop(key, None)
            self._kept[key] = content.copy()
            if len(self._kept) > self.blocks_max:
                del self._kept[next(iter(self._kept))]

    def lookup(self, keys: Ints) -> int:
        """Return how many of the first blocks it keeps, lost ones included."""
        return next((i for i, key in enumerate(keys.tolist()) if key not in self._kept), len(keys))

    def get(self, keys: Ints) -> Fetched:
        """Return the prefix that it has and has not lost."""
        self.requests += 1
        found: list[Words] = []
        for key in keys.tolist():
            if key not in self._kept or self._chance(key) < self.miss_ppm:
                break
            found.append(self._kept[key])
        failed = self._chance(0) < self.failure_ppm
        contents = np.array([] if failed else found, dtype=np.uint64)
        duration = self.link.transfer_ns(len(found) * self.block_bytes)
        return Fetched(contents=contents, duration_ns=duration, failed=failed)

    def _chance(self, subject: int) -> int:
        """Return a number below a million for a subject of the present request."""
        return mix64_int((self.seed + self.requests) * _SEED_FACTOR + subject) % _MILLION
