"""Mutants of the two state tables: every cell changed, removed, or made legal.

The declaration itself is wrong in these mutants, and everything that is derived from it follows:
the integers of the hot path and the machines of the lockstep alike. So no copy of the table judges
them. They die by behaviour:

* a changed or removed edge, by what the explorer and the walks then see, and by what things are
  called when they leave (`stepahead_specs.mutants.witness`);
* an edge that should not be there, by force. Complete explorations and many walks of the sound
  kernel never ask for it, so a kernel with that edge makes the very same runs; what no rule ever
  asks for must be refused when it is forced on a request or batch, and must leave no trace.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from random import Random
from typing import Final, TypeAlias, cast

import numpy as np

from stepahead.config import KernelConfig
from stepahead.errors import IllegalTransition
from stepahead.events import HostReady, RequestArrived
from stepahead.kernel import Kernel
from stepahead.state import State
from stepahead.tables import (
    BATCH,
    BATCH_ROWS,
    ILLEGAL,
    REQUEST,
    REQUEST_ROWS,
    BatchState,
    BatchTrigger,
    RequestState,
    RequestTrigger,
)
from stepahead_specs.explorer import Bounds, Options, explore
from stepahead_specs.mutants.hunt import Hunted, chase
from stepahead_specs.mutants.witness import Witness, WitnessedBench, WitnessedKernel
from stepahead_specs.oracle import HashModel
from stepahead_specs.walk import Failure, draw, play

Rows: TypeAlias = dict[Enum, dict[Enum, Enum]]

#: Small enough to be finished in a second, and together they take every edge.
BOUNDS: Final = (
    Bounds(requests=2, blocks=2, tokens=2, refusals=True, failures=True),
    Bounds(requests=2, blocks=3, tokens=2, lookahead=1, prune=True),
    Bounds(
        requests=2, blocks=4, tokens=2, lookahead=0, budget=1, prefill_first=True, failures=True
    ),
)
_SCENARIOS: Final = 120


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table and what it holds in a mutant; None: the trigger is refused."""

    machine: str
    state: Enum
    trigger: Enum
    before: Enum | None
    after: Enum | None

    @property
    def name(self) -> str:
        """Return the mutant in words."""
        after = "refused" if self.after is None else self.after.name
        return f"{self.machine} {self.state.name} {self.trigger.name} {after}"

    @contextmanager
    def alive(self) -> Generator[None]:
        """Let the declaration have this cell inside the ``with`` block."""
        row = _rows(self.machine)[self.state]
        sound = dict(row)
        self._write(self.after)
        try:
            yield
        finally:
            self._write(self.before)
            # Also in the order of the declaration, which the sentences of errors follow.
            row.clear()
            row.update(sound)

    def _write(self, after: Enum | None) -> None:
        rows = _rows(self.machine)
        if after is None:
            rows[self.state].pop(self.trigger, None)
        else:
            rows[self.state][self.trigger] = after
        if self.machine == "request":
            number = REQUEST.number[cast("RequestState", self.state)]
            edges = REQUEST.edges[cast("RequestTrigger", self.trigger)]
            edges[number] = ILLEGAL if after is None else _NUMBER[after]
        else:
            number = BATCH.number[cast("BatchState", self.state)]
            edges = BATCH.edges[cast("BatchTrigger", self.trigger)]
            edges[number] = ILLEGAL if after is None else _NUMBER[after]


_NUMBER: Final[Mapping[Enum, int]] = dict(chain(REQUEST.number.items(), BATCH.number.items()))

#: Mutants that behave in every respect as the sound table does, each with the reason.
EQUIVALENT: Final[Mapping[str, str]] = {}


def cells() -> list[Cell]:
    """Return every mutant of one cell, both tables, in the order of states and triggers."""
    found: list[Cell] = []
    for machine, states, triggers in (
        ("request", RequestState, RequestTrigger),
        ("batch", BatchState, BatchTrigger),
    ):
        rows = _rows(machine)
        for state in states:
            for trigger in triggers:
                before = rows[state].get(trigger)
                others: list[Enum | None] = [*states, None]
                found += [
                    Cell(machine, state, trigger, before, after)
                    for after in others
                    if after is not before
                ]
    return found


