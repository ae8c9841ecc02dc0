"""The driver of a simulated machine: facts in order of time, one kernel step each.

`Simulation.step` takes the earliest fact, hands it to the kernel and lets the host carry out the
commands, in order. It owns the clients and the order of events; what things cost is the device's
business, what tokens come out the executor's, what is remembered the recorder's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Final, Protocol

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
from stepahead_models.tokens import HistoryHash, Ints
from stepahead_models.transfer_engine import (
    NoMemory,
    TransferEngine,
    TransferPort,
    TransferTimes,
)
from stepahead_models.workload import Workload

_PROGRESS_EVENTS: Final = 256
# Members of an IntEnum compare slowly; the loop compares plain integers.
_CANCEL: Final = int(FactClass.CANCEL)
_TRANSFER: Final = int(FactClass.TRANSFER)
_PREPARED: Final = int(FactClass.PREPARED)
_EXECUTED: Final = int(FactClass.EXECUTED)
_ARRIVAL: Final = int(FactClass.ARRIVAL)
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

    def repeat(self, limit: int = ...) -> Repeat | None:
        """Return how the steady state goes on, or None."""
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
            self._executor: ExecutorPort = UncheckedExecutor(model, workload, acceptance)
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
        self._usage: Final = _Usage(kernel.pool)
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
        while True:
            if self._ready_due:
                fact = facts.take_by(time.host_free_at)
                if fact is None:
                    self._ready_due = False
                    self._deliver(HostReady(at=time.host_free_at))
                    self._busy_until = time.host_free_at
                    return True
            else:
                fact = facts.take(time.host_free_at)
                if fact is None:
                    return False
            time.host_free_at, kind, subject = fact
            if self._report(kind, subject):
                self._ready_due = True
                self._busy_until = time.host_free_at
                return True

    def _report(self, kind: int, subject: int) -> bool:
        """Turn a fact into an event and deliver it; False when it is none (yet)."""
        at = self._host.time.host_free_at
        if kind == _PREPARED:
            self._deliver(BatchPrepared(batch_id=subject, at=at))
        elif kind == _EXECUTED:
            if self._collected != subject:
                # The end of the device step. The host samples first; the event is due after that,
                # and after what happens meanwhile and goes before it.
                self._collected = subject
                self._host.collect(subject)
                done = self._host.time.host_free_at
                if self._facts.any_by(done):
                    self._facts.add(done, FactClass.EXECUTED, subject)
                    return False
            self._executed(subject)
        elif kind == _TRANSFER:
            self._deliver(self._engine.report(subject, at))
        elif kind == _ARRIVAL:
            self._arrived(subject)
        elif kind == _CANCEL:
            if subject not in self._handle_of:
                return False
            self._recorder.cancel(subject, at)
            self._deliver(
                RequestCancelled(
                    request_id=self._workload.request_ids[subject],
                    handle=self._handle_of[subject],
                    at=at,
                )
            )
        else:
            if subject != self._wake[0]:
                return False
            self._deliver(Woke(wake_id=self._wake[1], at=at))
        return True

    def _executed(self, batch_id: int) -> None:
        time, accepted = self._host.time, None
        leap = self._leap(batch_id) if self._stretches else None
        if leap is None:
            tokens, accepted = self._host.execute(batch_id)
            leap = Leap(tokens, EMPTY, None, 0)
        event = BatchExecuted(
            batch_id=batch_id,
            tokens=leap.tokens,
            at=time.host_free_at,
            ended_at=time.npu_end,
            accepted=accepted,
            turn_times=leap.turn_times,
        )
        self._deliver(event, leap.outs)

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
            self._usage.grow(leap.new_blocks)
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

    def _deliver(self, event: Event, earlier: Ints = EMPTY) -> None:
        commands = self.kernel.step(event)
        self._recorder.events += 1
        self._usage.see(event.at)
        for observe in self._observers:
            observe(event, commands)
        ends: list[FinishRequest] = []
        for command in commands:
            if isinstance(command, PrepareBatch):
                self._host.build(command)
            elif isinstance(command, DispatchBatch):
                self._host.dispatch(command)
            elif isinstance(command, EmitTokens):
                out = self._host.publish(command, earlier)
                if self._patience:
                    self._lose_patience(command, [*earlier.tolist(), out])
            elif isinstance(command, FinishRequest):
                ends.append(command)
            else:
                self._carry_out(command)
        # An end is carried out once all work of the step is done.
        for end in ends:
            self._finish(end)

    def _carry_out(self, command: Command) -> None:
        """Carry out one of the rarer commands."""
        if isinstance(command, LoadBlocks | StoreBlocks):
            self._host.submit(command)
        elif isinstance(command, AbandonBatch):
            self._host.abandon(command.batch_id)
        elif isinstance(command, WakeAt):
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

    def _arrived(self, request: int) -> None:
        load, at = self._workload, self._host.time.host_free_at
        if not self._closed:
            self._bring_next(at)
        keys = load.block_keys(request)
        event = RequestArrived(
            request_id=load.request_ids[request],
            prompt_length=int(load.prompts.lengths[request]),
            max_tokens=int(load.max_tokens[request]),
            at=at,
            arrived_at=self._arrivals_ns[request],
            priority=int(load.priorities[request]),
            block_keys=keys,
            remote_blocks=self._engine.lookup(keys),
        )
        (answer,) = self.kernel.step(event)
        self._recorder.events += 1
        self._usage.see(at)
        for observe in self._observers:
            observe(event, (answer,))
        if isinstance(answer, AdmitRequest):
            self._admit(request, answer.handle)
        elif isinstance(answer, RefuseRequest):
            self._recorder.arrive(request, event.arrived_at, at, None)
            self._recorder.refuse(request, answer, at)
            self._leave(at)

    def _admit(self, request: int, handle: int) -> None:
        load, at, arrived_at = self._workload, self.now, self._arrivals_ns[request]
        if not self._handle_of:
            self._host.live_since = arrived_at
        self._handle_of[request] = handle
        self._request_of[handle] = request
        self._recorder.arrive(request, arrived_at, at, handle)
        self._executor.admit(handle, request)
        if load.cancel_after_ns[request] >= 0:
            leaves = arrived_at + int(load.cancel_after_ns[request])
            self._facts.add(leaves, FactClass.CANCEL, request)
        if load.cancel_after_tokens[request] >= 0:
            self._patience[handle] = int(load.cancel_after_tokens[request])

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

    def _finish(self, command: FinishRequest) -> None:
        at = self.now
        self._recorder.finish(command, at)
        self._host.end(command.handle, discards=command.reason in _DISCARDING)
        self._patience.pop(command.handle, None)
        del self._handle_of[self._request_of.pop(command.handle)]
        self._leave(at)

    def _leave(self, at: int) -> None:
        self._ended += 1
        if self._closed:
            self._bring_next(at)


class _Usage:
    """The block pool over time: the most blocks in use, and the integral of the pending ones."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool: Final = pool
        self._at = 0
        self._pending = 0
        self._available_min = pool.num_blocks
        self.pending_block_ns = 0

    @property
    def blocks_max(self) -> int:
        """Return the most blocks in use (held or pending) at once."""
        return self._pool.num_blocks - self._available_min

    def see(self, at: int) -> None:
        """The kernel has answered an event of time ``at``."""
        pool = self._pool
        if self._pending:
            self.pending_block_ns += self._pending * (at - self._at)
        self._at = at
        self._pending = pool.pending_count
        if pool.available >= self._available_min:
            return
        self._available_min = pool.available

    def grow(self, blocks: int) -> None:
        """So many more blocks than now are about to be in use for a while."""
        self._available_min = min(self._available_min, self._pool.available - blocks)
