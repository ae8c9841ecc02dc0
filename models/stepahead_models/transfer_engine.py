"""The simulated copy engines: when each transfer begins and ends, and what a batch waits for.

A transfer's end is a fact like any other. A batch that runs on a layer-wise reload starts layer i
when its own reload is there, so the engine says how much longer such a batch takes: only what is
exposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from stepahead.commands import LoadBlocks, StoreBlocks
from stepahead.events import TransferDone, TransferFailed
from stepahead_models.dma import Dma
from stepahead_models.errors import SimulationError
from stepahead_models.facts import FactClass, Facts
from stepahead_models.remote import RemoteStore
from stepahead_models.tokens import Ints, Words


class TransferPort(Protocol):
    """The memories, as the copy engines see them."""

    def spoil(self, command: LoadBlocks | StoreBlocks) -> None:
        """A copy has begun: what it writes cannot be read until it is complete."""
        ...

    def load(self, command: LoadBlocks) -> None:
        """Copy pages to blocks."""
        ...

    def store(self, command: StoreBlocks) -> Words:
        """Copy blocks to pages; return their contents, ``(blocks, block_size)``."""
        ...

    def fetch(self, command: LoadBlocks, contents: Words) -> None:
        """Write contents into the first blocks."""
        ...

    def lose(self, command: LoadBlocks | StoreBlocks) -> None:
        """A copy has failed. Rows that run on such a reload mean nothing."""
        ...


@dataclass(slots=True)
class TransferTimes:
    """Sums over a run; ``exposed_ns`` is what batches waited for layer-wise reloads."""

    loads: int = 0
    stores: int = 0
    load_ns: int = 0
    store_ns: int = 0
    exposed_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    command: LoadBlocks | StoreBlocks
    start: int
    end: int
    contents: Words | None = None
    failed: bool = False


class TransferEngine:
    """All channels of one machine.

    Args:
        dma: durations, or None when the device has no copy engine.
        memory: what is copied.
        facts: where the ends go.
        block_size: tokens per block.
        remote: the remote store, or None.
    """

    def __init__(
        self,
        dma: Dma | None,
        memory: TransferPort,
        facts: Facts,
        block_size: int,
        remote: RemoteStore | None,
    ) -> None:
        self.times: Final = TransferTimes()
        self._dma: Final = dma
        self._memory: Final = memory
        self._facts: Final = facts
        self._block_size: Final = block_size
        self._remote: Final = remote
        self._open: Final[dict[int, _Open]] = {}
        self._free_at: Final = {"load": 0, "store": 0, "remote": 0}

    @property
    def busy(self) -> bool:
        """Tell whether some transfer is under way."""
        return bool(self._open)

    def lookup(self, keys: Ints | None) -> int | None:
        """Return how many of the first blocks the remote store says it has; None without one."""
        return None if self._remote is None or keys is None else self._remote.lookup(keys)

    def begin(self, command: LoadBlocks | StoreBlocks, now: int) -> None:
        """Put a transfer into its channel; its end becomes a fact.

        Raises:
            SimulationError: nobody can carry it out.
        """
        self._memory.spoil(command)
        entry = self._place(command, now)
        self._open[command.transfer_id] = entry
        self._facts.add(entry.end, FactClass.TRANSFER, command.transfer_id)

    def report(self, transfer_id: int, at: int) -> TransferDone | TransferFailed:
        """Return what a transfer that has ended is reported as, its content copied."""
        entry = self._open.pop(transfer_id)
        command, filled = entry.command, -1
        if entry.failed:
            self._memory.lose(command)
            return TransferFailed(transfer_id=transfer_id, at=at)
        if isinstance(command, StoreBlocks):
            contents = self._memory.store(command)
            if self._remote is not None:
                self._remote.put(command.keys, contents)
        elif entry.contents is None:
            self._memory.load(command)
        else:
            self._memory.fetch(command, entry.contents)
            filled = len(entry.contents)
        return TransferDone(transfer_id=transfer_id, at=at, blocks=filled)

    def exposed_ns(self, handles: Ints, start: int, duration_ns: int) -> int:
        """Return how much longer a batch takes because its layers wait for their reloads.

        With L layers of D / L each, layer i may not start before its reload ends. Reloads of one
        transfer end at equal distances, so either the first or the last layer decides.
        """
        end = start + duration_ns
        for entry in self._open.values():
            command = entry.command
            if not isinstance(command, LoadBlocks) or not command.layerwise or self._dma is None:
                continue
            if not (handles == command.handle).any():
                continue
            begins = entry.start + self._dma.to_device.latency_ns
            first = begins + (entry.end - begins) // self._dma.layers
            end = max(end, first + duration_ns, entry.end + duration_ns // self._dma.layers)
        exposed = end - start - duration_ns
        self.times.exposed_ns += exposed
        return exposed

    def _place(self, command: LoadBlocks | StoreBlocks, now: int) -> _Open:
        contents: Words | None = None
        times = self.times
        if isinstance(command, LoadBlocks) and not len(command.pages):
            if self._remote is None:
                raise SimulationError(
                    f"transfer {command.transfer_id} asks for a remote store and there is none; "
                    "give the simulation one, or leave remote off"
                )
            fetched = self._remote.get(command.keys)
            channel, duration = "remote", fetched.duration_ns
            contents, failed = fetched.contents, fetched.failed
        elif self._dma is None:
            raise SimulationError(
                f"transfer {command.transfer_id} needs a copy engine and the device has none; give "
                "the device a dma model, or leave host_pages at 0"
            )
        else:
            load = isinstance(command, LoadBlocks)
            size = len(command.blocks) * self._block_size * self._dma.bytes_per_token
            way = self._dma.to_device if load else self._dma.to_host
            channel, duration = ("load" if load else "store"), way.transfer_ns(size)
            failed = self._dma.fails(command.transfer_id)
        if isinstance(command, LoadBlocks):
            times.loads, times.load_ns = times.loads + 1, times.load_ns + duration
        else:
            times.stores, times.store_ns = times.stores + 1, times.store_ns + duration
        start = max(now, self._free_at[channel])
        self._free_at[channel] = end = start + duration
        return _Open(command, start, end, contents, failed)


class NoMemory:
    """The memories of a run that only wants times."""

    def spoil(self, command: LoadBlocks | StoreBlocks) -> None:
        """Nothing is kept."""

    def load(self, command: LoadBlocks) -> None:
        """Nothing is kept."""

    def store(self, command: StoreBlocks) -> Words:
        """Return contents of no width."""
        return np.zeros((len(command.blocks), 0), dtype=np.uint64)

    def fetch(self, command: LoadBlocks, contents: Words) -> None:
        """Nothing is kept."""

    def lose(self, command: LoadBlocks | StoreBlocks) -> None:
        """Nothing is kept."""
