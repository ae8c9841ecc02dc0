"""A host with a second memory: the bench of the tiers behind KV memory.

`TierBench` carries out loads and stores as adversarially as a correct host may. A page and a loaded
block are unreadable from the moment the transfer is asked for, and get their content only when it
is reported complete, read at that moment from wherever it was to come from. So whoever reuses a
source too early, reads a target too early, or takes a failed copy for a good one, changes the
tokens of some request. All invariants are checked after each step, as on every `Bench`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from stepahead.commands import Command, LoadBlocks, StoreBlocks
from stepahead.config import KernelConfig
from stepahead.events import TransferDone, TransferFailed
from stepahead_specs.bench import Bench, BenchError
from stepahead_specs.invariants import Kind, check
from stepahead_specs.oracle import HashModel

_POISON = 0xBADC0DE


class TierBench(Bench):
    """One kernel with a device, a host memory and, if configured, a remote store.

    Args:
        config: the kernel's limits.
        model: the oracle of tokens.
    """

    def __init__(self, config: KernelConfig, model: HashModel) -> None:
        super().__init__(config, model)
        #: Transfers that the host has not reported, oldest first.
        self.transfers: dict[int, LoadBlocks | StoreBlocks] = {}
        #: How often each kind of thing happened, for tests that want to know that it did.
        self.happened: Counter[str] = Counter()
        self.paused = False
        self._pages: dict[tuple[int, int], int] = {}
        self._remote: dict[int, list[int]] = {}

    # -- what a host may report ---------------------------------------------------------------

    def lookup(self, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's full blocks, from the first on, the remote store has."""
        keys = self._interner.keys(prompt)
        return next((i for i, key in enumerate(keys) if key not in self._remote), len(keys))

    def live(self) -> list[int]:
        """Return the handles of requests that have not ended."""
        return [request.handle for request in self.seen.live()]

    def may_execute(self) -> bool:
        """Tell whether the device has all that its batch runs on."""
        return self.on_device is not None and not any(self._waits_for())

    def transfer_done(self, ident: int) -> None:
        """Copy what the transfer is about, and report it complete."""
        transfer = self.transfers.pop(ident)
        filled = -1
        if isinstance(transfer, StoreBlocks):
            self._keep(transfer)
        elif len(transfer.pages):
            self._bring(transfer)
        else:
            filled = self._fetch(transfer)
        self._step(TransferDone(transfer_id=ident, at=self._now(), blocks=filled))

    def transfer_failed(self, ident: int) -> None:
        """Report that a transfer came to nothing; what it was to write stays unreadable."""
        del self.transfers[ident]
        self._step(TransferFailed(transfer_id=ident, at=self._now()))

    def report_again(self, ident: int) -> None:
        """Report a transfer that is not open, which must change nothing."""
        before = self.kernel.digest()
        self._step(TransferDone(transfer_id=ident, at=self._now()))
        if self.kernel.digest() != before:
            raise BenchError(f"a second report of transfer {ident} changed the kernel")

    def pause_or_resume(self) -> None:
        """Ask for a pause, or end one."""
        self.paused = not self.paused
        (self.pause if self.paused else self.resume)()

    # -- the end ------------------------------------------------------------------------------

    def moves(self, *, copies: bool = True) -> Iterator[Callable[[], object]]:
        """Iterate over what brings the run on, the most urgent first; ``copies``: ends too."""
        if self.building is not None:
            yield self.prepared
        elif self.ready_due:
            yield self.host_ready
        if self.may_execute():
            yield self.executed
        for ident in self.transfers if copies else ():
            yield partial(self.transfer_done, ident)
        if self.wake is not None:
            yield self.woke_in_time

    def drain(self, steps_max: int = 10_000) -> None:
        """Let everything come to its end and check what must hold then.

        Raises:
            BenchError: it does not end within ``steps_max`` steps.
        """
        if self.paused:
            self.pause_or_resume()
        for _ in range(steps_max):
            move = next(self.moves(), None)
            if move is None or (self.kernel.idle() and not self.ready_due):
                break
            move()
        else:
            raise BenchError(f"not drained after {steps_max} steps; no progress is being made")
        check(self.seen, Kind.EVENTUALLY)

    # -- host ---------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        if not isinstance(command, LoadBlocks | StoreBlocks):
            super()._carry_out(command)
            return
        self.happened[type(command).__name__] += 1
        self.transfers[command.transfer_id] = command
        store = isinstance(command, StoreBlocks)
        target, memory = (command.pages, self._pages) if store else (command.blocks, self._memory)
        for place in target.tolist():
            for offset in range(self.config.block_size):
                memory[place, offset] = _POISON

    def _waits_for(self) -> Iterator[int]:
        """Iterate over the open loads that live rows on the device run on."""
        running = [b for b in self.kernel.batches() if b.batch_id == self.on_device]
        rows = {row.handle for batch in running for row in batch.rows if row.live}
        for ident, transfer in self.transfers.items():
            if isinstance(transfer, LoadBlocks) and transfer.layerwise and transfer.handle in rows:
                yield ident

    # -- memories -----------------------------------------------------------------------------

    def _keep(self, transfer: StoreBlocks) -> None:
        copied = zip(
            transfer.blocks.tolist(), transfer.pages.tolist(), transfer.keys.tolist(), strict=True
        )
        for block, page, key in copied:
            words = [self._memory.get((block, o), _POISON) for o in self._offsets()]
            self._pages.update({(page, o): word for o, word in enumerate(words)})
            self._remote[key] = words

    def _bring(self, transfer: LoadBlocks) -> None:
        for page, block in zip(transfer.pages.tolist(), transfer.blocks.tolist(), strict=True):
            for offset in self._offsets():
                self._memory[block, offset] = self._pages.get((page, offset), _POISON)

    def _fetch(self, transfer: LoadBlocks) -> int:
        """Fill as much of the prefix as the remote store has; return how many blocks."""
        filled = 0
        for key, block in zip(transfer.keys.tolist(), transfer.blocks.tolist(), strict=True):
            if key not in self._remote:
                break
            self._memory.update({(block, o): word for o, word in enumerate(self._remote[key])})
            filled += 1
        return filled

    def _offsets(self) -> range:
        return range(self.config.block_size)
