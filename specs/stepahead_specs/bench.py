"""A host and a device whose every move is chosen by the test, around one real kernel.

`Bench` offers what a correct host may report next as methods (one fact each), carries out the
kernel's commands, and checks every invariant after each step. The device computes the history hash
through the block tables it was given, position by position, so that wrong inputs, stale blocks and
foreign blocks change the tokens that it returns. No clock: an event takes one
nanosecond, and a device step some more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepahead.commands import (
    AbandonBatch,
    AdmitRequest,
    Command,
    DispatchBatch,
    PrepareBatch,
    WakeAt,
)
from stepahead.config import KernelConfig
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    CacheTarget,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    Woke,
)
from stepahead.kernel import Kernel
from stepahead_specs.accounts import account
from stepahead_specs.goals import reached
from stepahead_specs.invariants import Kind, check
from stepahead_specs.observation import Observation
from stepahead_specs.observer import Observer, limits
from stepahead_specs.oracle import Ask, HashModel, Interner, mix
from stepahead_specs.walkers import Walkers

#: What a freed block reads as, until somebody writes it.
_POISON: Final = 0xDEADBEEF
#: What a device returns below the last token of a row; nobody may look at it.
IGNORED: Final = -1


class BenchError(AssertionError):
    """The host was told something that it cannot carry out."""


class LeftTheTables(BenchError):
    """What was seen, or what the kernel says of it, is no walk through the declared tables."""


@dataclass(slots=True)
class Built:
    """A batch as the host built it: what each row reads, writes and takes in before its drafts."""

    command: PrepareBatch
    tables: list[dict[int, int]]
    inputs: list[list[int | None]]
    kept: list[bool]
    drafts: list[int]


def executed(
    batch_id: int, sampled: Sequence[Sequence[int]], drafts: Sequence[int], at: int
) -> BatchExecuted:
    """Return what a device reports: the tokens of each sampling row, which had so many drafts."""
    longest = max([1 + max(drafts, default=0), *(len(values) for values in sampled)])
    tokens = np.full((longest, len(sampled)), IGNORED, dtype=np.int64)
    for row, values in enumerate(sampled):
        tokens[: len(values), row] = values
    accepted = np.array([len(values) - 1 for values in sampled], dtype=np.int64)
    return BatchExecuted(
        batch_id=batch_id, tokens=tokens, at=at, accepted=accepted if any(drafts) else None
    )


class Bench:
    """One kernel with its host, its device and its observer.

    Args:
        config: the kernel's limits.
        model: the oracle of tokens.
        checked: whether every step is checked against all invariants.
    """

    def __init__(self, config: KernelConfig, model: HashModel, *, checked: bool = True) -> None:
        self.config = config
        self.model = model
        self.checked = checked
        self.kernel = Kernel(config)
        self.asks: dict[int, Ask] = {}
        self.seen = Observation(limits(config), truth=self.truth)
        self.observer = Observer(self.seen)
        #: Goals that this run has reached.
        self.goals: set[str] = set()
        self.draining_max = 0
        self.walkers = Walkers()
        self.journal: list[tuple[Event, tuple[Command, ...]]] = []
        self.building: PrepareBatch | None = None
        self.built: dict[int, Built] = {}
        self.on_device: int | None = None
        self.ready_due = False
        self.wake: WakeAt | None = None
        #: How long the device takes; the host does everything in no time.
        self.device_time = 20
        #: How lucky the drafter is: 0 never, 1 always, above by row as this number has it.
        self.luck = 1
        self.failed = False
        self._interner = Interner(config.block_size)
        self._tables: dict[int, tuple[tuple[int, int], dict[int, int]]] = {}
        self._memory: dict[tuple[int, int], int] = {}
        self._truths: dict[int, tuple[list[int], str]] = {}
        self._at = 0

    def truth(self, handle: int) -> tuple[Sequence[int], str]:
        """Return the output and the finish reason that this request has when it runs alone."""
        if handle not in self._truths:
            self._truths[handle] = self.model.output(self.asks[handle], self.config.max_model_len)
        return self._truths[handle]

    # -- what a host may report ---------------------------------------------------------------

    def arrive(self, ask: Ask, remote_blocks: int | None = None) -> int | None:
        """Report an arrival; return its handle, or None if it was refused.

        ``remote_blocks``: what the report says of a lookup in the remote store.
        """
        keys = self._interner.keys(ask.prompt)
        event = RequestArrived(
            request_id=ask.request_id,
            prompt_length=len(ask.prompt),
            max_tokens=ask.max_tokens,
            at=self._now(),
            arrived_at=self._at,
            priority=ask.priority,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop_token_ids=ask.stop_token_ids,
            block_keys=np.array(keys, dtype=np.int64),
            remote_blocks=remote_blocks,
        )
        commands = self._step(event, ask)
        return next((c.handle for c in commands if isinstance(c, AdmitRequest)), None)

    def cancel(self, request_id: str, handle: int | None = None) -> None:
        """Report that a client left."""
        self._step(RequestCancelled(request_id=request_id, handle=handle, at=self._now()))

    def host_ready(self) -> bool:
        """Report that the host has nothing to do; return whether a batch was selected."""
        self._step(HostReady(at=self._now()))
        return self.building is not None

    def prepared(self) -> None:
        """Report that the batch under construction is built."""
        command = self._under_construction()
        self.built[command.batch_id] = self._build(command)
        self.building = None
        self._step(BatchPrepared(batch_id=command.batch_id, at=self._now()))

    def refused(self) -> None:
        """Report that the batch under construction cannot be built."""
        command = self._under_construction()
        self.building = None
        self._step(BatchRefused(batch_id=command.batch_id, at=self._now()))

    def executed(self) -> None:
        """Let the device finish its batch and report what it sampled."""
        ident = self._on_device()
        self._at += self.device_time
        built = self.built.pop(ident)
        sampled = self._execute(built)
        self.on_device = None
        self._step(executed(ident, sampled, _drafts(built), self._now()))

    def device_failed(self, *, whole: bool) -> None:
        """Report that the device failed its batch, or altogether."""
        ident = self._on_device()
        built = self.built.pop(ident)
        self._spoil(built)
        self.on_device = None
        if whole:
            self.failed = True
            self.building = None
            self.built.clear()
        scope = FailureScope.DEVICE if whole else FailureScope.BATCH
        self._step(BatchFailed(batch_id=ident, scope=scope, at=self._now()))

    def woke(self, wake_id: int) -> None:
        """Report a wake, be it stale, early or never asked for."""
        self._step(Woke(wake_id=wake_id, at=self._now()))

    def woke_in_time(self) -> None:
        """Report the wake that was asked for last, at its time or later."""
        if self.wake is None:
            raise BenchError("no wake was asked for")
        wake, self.wake = self.wake, None
        self._at = max(self._at, wake.at - 1)
        self._step(Woke(wake_id=wake.wake_id, at=self._now()))

    def pause(self) -> None:
        """Ask for a pause."""
        self._step(PauseRequested(at=self._now()))

    def resume(self) -> None:
        """End a pause."""
        self._step(ResumeRequested(at=self._now()))

    def reset_cache(self, target: CacheTarget = CacheTarget.ALL) -> None:
        """Ask to forget cached content."""
        self._step(CacheResetRequested(at=self._now(), target=target))

    # -- the end ------------------------------------------------------------------------------

    def drain(self, steps_max: int = 100_000) -> None:
        """Do the host's and the device's part until nothing is left; check that everything ended.

        Raises:
            BenchError: it does not end within ``steps_max`` steps.
        """
        if self.seen.paused or self.seen.pausing:
            self.resume()
        for _ in range(steps_max):
            if self.building is not None:
                self.prepared()
            elif self.ready_due:
                self.host_ready()
            elif self.on_device is not None:
                self.executed()
            else:
                break
        else:
            raise BenchError(f"not drained after {steps_max} steps; no progress is being made")
        if self.checked:
            check(self.seen, Kind.EVENTUALLY)

    # -- one step -----------------------------------------------------------------------------

    def _now(self) -> int:
        self._at += 1
        return self._at

    def _step(self, event: Event, ask: Ask | None = None) -> tuple[Command, ...]:
        commands = self.kernel.step(event)
        self.journal.append((event, commands))
        for command in commands:
            if isinstance(command, AdmitRequest) and ask is not None:
                self.asks[command.handle] = ask
        self.observer.saw(event, commands)
        for command in commands:
            self._carry_out(command)
        self.ready_due = not isinstance(event, HostReady)
        if self.checked:
            self.seen.accounted(account(self.kernel))
            check(self.seen)
            if apart := self.walkers.follow(self.seen):
                raise LeftTheTables("; ".join(apart))
            self.goals.update(reached(self.seen))
            self.draining_max = max(self.draining_max, self.seen.draining())
        return commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case PrepareBatch():
                if self.building is not None:
                    raise BenchError(f"batch {command.batch_id} is to be built while another is")
                self.building = command
            case DispatchBatch():
                self._dispatch(command)
            case AbandonBatch():
                self.built.pop(command.batch_id)
            case WakeAt():
                self.wake = command
            case _:
                pass

    def _under_construction(self) -> PrepareBatch:
        if self.building is None:
            raise BenchError("no batch is under construction")
        return self.building

    def _on_device(self) -> int:
        if self.on_device is None:
            raise BenchError("no batch is on the device")
        return self.on_device

    # -- host ---------------------------------------------------------------------------------

    def _build(self, command: PrepareBatch) -> Built:
        entries = list(
            zip(
                command.block_rows.tolist(),
                command.block_slots.tolist(),
                command.blocks.tolist(),
                strict=True,
            )
        )
        tables: list[dict[int, int]] = []
        inputs: list[list[int | None]] = []
        none = np.zeros_like(command.seats)
        drafts: list[int] = (none if command.drafts is None else command.drafts).tolist()
        for row, handle in enumerate(command.handles.tolist()):
            seat, stay = int(command.seats[row]), (handle, int(command.epochs[row]))
            if self._tables.get(seat, ((-1, -1), {}))[0] != stay:
                self._tables[seat] = (stay, {})
            table = self._tables[seat][1]
            table.update({slot: block for at, slot, block in entries if at == row})
            tables.append(dict(table))
            prompt = self.asks[handle].prompt
            first = int(command.positions[row])
            span = range(first, first + int(command.token_counts[row]) - drafts[row])
            inputs.append([prompt[p] if p < len(prompt) else None for p in span])
        for row, position, token in zip(
            command.history_rows.tolist(),
            command.history_positions.tolist(),
            command.history_tokens.tolist(),
            strict=True,
        ):
            inputs[row][position - int(command.positions[row])] = token
        return Built(command, tables, inputs, [True] * len(tables), drafts)

    def _dispatch(self, command: DispatchBatch) -> None:
        if self.on_device is not None:
            raise BenchError(
                f"batch {command.batch_id} is dispatched while batch {self.on_device} is executed"
            )
        built = self.built.get(command.batch_id)
        if built is None:
            raise BenchError(f"batch {command.batch_id} is dispatched and is not built")
        for row, token in zip(
            command.fill_rows.tolist(), command.fill_tokens.tolist(), strict=True
        ):
            built.inputs[row][-1] = token
        if command.pruned:
            built.kept = command.live.tolist()
        self._poison(built)
        self.on_device = command.batch_id

    def _poison(self, built: Built) -> None:
        """Make the blocks that a batch got to write unreadable until it writes them."""
        size, command = self.config.block_size, built.command
        for row, slot, block in zip(
            command.block_rows.tolist(),
            command.block_slots.tolist(),
            command.blocks.tolist(),
            strict=True,
        ):
            if built.kept[row] and (slot + 1) * size > int(command.positions[row]):
                for offset in range(size):
                    self._memory[block, offset] = _POISON

    # -- device -------------------------------------------------------------------------------

    def _execute(self, built: Built) -> list[list[int]]:
        """Compute the batch; return what each sampling row gives.

        The drafter knows what the device will sample, and is right about it as far as it is lucky.
        The device reads what it proposes and samples behind each; drafts are right up to the first
        that is not what was sampled.
        """
        sampled: list[list[int]] = []
        command = built.command
        for row, (table, inputs) in enumerate(zip(built.tables, built.inputs, strict=True)):
            if not built.kept[row]:
                continue
            ask = self.asks[int(command.handles[row])]
            position = int(command.positions[row])
            chain = self._load(table, position - 1) if position else self.model.start()
            for token in inputs:
                chain = self._read(table, chain, token, position)
                position += 1
            if not command.samples[row]:
                continue
            tokens = [self.model.sample(chain, ask, position - len(ask.prompt))]
            right = self._right(built, row)
            for draft in range(built.drafts[row]):
                # A wrong draft is read as well; what is sampled behind it counts for nothing.
                guess = tokens[-1] if draft < right else tokens[-1] + 1
                chain = self._read(table, chain, guess, position)
                position += 1
                tokens.append(self.model.sample(chain, ask, position - len(ask.prompt)))
            sampled.append(tokens[: right + 1])
        return sampled

    def _read(self, table: dict[int, int], chain: int, token: int | None, position: int) -> int:
        chain = self.model.read(chain, 0 if token is None else token, position)
        self._memory[self._place(table, position)] = chain
        return chain

    def _right(self, built: Built, row: int) -> int:
        """Return how many of a row's drafts are right."""
        drafts = built.drafts[row]
        if self.luck <= 1:
            return drafts * self.luck
        return mix(self.luck ^ int(built.command.positions[row])) % (drafts + 1)

    def _spoil(self, built: Built) -> None:
        """A failed batch may have written anything into its own positions."""
        command = built.command
        for row, table in enumerate(built.tables):
            if not built.kept[row]:
                continue
            first = int(command.positions[row])
            for position in range(first, first + int(command.token_counts[row])):
                self._memory[self._place(table, position)] = _POISON

    def _load(self, table: dict[int, int], position: int) -> int:
        place = self._place(table, position)
        return self._memory.get(place, _POISON)

    def _place(self, table: dict[int, int], position: int) -> tuple[int, int]:
        slot, offset = divmod(position, self.config.block_size)
        if slot not in table:
            raise BenchError(f"position {position} is touched and its block was never told")
        return table[slot], offset


def _drafts(built: Built) -> list[int]:
    """Return the drafts of each sampling row that was not left out."""
    rows = zip(built.drafts, built.kept, built.command.samples.tolist(), strict=True)
    return [drafts for drafts, kept, samples in rows if kept and samples]
