"""The bounded explorer: what it covers, what it finds, and that it never passes unfinished."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TypeVar

import pytest

from stepahead import planning
from stepahead.arrays import Ints
from stepahead.commands import Command, PrepareBatch
from stepahead.config import KernelConfig
from stepahead.events import (
    BatchRefused,
    Event,
    RequestCancelled,
)
from stepahead.kernel import Kernel
from stepahead.requests import Stay
from stepahead.state import State
from stepahead.tables import BATCH_ROWS, REQUEST, REQUEST_ROWS, RequestTrigger, StateTable
from stepahead_models.journal import replay_journal
from stepahead_specs.explorer import (
    Actor,
    Bounds,
    Options,
    explore,
    report,
    summary,
    write_journal,
)

S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)

#: States, steps and edges of small configurations. A change is either a change of what the kernel
#: can do, which wants a reason, or a change of the canonical form.
PINNED = {
    Bounds(lookahead=0): (82, 232, 190),
    Bounds(lookahead=1): (198, 606, 542),
    Bounds(lookahead=2): (273, 842, 767),
    Bounds(lookahead=3): (273, 842, 767),
    Bounds(refusals=True, failures=True): (236, 1075, 990),
    Bounds(prune=True, refusals=True, failures=True): (245, 1121, 1008),
    Bounds(prompts=(2, 3), blocks=4, tokens=2, budget=2): (95, 254, 220),
    Bounds(prompts=(3, 2), blocks=4, tokens=2, row_tokens=1, prefill_first=True): (190, 520, 467),
    Bounds(prompts=(3, 2), blocks=4, tokens=2, caching=True, refusals=True): (138, 377, 327),
    Bounds(requests=3, blocks=4, rows=1, prune=True): (390, 1289, 1172),
    Bounds(blocks=4, lookahead=0, drafts=2): (101, 286, 226),
    Bounds(blocks=3, block_size=2, tokens=4, lookahead=0, drafts=2, refusals=True, failures=True): (
        (190, 815, 660)
    ),
    Bounds(prompts=(2,), blocks=4, lookahead=0, drafts=1, budget=3, caching=True): (153, 376, 292),
}


@pytest.mark.parametrize("bounds", PINNED, ids=summary)
def test_small_configurations_are_explored_completely(bounds: Bounds) -> None:
    """Every interleaving is sound, and there are exactly as many as there were."""
    found = explore(bounds, Options(probe=True))
    assert found.passed, report(found)
    assert (found.states, found.steps, found.edges) == PINNED[bounds]


@pytest.mark.parametrize(
    ("bounds", "size"),
    [
        (Bounds(requests=3, blocks=5, tokens=4), (1760, 6460, 5904)),
        (
            Bounds(
                requests=3,
                blocks=5,
                tokens=4,
                lookahead=2,
                prune=True,
                refusals=True,
                failures=True,
            ),
            None,
        ),
        (Bounds(requests=3, blocks=4, lookahead=2, priorities=(1, 0)), (1309, 4702, 4292)),
        (
            Bounds(requests=3, blocks=5, tokens=4, lookahead=0, drafts=2, failures=True),
            None,
        ),
        (
            Bounds(
                requests=3,
                blocks=4,
                tokens=5,
                block_size=2,
                budget=5,
                prompts=(1, 2, 3),
                lookahead=0,
                drafts=3,
            ),
            None,
        ),
        (Bounds(requests=3, blocks=3, block_size=2, tokens=4, prompts=(1, 2, 3)), None),
        (Bounds(requests=3, blocks=5, tokens=2, prompts=(3, 2), caching=True, failures=True), None),
    ],
    ids=lambda value: summary(value) if isinstance(value, Bounds) else "",
)
@pytest.mark.campaign
def test_larger_configurations_are_explored_completely(
    bounds: Bounds, size: tuple[int, int, int] | None
) -> None:
    """The same at sizes that take longer than a commit should wait."""
    found = explore(bounds)
    assert found.passed, report(found)
    assert size in (None, (found.states, found.steps, found.edges))


# -- what is claimed ------------------------------------------------------------------------------


def test_an_unfinished_search_is_no_pass() -> None:
    """Beyond the states allowed the search stops, says where, and does not pass."""
    found = explore(Bounds(), Options(states_max=50))
    assert not found.passed
    assert report(found).splitlines()[-1] == "not complete: stopped at 51 states, depth 5"


def test_a_search_out_of_time_is_no_pass() -> None:
    """Without a second to spend nothing is explored, and nothing passes."""
    found = explore(Bounds(), Options(seconds_max=0))
    assert not found.passed
    assert report(found).splitlines()[-1] == "not complete: stopped at 0 seconds, 1 state, depth 0"


def test_the_bounds_are_told_with_every_option_that_is_set() -> None:
    """Whoever reads a result sees what it holds for."""
    told = summary(Bounds(requests=3, blocks=5, prompts=(2,), budget=4, caching=True))
    expected = "3 requests; 5 blocks; 3 tokens; lookahead 1; prompts 2, 2, 2; budget 4; caching"
    assert told == expected


@pytest.mark.interpreted  # it replaces a function
def test_every_declared_edge_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edge of both tables is walked somewhere within small bounds: none is there for nothing.

    That every other (state, trigger) pair is refused is tested with the tables.
    """
    taken: set[tuple[str, str, str]] = set()
    move = State.move
    next_state: Callable[..., Enum] = StateTable.next_state  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def watched_move(state: State, seats: Ints, trigger: RequestTrigger) -> None:
        numbers: list[int] = state.columns.state[seats].tolist()
        for number in numbers:
            taken.add(("request", REQUEST.states[number].name, trigger.name))
        move(state, seats, trigger)

    def watched_next(table: StateTable[S, T], ident: int, state: S, trigger: T) -> Enum:
        machine: str = table.name
        taken.add((machine, state.name, trigger.name))
        return next_state(table, ident, state, trigger)

    monkeypatch.setattr(State, "move", watched_move)
    monkeypatch.setattr(StateTable, "next_state", watched_next)
    found = explore(Bounds(refusals=True, failures=True, prune=True), Options(invariants=False))
    declared = {
        (name, state.name, trigger.name)
        for name, rows in (("request", REQUEST_ROWS), ("batch", BATCH_ROWS))
        for state, row in rows.items()
        for trigger in row
    }
    assert found.passed
    assert taken == declared