def hunt_cell(cell: Cell) -> Hunted:
    """Hunt one mutant: an edge that should be there by search, one that should not by force."""
    if cell.before is None:
        return _force(cell)
    witness = Witness()

    def explored() -> tuple[Failure | None, str, int]:
        states = 0
        options = Options(make_kernel=lambda config: WitnessedKernel(config, witness))
        for bounds in BOUNDS:
            with witness.watching():
                found = explore(bounds, options)
            states += found.states
            if found.violation is not None:
                sentence = found.violation.sentences[0]
                return (
                    Failure((_key(sentence),), sentence, "", len(found.violation.events)),
                    ("explorer"),
                    states,
                )
        return None, "explorer", states

    def walked() -> tuple[Failure | None, str, int]:
        with witness.watching():
            failure, tried = walk(witness, _SCENARIOS)
        return failure, "walk", tried

    return chase(cell.name, cell.alive, (explored, walked))


def walk(witness: Witness, scenarios: int) -> tuple[Failure | None, int]:
    """Walk under the eyes of ``witness`` until something is wrong; return that, and how far."""

    def make_bench(config: KernelConfig, model: HashModel) -> WitnessedBench:
        return WitnessedBench(config, model, witness)

    for number in range(scenarios):
        failure = play(draw(Random(number)), make_bench)  # noqa: S311 - repeatable, not secret
        if failure is not None:
            return failure, number + 1
    return None, scenarios


def asked(scenarios: int = _SCENARIOS // 2) -> set[tuple[Enum, Enum]]:
    """Return the edges that the sound kernel takes in all explorations and walks."""
    witness = Witness()
    options = Options(make_kernel=lambda config: WitnessedKernel(config, witness))
    with witness.watching():
        for bounds in BOUNDS:
            found = explore(bounds, options)
            if not found.passed:
                raise AssertionError(f"the sound kernel does not pass {bounds}: {found.stopped}")
        failure, _ = walk(witness, scenarios)
        if failure is not None:
            raise AssertionError(f"the sound kernel does not pass: {failure.sentence}")
    return witness.taken


def _force(cell: Cell) -> Hunted:
    """Force a trigger that no rule asks for on a request or batch in that state."""
    began = time.monotonic()
    with cell.alive():
        accepted = not (
            _request_refuses(cell) if cell.machine == "request" else _batch_refuses(cell)
        )
    what = f"a {cell.state.name} {cell.machine}"
    return Hunted(
        name=cell.name,
        keys=("force",) if accepted else (),
        sentence=f"{what} takes {cell.trigger.name}, which no rule ever asks of it",
        story="",
        search="force",
        tried=1,
        seconds=time.monotonic() - began,
    )


def _request_refuses(cell: Cell) -> bool:
    state = State(KernelConfig(num_blocks=1))
    seat = np.array([0])
    number = state.columns.state[seat] = _NUMBER[cell.state]
    try:
        state.move(seat, cast("RequestTrigger", cell.trigger))
    except IllegalTransition:
        return bool(state.columns.state[0] == number)
    return False


def _batch_refuses(cell: Cell) -> bool:
    kernel = Kernel(KernelConfig(num_blocks=1))
    kernel.step(RequestArrived(request_id="a", prompt_length=1, max_tokens=1, at=0, arrived_at=0))
    kernel.step(HostReady(at=0))
    (batch,) = kernel.snapshot().batches
    state = batch.state = cast("BatchState", cell.state)
    try:
        batch.move(cast("BatchTrigger", cell.trigger))
    except IllegalTransition:
        return batch.state is state
    return False


def _rows(machine: str) -> Rows:
    """Return the declaration as what it is underneath: dictionaries that can be written."""
    declared: object = REQUEST_ROWS if machine == "request" else BATCH_ROWS
    return cast("Rows", declared)


def _key(sentence: str) -> str:
    word = sentence.partition(" ")[0]
    if word.startswith("INV-"):
        return word
    if "Misnamed" in sentence:
        return "witness"
    return "kernel" if sentence.startswith("the kernel") else "progress"
