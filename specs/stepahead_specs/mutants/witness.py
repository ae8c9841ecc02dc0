"""A witness of every move along the state tables, also of what leaves the kernel with that move.

A request or batch that has ended is in no view of the kernel, so what its last state is called
shows nowhere. `Witness.watching` stands beside the two functions through which all moves go and
notes them; `WitnessedKernel` then holds each step to the words of the design: who left by its
tokens, and a batch whose results came back, is COMPLETED; everything else that left is CANCELLED.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from typing import Final
from unittest import mock

from stepahead.arrays import Ints
from stepahead.commands import AbandonBatch, Command, FinishReason, FinishRequest
from stepahead.config import KernelConfig
from stepahead.events import Event, HostReady
from stepahead.kernel import Kernel
from stepahead.state import State
from stepahead.tables import (
    REQUEST,
    BatchState,
    RequestState,
    RequestTrigger,
    StateTable,
)
from stepahead_specs.bench import Bench
from stepahead_specs.oracle import HashModel

_BY_TOKENS: Final = (FinishReason.STOP, FinishReason.LENGTH)


class Misnamed(AssertionError):
    """Something left the kernel in a state that does not say how."""


class Witness:
    """What moved: ``taken`` edges of all time, and last states of the step that is being made."""

    def __init__(self) -> None:
        self.taken: set[tuple[Enum, Enum]] = set()
        self.requests: dict[int, RequestState] = {}
        self.batches: dict[int, BatchState] = {}

    def begin(self) -> None:
        """Forget the step before."""
        self.requests, self.batches = {}, {}

    @contextmanager
    def watching(self) -> Generator[None]:
        """Note every move inside the ``with`` block."""
        move, next_state = State.move, StateTable[Enum, Enum].next_state

        def seen_move(state: State, seats: Ints, trigger: RequestTrigger) -> None:
            before: list[int] = state.columns.state[seats].tolist()
            move(state, seats, trigger)
            for seat, number in zip(seats.tolist(), before, strict=True):
                self.taken.add((REQUEST.states[number], trigger))
                after = REQUEST.states[int(state.columns.state[seat])]
                self.requests[int(state.columns.handle[seat])] = after

        def seen_next(
            table: StateTable[Enum, Enum], ident: int, state: Enum, trigger: Enum
        ) -> Enum:
            after = next_state(table, ident, state, trigger)
            self.taken.add((state, trigger))
            if isinstance(after, RequestState):
                self.requests[ident] = after
            elif isinstance(after, BatchState):
                self.batches[ident] = after
            return after

        with (
            mock.patch.object(State, "move", seen_move),
            mock.patch.object(StateTable, "next_state", seen_next),
        ):
            yield


class WitnessedKernel(Kernel):
    """A kernel whose every step is held to the names of what left with it."""

    def __init__(self, config: KernelConfig, witness: Witness) -> None:
        super().__init__(config)
        self._witness = witness

    def step(self, event: Event) -> tuple[Command, ...]:
        """Take one fact, as `Kernel.step`.

        Raises:
            Misnamed: a request or batch left in a state that does not say how.
        """
        self._witness.begin()
        commands = super().step(event)
        self._judge_requests(commands)
        self._judge_batches(event, commands)
        return commands

    def _judge_requests(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            if not isinstance(command, FinishRequest):
                continue
            by_tokens = command.reason in _BY_TOKENS
            expected = RequestState.COMPLETED if by_tokens else RequestState.CANCELLED
            state = self._witness.requests.get(command.handle)
            if state is not expected:
                raise Misnamed(
                    f"request {command.handle} ended by {command.reason.value} and is "
                    f"{None if state is None else state.name}"
                )

    def _judge_batches(self, event: Event, commands: tuple[Command, ...]) -> None:
        """What leaves when the host is ready has come back, unless the host is told to drop it."""
        here = {batch.batch_id for batch in self.batches()}
        dropped = {c.batch_id for c in commands if isinstance(c, AbandonBatch)}
        for ident, state in self._witness.batches.items():
            if ident in here:
                continue
            back = isinstance(event, HostReady) and ident not in dropped
            expected = BatchState.COMPLETED if back else BatchState.CANCELLED
            if state is not expected:
                how = "came back" if back else "never came back"
                raise Misnamed(f"batch {ident} {how} and left as {state.name}")


class WitnessedBench(Bench):
    """A bench around a witnessed kernel."""

    def __init__(self, config: KernelConfig, model: HashModel, witness: Witness) -> None:
        super().__init__(config, model)
        self.kernel = WitnessedKernel(config, witness)