_vacate = State.vacate


def _no_fence(state: State, stay: Stay, _fence: int) -> None:
    """Take every row for one that is back."""
    _vacate(state, stay, 0)


def _no_room(_state: State, _lacking: int, _need: int) -> bool:
    """Find no victim, ever."""
    return False


# -- what it finds --------------------------------------------------------------------------------


@pytest.mark.interpreted  # it replaces a function
def test_a_block_freed_too_early_is_found_in_a_short_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without fences a cancel frees what the batch may still write; the run is told and replays."""
    monkeypatch.setattr(State, "vacate", _no_fence)
    bounds = Bounds()
    found = explore(bounds)
    assert not found.passed
    assert found.violation is not None
    assert len(found.violation.events) == 3
    told = report(found).splitlines()
    assert told[2:] == [
        "violated after 3 events:",
        (
            "  INV-3 (what a batch may touch has no other owner) at step 3: block 0 may be handed "
            "out, and the row of request 1 in outstanding batch 1 touches it"
        ),
        "the shortest run:",
        "   1  cpu .     npu .     'a' arrives (1 prompt, at most 3 output) -> 'a' waits as R1",
        "   2  cpu B1    npu .     HostReady -> select B1: R1[0]* +blocks [0]",
        "   3  cpu B1    npu .     'a' is cancelled (R1) -> R1 ends by abort after 0 tokens",
        "not complete: stopped at the violation",
    ]
    path = tmp_path / "run.jsonl"
    write_journal(found.violation, bounds, path)
    assert replay_journal(path).lines == 3


@pytest.mark.interpreted  # it replaces a function
def test_starvation_is_found_although_a_cancel_would_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without preemption two requests wait for each other's blocks; clients owe nobody a cancel.

    No invariant of a single state shows it before nothing moves any more.
    """
    monkeypatch.setattr(planning, "_make_room", _no_room)
    found = explore(Bounds(), Options(invariants=False))
    assert found.violation is not None
    assert found.violation.sentences == [
        "something is live or outstanding, and no move of CPU or NPU changes anything"
    ]
    machine_moves = {edge.actor for edge in found.graph.edges} - {Actor.CLIENT}
    assert machine_moves == {Actor.CPU, Actor.NPU}


@pytest.mark.interpreted  # its kernel is a subclass
def test_a_kernel_that_raises_is_found() -> None:
    """An exception is a violation like any other, with the run that leads to it."""

    class Fragile(Kernel):
        def step(self, event: Event) -> tuple[Command, ...]:
            if isinstance(event, RequestCancelled):
                raise KeyError(event.request_id)
            return super().step(event)

    found = explore(Bounds(), Options(make_kernel=Fragile))
    assert found.violation is not None
    assert found.violation.sentences == ["the kernel raises KeyError: 'a'"]
    assert len(found.violation.events) == len(found.violation.journal) == 2


@pytest.mark.interpreted  # its kernel is a subclass
def test_a_kernel_that_accepts_what_cannot_have_happened_is_found() -> None:
    """With probing, a report about a batch that does not exist must be refused."""

    class Credulous(Kernel):
        def step(self, event: Event) -> tuple[Command, ...]:
            return () if isinstance(event, BatchRefused) else super().step(event)

    found = explore(Bounds(), Options(make_kernel=Credulous, probe=True))
    assert found.violation is not None
    assert found.violation.sentences == ["the event cannot have happened and is accepted"]


@pytest.mark.interpreted  # its kernel is a subclass
def test_a_kernel_that_writes_into_its_commands_is_found() -> None:
    """Arrays that were given to the host are the host's."""

    class Scribbler(Kernel):
        def __init__(self, config: KernelConfig) -> None:
            super().__init__(config)
            self.last: PrepareBatch | None = None

        def step(self, event: Event) -> tuple[Command, ...]:
            if self.last is not None:
                self.last.positions[:] = 0
            commands = super().step(event)
            self.last = next((c for c in commands if isinstance(c, PrepareBatch)), None)
            return commands

    found = explore(Bounds(), Options(make_kernel=Scribbler))
    assert found.violation is not None
    assert found.violation.sentences == [
        "the kernel raises ValueError: assignment destination is read-only"
    ]
