"""The driver of a simulated machine: facts in order of time, one kernel step each.

`Simulation.step` takes the earliest fact, hands it to the kernel and lets the host carry out the
commands, in order. It owns the clients and the order of events; what things cost is the device's
business, what tokens come out the executor's, what is remembered the recorder's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final, Protocol

from stepahead.arrays import EMPTY
from stepahead.blocks import BlockPool
from stepahead.commands import (
    AbandonBatch,
    AdmitRequest,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishReason,
    FinishRequest,
    LoadBlocks,
    PrepareBatch,
    RefuseRequest,
    StoreBlocks,
    WakeAt,
)
from stepahead.config import KernelConfig
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    Event,
    HostReady,
    RequestArrived,
    RequestCancelled,
    Woke,
)
from stepahead.state import Counters
from stepahead.stretches import Repeat
from stepahead_models.closed_form import ClosedForm, UncheckedExecutor
from stepahead_models.device import Device
from stepahead_models.errors import SimulationError
from stepahead_models.executor import Executor
from stepahead_models.facts import FactClass, Facts
from stepahead_models.host import ExecutorPort, Host, Leap
from stepahead_models.record import NEVER, RunRecord
from stepahead_models.recorder import Recorder
from stepahead_models.remote import RemoteStore
from stepahead_models.speculation import Acceptance, Drafter
from stepahead_models.tokens import HistoryHash
from stepahead_models.transfer_engine import (
    NoMemory,
    TransferEngine,
    TransferPort,
    TransferTimes,
)
from stepahead_models.workload import Workload

_PROGRESS_EVENTS: Final = 256
_DISCARDING: Final = (FinishReason.ABORT, FinishReason.ERROR)


class KernelPort(Protocol):
    """What a simulation needs of a kernel."""

    @property
    def config(self) -> KernelConfig:
        """Return its limits."""
        ...

    @property
    def pool(self) -> BlockPool:
        """Return the block pool, to read."""
        ...

    @property
    def counters(self) -> Counters:
        """Return what it counted."""
        ...

    @property
    def margin_ppm(self) -> int | None:
        """Return the margin of just-in-time selection, or None."""
        ...

    def step(self, event: Event) -> tuple[Command, ...]:
        """Take one fact; return what to do."""
        ...

    def repeat(self, limit: int = 1 << 30) -> Repeat | None:
        """Return how the steady state goes on, or None."""
        ...

    def awaits_host(self) -> bool:
        """Tell whether `HostReady` would change anything now."""
        ...

    def idle(self) -> bool:
        """Tell whether nothing is live or outstanding."""
        ...


#: Sees every event with the commands that answered it, before they are carried out.
Observer = Callable[[Event, tuple[Command, ...]], None]


class Simulation:
    """One run of one workload on one kernel and one device.

    Args:
        kernel: a kernel that has seen no event.
        workload: the requests.
        device: what everything costs.
        model: the token model; its EOS token must be the kernel's. With `ClosedForm` there is no
            KV memory and nothing to sanitize.
        sanitize: check every row that runs, see `stepahead_models.sanitizer`.
        closed_loop: so many requests at once, the next one arriving when one ends; arrival times
            are ignored then. None: requests arrive at their times.
        stretches: let the kernel answer several device steps at once where nothing else happens.
        keep_tokens: keep all output tokens in the record.
        remote: where the kernel's remote loads go; needed when its configuration has them.
        acceptance: how often drafts are right; needed when the kernel speculates.
        observers: see every event and its commands, for example a journal or invariants.

    Raises:
        SimulationError: the closed loop is not positive, the EOS tokens differ, or the kernel
            speculates and nothing says how often drafts are right.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the user, by keyword
        self,
        kernel: KernelPort,
        workload: Workload,
        device: Device,
        model: HistoryHash | ClosedForm,
        *,
        sanitize: bool = True,
        closed_loop: int | None = None,
        stretches: bool = True,
        keep_tokens: bool = False,
        remote: RemoteStore | None = None,
        acceptance: Acceptance | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        config = kernel.config
        if closed_loop is not None and closed_loop < 1:
            raise SimulationError(
                f"closed_loop={closed_loop} lets no request arrive; give at least 1"
            )
        if model.eos_token_id != config.eos_token_id:
            raise SimulationError(
                f"the token model ends with token {model.eos_token_id}, the kernel with "
                f"{config.eos_token_id}; give both the same eos_token_id"
            )
        if config.num_speculative_tokens and acceptance is None:
            raise SimulationError(
                f"the kernel speculates with num_speculative_tokens={config.num_speculative_tokens}"
                ", but nothing says how often a draft is right; give the simulation an acceptance"
            )
        self.kernel: Final = kernel
        self._workload: Final = workload
        self._closed: Final = closed_loop is not None
        self._stretches: Final = stretches
        self._observers: Final = tuple(observers)
        self._recorder: Final = Recorder(workload, keep_tokens=keep_tokens)
        self._facts: Final = Facts()
        memory: TransferPort
        if isinstance(model, ClosedForm):
            self._executor: ExecutorPort = UncheckedExecutor(model, workload, config, acceptance)
            memory = NoMemory()
        else:
            prompts, eos_at = workload.prompts, workload.eos_at
            drafter = None if acceptance is None else Drafter(model, prompts, eos_at, acceptance)
            self._executor = memory = Executor(
                config, model, prompts, eos_at, drafter=drafter, sanitize=sanitize
            )
        self._engine: Final = TransferEngine(
            device.dma, memory, self._facts, config.block_size, remote
        )
        self._host: Final = Host(
            device, self._executor, self._recorder, self._facts, config.lookahead, self._engine
        )
        self._ready_due = False
        self._collected = NEVER
        #: When the last event was done with. The host's clock may be ahead of it: facts that
        #: concern nobody any more, like the patience of a client that was served, move it too.
        self._busy_until = 0
        #: The newest wake-up: its serial number, and the kernel's name for it.
        self._wake = (0, NEVER)
        self._arrivals_ns: Final[list[int]] = workload.arrivals_ns.tolist()
        self._next_request = 0
        self._handle_of: Final[dict[int, int]] = {}
        self._request_of: Final[dict[int, int]] = {}
        #: Handle -> output tokens after which its client leaves.
        self._patience: Final[dict[int, int]] = {}
        self._ended = 0
        #: The request whose arrival the kernel answers.
        self._arriving = NEVER
        #: When the tokens of all steps but the last of those being reported were out.
        self._earlier = EMPTY
        #: An end is carried out once all work of the step is done.
        self._ends: Final[list[FinishRequest]] = []
        self._pool: Final = kernel.pool
        self._usage: Final = _Usage(kernel.pool)
        host = self._host
        #: Who makes an event of a fact, in the order of `FactClass`.
        self._reporters: Final[list[Callable[[int], Event | None]]] = [
            self._cancelled,
            self._transferred,
            self._prepared,
            self._executed,
            self._arrived,
            self._woke,
        ]
        #: Who carries a command out.
        self._carriers: Final[dict[type[Command], Callable[[Any], None]]] = {
            PrepareBatch: host.build,
            DispatchBatch: host.dispatch,
            EmitTokens: self._emit,
            FinishRequest: self._ends.append,
            AdmitRequest: self._admit,
            RefuseRequest: self._refuse,
            WakeAt: self._wake_at,
            AbandonBatch: host.abandon,
            LoadBlocks: host.submit,
            StoreBlocks: host.submit,
        }
        for _ in range(1 if closed_loop is None else min(closed_loop, len(workload))):
            self._bring_next(0)

    @property
    def now(self) -> int:
        """Time at which the host has done everything so far, ns."""
        return self._host.time.host_free_at

    @property
    def transfer_times(self) -> TransferTimes:
        """What copies between the tiers took so far."""
        return self._engine.times

    @property
    def ended(self) -> int:
        """How many requests have ended or were refused."""
        return self._ended

    def run(self, progress: Callable[[int], None] | None = None) -> RunRecord:
        """Run to the end; ``progress`` is told now and then how many requests have ended.

        Raises:
            SimulationError: nothing is left to happen although requests are live.
            SanitizerError: a row read what is not its own.
        """
        countdown = _PROGRESS_EVENTS
        while self.step():
            countdown -= 1
            if not countdown:
                countdown = _PROGRESS_EVENTS
                if progress is not None:
                    progress(self._ended)
        return self.record()

    def record(self) -> RunRecord:
        """Return the record of a run that has come to its end; see `run`."""
        left = len(self._workload) - self._ended
        if left or not self.kernel.idle():
            raise SimulationError(
                f"nothing is left to happen at {self.now} ns, but {left} requests have not ended; "
                "the kernel answered HostReady without a batch although it has work"
            )
        # They refer back to this, which would keep the kernel until a collection of garbage.
        self._reporters.clear()
        self._carriers.clear()
        pool, counters, time = self.kernel.pool, self.kernel.counters, self._host.time
        return self._recorder.close(
            duration_ns=self._busy_until,
            time=time,
            margin_ppm=self.kernel.margin_ppm,
            pending_block_ns=self._usage.pending_block_ns,
            kv_blocks_max=self._usage.blocks_max,
            leaked_blocks=pool.num_blocks - pool.available,
            counters={entry.name: getattr(counters, entry.name) for entry in fields(counters)},
        )

    # -- events -------------------------------------------------------------------------------

    def step(self) -> bool:
        """Deliver the earliest fact and carry out the answer; False when nothing is left."""
        facts, time = self._facts, self._host.time
        event: Event | None = None
        while event is None:
            free_at = time.host_free_at
            if self._ready_due and not facts.any_by(free_at):
                event = HostReady(at=free_at)
            elif facts.any():
                time.host_free_at, kind, subject = facts.take(free_at)
                event = self._reporters[kind](subject)
            else:
                return False
        commands = self.kernel.step(event)
        self._recorder.events += 1
        usage, pool = self._usage, self._pool
        if pool.available < usage.available_min or pool.pending_count != usage.pending:
            usage.see(event.at)
        for observe in self._observers:
            observe(event, commands)
        carriers = self._carriers
        for command in commands:
            carriers[type(command)](command)
        if self._ends:
            self._finish_all()
        self._busy_until = time.host_free_at
        self._ready_due = not isinstance(event, HostReady) and self.kernel.awaits_host()
        return True

    # What a fact is as an event; None when it is none (yet).

    def _transferred(self, transfer_id: int) -> Event:
        return self._engine.report(transfer_id, self.now)

    def _prepared(self, batch_id: int) -> Event:
        return BatchPrepared(batch_id=batch_id, at=self._host.time.host_free_at)

    def _woke(self, serial: int) -> Event | None:
        newest, wake_id = self._wake
        return Woke(wake_id=wake_id, at=self._host.time.host_free_at) if serial == newest else None

    def _executed(self, batch_id: int) -> Event | None:
        if self._collected != batch_id:
            # The end of the device step. The host samples first; the event is due after that, and
            # after what happens meanwhile and goes before it.
            self._collected = batch_id
            self._host.collect(batch_id)
            done = self._host.time.host_free_at
            if self._facts.any_by(done):
                self._facts.add(done, FactClass.EXECUTED, batch_id)
                return None
        time, accepted, turn_times = self._host.time, None, None
        self._earlier = EMPTY
        leap = self._leap(batch_id) if self._stretches else None
        if leap is None:
            tokens, accepted = self._host.execute(batch_id)
        else:
            tokens, self._earlier, turn_times = leap.tokens, leap.outs, leap.turn_times
        return BatchExecuted(
            batch_id=batch_id,
            tokens=tokens,
            at=time.host_free_at,
            ended_at=time.npu_end,
            accepted=accepted,
            turn_times=turn_times,
        )

    def _leap(self, batch_id: int) -> Leap | None:
        """Walk on from the collected batch as long as nothing else happens, if it is worth it."""
        host = self._host
        if self._facts.any_by(host.time.host_free_at):
            return None
        until = self._facts.next_at()
        turns = host.turns_max(batch_id, until)
        if self._patience and turns > 0:
            turns = min(turns, self._patient_turns(batch_id))
        repeat = self.kernel.repeat(turns) if turns > 0 else None
        leap = None if repeat is None else host.leap(repeat, until)
        if leap is not None:
            self._usage.leap(leap.begin, leap.new_blocks)
        return leap

    def _patient_turns(self, batch_id: int) -> int:
        """Return after how many more steps the first client has the tokens that it stays for."""
        turns = 1 << 30
        handles, positions = self._host.positions(batch_id)
        for handle, position in zip(handles.tolist(), positions.tolist(), strict=True):
            wanted = self._patience.get(handle)
            if wanted is not None:
                prompt = int(self._workload.prompts.lengths[self._request_of[handle]])
                turns = min(turns, wanted - (position - prompt + 2))
        return turns

    # -- commands -----------------------------------------------------------------------------

    def _emit(self, command: EmitTokens) -> None:
        out = self._host.publish(command, self._earlier)
        if self._patience:
            self._lose_patience(command, [*self._earlier.tolist(), out])

    def _wake_at(self, command: WakeAt) -> None:
        self._wake = (self._wake[0] + 1, command.wake_id)
        self._facts.add(command.at, FactClass.WOKE, self._wake[0])

    # -- clients ------------------------------------------------------------------------------

    def _bring_next(self, at: int) -> None:
        """Let the next request of the workload arrive, in a closed loop at ``at``."""
        request = self._next_request
        if request < len(self._arrivals_ns):
            self._next_request += 1
            if self._closed:
                self._arrivals_ns[request] = at
            self._facts.add(self._arrivals_ns[request], FactClass.ARRIVAL, request)

    def _arrived(self, request: int) -> Event:
        load, at = self._workload, self._host.time.host_free_at
        self._arriving = request
        if not self._closed:
            self._bring_next(at)
        keys = load.block_keys(request)
        return RequestArrived(
            request_id=load.request_ids[request],
            prompt_length=load.prompts.lengths.item(request),
            max_tokens=load.max_tokens.item(request),
            at=at,
            arrived_at=self._arrivals_ns[request],
            priority=load.priorities.item(request),
            block_keys=keys,
            remote_blocks=self._engine.lookup(keys),
        )

    def _admit(self, command: AdmitRequest) -> None:
        load, request, handle = self._workload, self._arriving, command.handle
        arrived_at = self._arrivals_ns[request]
        if not self._handle_of:
            self._host.live_since = arrived_at
        self._handle_of[request] = handle
        self._request_of[handle] = request
        self._recorder.arrive(request, arrived_at, self.now, handle)
        self._executor.admit(handle, request)
        leaves_after = load.cancel_after_ns.item(request)
        if leaves_after >= 0:
            self._facts.add(arrived_at + leaves_after, FactClass.CANCEL, request)
        patience = load.cancel_after_tokens.item(request)
        if patience >= 0:
            self._patience[handle] = patience

    def _refuse(self, command: RefuseRequest) -> None:
        request, at = self._arriving, self.now
        self._recorder.arrive(request, self._arrivals_ns[request], at, None)
        self._recorder.refuse(request, command, at)
        self._leave(at)

    def _cancelled(self, request: int) -> Event | None:
        handle = self._handle_of.get(request)
        if handle is None:
            return None
        at = self._host.time.host_free_at
        self._recorder.cancel(request, at)
        request_id = self._workload.request_ids[request]
        return RequestCancelled(request_id=request_id, handle=handle, at=at)

    def _lose_patience(self, command: EmitTokens, times: Sequence[int]) -> None:
        handles: list[int] = command.handles.tolist()
        offsets: list[int] = command.offsets.tolist()
        counts = command.counts
        sizes = [len(times)] * len(handles) if counts is None else counts.tolist()
        for handle, offset, size in zip(handles, offsets, sizes, strict=True):
            wanted = self._patience.get(handle)
            if wanted is not None and offset < wanted <= offset + size:
                del self._patience[handle]
                # Tokens of one device step are out at one time.
                out = times[wanted - 1 - offset] if counts is None else times[0]
                self._facts.add(out, FactClass.CANCEL, self._request_of[handle])

    def _finish_all(self) -> None:
        at = self.now
        for command in self._ends:
            handle = command.handle
            self._recorder.finish(command, at)
            self._host.end(handle, discards=command.reason in _DISCARDING)
            self._patience.pop(handle, None)
            del self._handle_of[self._request_of.pop(handle)]
            self._leave(at)
        self._ends.clear()

    def _leave(self, at: int) -> None:
        self._ended += 1
        if self._closed:
            self._bring_next(at)


class _Usage:
    """The block pool over time: the fewest blocks available, and the integral of the pending."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool: Final = pool
        self._at = 0
        self.pending = 0
        self.available_min = pool.num_blocks
        self.pending_block_ns = 0

    @property
    def blocks_max(self) -> int:
        """Return the most blocks in use (held or pending) at once."""
        return self._pool.num_blocks - self.available_min

    def see(self, at: int) -> None:
        """Since the event of time ``at`` the pool is another."""
        self.pending_block_ns += self.pending * (at - self._at)
        self._at = at
        self.pending = self._pool.pending_count
        self.available_min = min(self.available_min, self._pool.available)

    def leap(self, at: int, blocks: int) -> None:
        """So many more blocks are about to be in use; those pending are not so from ``at`` on."""
        if self.pending:
            self.pending_block_ns += self.pending * (at - self._at)
            self._at, self.pending = at, 0
        available = self._pool.available + self._pool.pending_count
        self.available_min = min(self.available_min, available - blocks)
