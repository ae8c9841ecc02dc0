"""A host with a second memory: the bench of the tiers behind KV memory.

`TierBench` carries out loads and stores as adversarially as a correct host may. A page and a loaded
block are unreadable from the moment the transfer is asked for, and get their content only when it
is reported complete, read at that moment from wherever it was to come from. So whoever reuses a
source too early, reads a target too early, or takes a failed copy for a good one, changes the
tokens of some request. Every output is compared with the unbatched truth, and the laws of the tiers
are looked at after each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from stepahead.commands import (
    AdmitRequest,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishReason,
    FinishRequest,
    LoadBlocks,
    ReportCacheReset,
    ReportPaused,
    StoreBlocks,
)
from stepahead.config import KernelConfig
from stepahead.events import Event, HostReady, TransferDone, TransferFailed
from stepahead_specs.bench import Bench, BenchError
from stepahead_specs.oracle import Ask, HashModel

_POISON = 0xBADC0DE


class TierBench(Bench):
    """One kernel with a device, a host memory and, if configured, a remote store.

    Args:
        config: the kernel's limits.
        model: the oracle of tokens.
    """

    def __init__(self, config: KernelConfig, model: HashModel) -> None:
        super().__init__(config, model, checked=False)
        #: Transfers that the host has not reported, oldest first.
        self.transfers: dict[int, LoadBlocks | StoreBlocks] = {}
        self.outputs: dict[int, list[int]] = {}
        self.ends: dict[int, FinishReason] = {}
        #: How often each kind of thing happened, for tests that want to know that it did.
        self.happened: Counter[str] = Counter()
        self.paused = False
        self._pages: dict[tuple[int, int], int] = {}
        self._remote: dict[int, list[int]] = {}
        #: Handle -> how many of its blocks a lookup is said to have found in the remote store.
        self._found: dict[int, int] = {}

    # -- what a host may report ---------------------------------------------------------------

    def lookup(self, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's full blocks, from the first on, the remote store has."""
        keys = self._interner.keys(prompt)
        return next((i for i, key in enumerate(keys) if key not in self._remote), len(keys))

    def arrive(self, ask: Ask, remote_blocks: int | None = None) -> int | None:
        """Report an arrival and what a lookup found, be it true; None: nobody looked."""
        handle = super().arrive(ask, remote_blocks)
        if handle is not None and remote_blocks is not None:
            self._found[handle] = remote_blocks
        return handle

    def live(self) -> list[int]:
        """Return the handles of requests that have not ended."""
        return [handle for handle in self.asks if handle not in self.ends]

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

    def moves(self) -> Iterator[Callable[[], object]]:
        """Iterate over what brings the run on, the most urgent first."""
        if self.building is not None:
            yield self.prepared
        elif self.ready_due:
            yield self.host_ready
        if self.may_execute():
            yield self.executed
        for ident in self.transfers:
            yield partial(self.transfer_done, ident)
        if self.wake is not None:
            yield self.woke_in_time

    def drain(self, steps_max: int = 10_000) -> None:
        """Let everything come to its end and check what is left.

        Raises:
            BenchError: it does not end, something is kept, or an output is not the truth.
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
        if not self.kernel.idle():
            raise BenchError(f"stuck: {self.kernel.requests()}, {self.kernel.batches()}")
        for pool in (self.kernel.pool, self.kernel.pages):
            if pool.available != pool.num_blocks:
                raise BenchError(f"{pool.num_blocks - pool.available} blocks are kept at the end")
        for handle, ask in self.asks.items():
            self._compare(handle, ask)

    def _compare(self, handle: int, ask: Ask) -> None:
        tokens, reason = self.truth(handle)
        output = self.outputs.get(handle, [])
        if output != list(tokens)[: len(output)]:
            raise BenchError(f"request {ask.request_id} said {output}, the truth is {tokens}")
        end = self.ends[handle].value
        if end not in {"abort", "error"} and (end, len(output)) != (reason, len(tokens)):
            raise BenchError(f"request {ask.request_id} ended by {end}, alone it does by {reason}")

    # -- one step -----------------------------------------------------------------------------

    def _step(self, event: Event, ask: Ask | None = None) -> tuple[Command, ...]:
        commands = self.kernel.step(event)
        self.journal.append((event, commands))
        for command in commands:
            if isinstance(command, AdmitRequest) and ask is not None:
                self.asks[command.handle] = ask
            self._check_command(command)
            self._carry_out(command)
        self.ready_due = not isinstance(event, HostReady)
        self._check()
        return commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case LoadBlocks() | StoreBlocks():
                self.happened[type(command).__name__] += 1
                self.transfers[command.transfer_id] = command
                store = isinstance(command, StoreBlocks)
                target, memory = (
                    (command.pages, self._pages) if store else (command.blocks, self._memory)
                )
                for place in target.tolist():
                    for offset in range(self.config.block_size):
                        memory[place, offset] = _POISON
            case EmitTokens():
                for column, handle in enumerate(command.handles.tolist()):
                    output = self.outputs.setdefault(handle, [])
                    if len(output) != int(command.offsets[column]) or handle in self.ends:
                        raise BenchError(f"request {handle} gets a token twice or after its end")
                    output.extend(command.tokens[:, column].tolist())
            case FinishRequest():
                self.ends[command.handle] = command.reason
            case ReportCacheReset():
                if command.done and self.transfers:
                    raise BenchError("the cache is reset during a transfer, which brings it back")
            case _:
                super()._carry_out(command)

    # -- laws ---------------------------------------------------------------------------------

    def _check_command(self, command: Command) -> None:
        if isinstance(command, DispatchBatch):
            written = self._written(command.batch_id)
            read = {b for t in self._stores() for b in t.blocks.tolist()}
            if written & read:
                raise BenchError(f"batch {command.batch_id} writes {written & read} during a store")
        elif isinstance(command, LoadBlocks):
            read = {b for t in self._stores() for b in t.blocks.tolist()}
            if read & set(command.blocks.tolist()):
                raise BenchError(f"load {command.transfer_id} writes what a store reads")
            twice = {p for t in self._loads() for p in t.pages.tolist()} & {*command.pages.tolist()}
            if twice:
                raise BenchError(f"load {command.transfer_id} reads pages {twice} during another")
            self._check_lookup(command)
        elif isinstance(command, ReportPaused) and (self.transfers or self.built or self.building):
            raise BenchError("a pause is reported while a batch or a transfer is outstanding")
        elif isinstance(command, ReportCacheReset) and command.done and self._keyed():
            raise BenchError("something has a key after a reset of everything")

    def _check_lookup(self, load: LoadBlocks) -> None:
        found = self._found.get(load.handle)
        if found is None or len(load.pages):
            return
        keys = self._interner.keys(self.asks[load.handle].prompt)
        if beyond := set(load.keys.tolist()) - set(keys[:found]):
            raise BenchError(
                f"load {load.transfer_id} asks the remote store for {len(beyond)} blocks behind "
                f"the {found} that the lookup found"
            )

    def _check(self) -> None:
        kernel = self.kernel
        if problems := kernel.audit().problems:
            raise BenchError("; ".join(problems))
        pages = Counter(p for t in self._stores() for p in t.pages.tolist())
        sources = {p for t in self._loads() for p in t.pages.tolist()}
        free = set(kernel.pages.queued().tolist())
        for page, stores in pages.items():
            if stores > 1 or page in sources or page in free:
                raise BenchError(f"page {page} has two transfers, or is free during one")
            if kernel.pages.key[page] >= 0:
                raise BenchError(f"page {page} has a key before its store is complete")
        if sources & free:
            raise BenchError(f"pages {sources & free} may be reused during a load from them")
        queued = set(kernel.pool.queued().tolist())
        for load in self._loads():
            for block in load.blocks.tolist():
                if block in queued or kernel.pool.key[block] >= 0:
                    raise BenchError(f"block {block} is free or has a key before its load is done")

    def _written(self, batch_id: int) -> set[int]:
        built = self.built[batch_id].command
        size = self.config.block_size
        ends = (built.block_slots + 1) * size > built.positions[built.block_rows]
        return set(built.blocks[ends].tolist())

    def _keyed(self) -> bool:
        kernel = self.kernel
        return bool((kernel.pool.key >= 0).any() or (kernel.pages.key >= 0).any())

    def _stores(self) -> list[StoreBlocks]:
        return [t for t in self.transfers.values() if isinstance(t, StoreBlocks)]

    def _loads(self) -> list[LoadBlocks]:
        return [t for t in self.transfers.values() if isinstance(t, LoadBlocks)]

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
