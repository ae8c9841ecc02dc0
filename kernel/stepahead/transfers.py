"""The ledger of transfers: what is being copied between the tiers, and what that holds in place.

An entry is keyed by its own number, never by a request: it stays until the host reports the end of
the transfer, whatever becomes of the request meanwhile. Everything that a transfer reads or writes
has a reference held by its entry, but for one case: a write-back reads blocks that have just been
granted to somebody else. Those are **guarded**: no batch that was granted one is dispatched until
the copy is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from stepahead.arrays import EMPTY, Ints


class TransferKind(Enum):
    """Which way a transfer goes, and what keeps its blocks in place."""

    LOAD = "load"
    WRITE_THROUGH = "write_through"
    WRITE_BACK = "write_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One copy that is not reported complete. Arrays are never written.

    Args:
        transfer_id: its number.
        kind: which way.
        blocks, pages, keys: what is copied, block by block; no ``pages`` for the remote store.
        prefix: of a load, the cached blocks before ``blocks``, kept for its request.
        handle, epoch: of a load, the stay that it is for.
        layerwise: of a load, its request runs meanwhile.
        issued_at: ns.
    """

    transfer_id: int
    kind: TransferKind
    blocks: Ints
    pages: Ints
    keys: Ints
    issued_at: int
    prefix: Ints = field(default_factory=lambda: EMPTY)
    handle: int = 0
    epoch: int = 0
    layerwise: bool = False

    @property
    def held(self) -> Ints:
        """The blocks that have a reference of this entry, shallowest first."""
        if self.kind is TransferKind.WRITE_BACK:
            return EMPTY
        return np.concatenate((self.prefix, self.blocks))


class Ledger:
    """The open transfers, and who waits for which.

    ``loading`` leads from the handle of a request to the load that it waits for or runs on;
    ``storing`` are the keys that are on their way to the host. A load whose deadline has passed is
    **late**: nobody waits for it any more, and what it brings is ignored.
    """

    def __init__(self) -> None:
        self.open: dict[int, Transfer] = {}
        self.loading: dict[int, int] = {}
        self.storing: set[int] = set()
        self.late: set[int] = set()
        self.next_id = 1

    def enter(self, transfer: Transfer) -> None:
        """Write a transfer down that the host is about to be asked for."""
        self.open[transfer.transfer_id] = transfer
        self.next_id = transfer.transfer_id + 1
        if transfer.kind is TransferKind.LOAD:
            self.loading[transfer.handle] = transfer.transfer_id
        else:
            self.storing.update(transfer.keys.tolist())

    def leave(self, transfer: Transfer) -> None:
        """Strike a transfer out that the host has reported."""
        del self.open[transfer.transfer_id]
        self.late.discard(transfer.transfer_id)
        if transfer.kind is TransferKind.LOAD:
            self.let_go(transfer)
        else:
            self.storing.difference_update(transfer.keys.tolist())

    def let_go(self, load: Transfer) -> None:
        """Nobody waits for the load any more."""
        if self.loading.get(load.handle) == load.transfer_id:
            del self.loading[load.handle]

    def give_up(self, load: Transfer) -> None:
        """The deadline of a load has passed: whatever it brings comes too late."""
        self.late.add(load.transfer_id)
        self.let_go(load)

    def waited_for(self, transfer_id: int) -> bool:
        """Tell whether a live request runs on this load and it is not complete."""
        load = self.open.get(transfer_id)
        return load is not None and self.loading.get(load.handle) == transfer_id

    def loads(self) -> Iterator[Transfer]:
        """Iterate over the loads that are not late, oldest first."""
        for transfer in self.open.values():
            if transfer.kind is TransferKind.LOAD and transfer.transfer_id not in self.late:
                yield transfer

    def guards(self, blocks: Ints) -> bool:
        """Tell whether a write-back still reads one of ``blocks``."""
        return any(
            bool(np.isin(blocks, transfer.blocks).any())
            for transfer in self.open.values()
            if transfer.kind is TransferKind.WRITE_BACK
        )

    def pins(self, size: int) -> Ints:
        """Return how many references of each of ``size`` KV blocks are held by entries."""
        return _count(size, [transfer.held for transfer in self.open.values()])

    def page_pins(self, size: int) -> Ints:
        """Return how many references of each of ``size`` host pages are held by entries."""
        return _count(size, [transfer.pages for transfer in self.open.values()])

    def copy(self) -> Ledger:
        """Return an independent copy; the entries are never written."""
        copied = Ledger()
        copied.open = dict(self.open)
        copied.loading = dict(self.loading)
        copied.storing = set(self.storing)
        copied.late = set(self.late)
        copied.next_id = self.next_id
        return copied


def _count(size: int, parts: list[Ints]) -> Ints:
    every = np.concatenate([EMPTY, *parts])
    return np.bincount(every, minlength=size).astype(np.int64)
