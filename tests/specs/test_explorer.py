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
    BatchPrepared,
    BatchRefused,
    Event,
    HostReady,
    RequestArrived,
    RequestCancelled,
)
from stepahead.kernel import Kernel
from stepahead.state import Snapshot, State
from stepahead.tables import BATCH_ROWS, REQUEST, REQUEST_ROWS, RequestTrigger, StateTable
from stepahead_models.journal import replay_journal
from stepahead_specs.explorer import (
    Actor,
    Bounds,
    Graph,
    Options,
    explore,
    report,
    summary,
    write_journal,
)
from stepahead_specs.explorer.behaviours import behaviour, difference
from stepahead_specs.explorer.bounds import executions, moves
from stepahead_specs.explorer.canonical import Form, Kept, canonical
from stepahead_specs.explorer.graph import Edge
from stepahead_specs.explorer.progress import stuck

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
    assert report(found).splitlines()[-1] == "not complete: stopped at 0 seconds, 1 states, depth 0"


def test_the_bounds_are_told_with_every_option_that_is_set() -> None:
    """Whoever reads a result sees what it holds for."""
    told = summary(Bounds(requests=3, blocks=5, prompts=(2,), budget=4, caching=True))
    expected = "3 requests; 5 blocks; 3 tokens; lookahead 1; prompts 2, 2, 2; budget 4; caching"
    assert told == expected


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

    def watched_next(table: StateTable[S, T], ident: str, state: S, trigger: T) -> Enum:
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


# -- what is left out of the canonical form -------------------------------------------------------


@pytest.mark.parametrize("tokens", [3, pytest.param(4, marks=pytest.mark.campaign)])
def test_the_remembered_row_set_changes_nothing(tokens: int) -> None:
    """States that differ in it alone go to the same states: kept or left out, the rest is equal."""
    bounds = Bounds(blocks=tokens + 1, tokens=tokens)
    without = explore(bounds).graph
    kept = explore(bounds, Options(steady=True)).graph
    assert len(kept.forms) > len(without.forms)
    assert {form[:-1] for form in kept.forms} == {form[:-1] for form in without.forms}
    assert _edges(kept) == _edges(without)


def _edges(graph: Graph) -> set[tuple[object, object]]:
    forms = graph.forms
    return {(forms[edge.source][:-1], forms[edge.target][:-1]) for edge in graph.edges}


def test_several_steps_at_once_lead_where_single_steps_lead() -> None:
    """Where the kernel offers a stretch, taking it reaches no state that single steps do not."""
    options = Options(steady=True, invariants=False)
    single = explore(Bounds(blocks=6, tokens=4), options)
    leaping = explore(Bounds(blocks=6, tokens=4, leaps=True), options)
    assert leaping.passed
    assert leaping.steps > single.steps
    assert set(leaping.graph.forms) == set(single.graph.forms)


def test_the_order_of_free_blocks_counts_only_with_a_cache() -> None:
    """After two cancels in either order the kernels differ; without a cache by names alone."""
    one, other = (_both_cancelled(order) for order in ((1, 2), (2, 1)))
    assert one.digest() != other.digest()
    renamed, ordered = Kept(), Kept(ordered=True)
    assert canonical(one.snapshot(), 2, renamed) == canonical(other.snapshot(), 2, renamed)
    assert canonical(one.snapshot(), 2, ordered) != canonical(other.snapshot(), 2, ordered)


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(refusals=True, failures=True),
        pytest.param(Bounds(prune=True, lookahead=2), marks=pytest.mark.campaign),
        Bounds(prompts=(3, 2), blocks=4, tokens=2, caching=True, refusals=True, failures=True),
        pytest.param(
            Bounds(prompts=(2, 3), blocks=3, tokens=3, block_size=2, caching=True),
            marks=pytest.mark.campaign,
        ),
    ],
    ids=summary,
)
def test_equal_forms_have_equal_futures(bounds: Bounds) -> None:
    """What a form leaves out influences nothing: up to four states of each form go on alike."""
    kernel = Kernel(bounds.config())
    kept = Kept(ordered=bounds.caching)
    line: list[tuple[Snapshot, int]] = [(kernel.snapshot(), 0)]
    futures: dict[Form, frozenset[tuple[str, Form]]] = {}
    met: dict[Form, set[str]] = {canonical(kernel.snapshot(), 0, kept): {kernel.digest()}}
    differing = 0
    for saved, arrived in line:
        kernel.restore(saved)
        future: set[tuple[str, Form]] = set()
        for move in moves(kernel, saved, bounds, arrived):
            kernel.restore(saved)
            kernel.step(move.event)
            after, count = kernel.snapshot(), arrived + isinstance(move.event, RequestArrived)
            form, digest = canonical(after, count, kept), kernel.digest()
            future.add((type(move.event).__name__, form))
            known = met.setdefault(form, set())
            if digest not in known and len(known) < 4:
                differing += bool(known)
                known.add(digest)
                line.append((after, count))
        before = futures.setdefault(canonical(saved, arrived, kept), frozenset(future))
        assert before == future
    assert differing > 100


def _both_cancelled(order: tuple[int, int]) -> Kernel:
    """Return a kernel after one batch of two equal prompts, whose clients leave in this order."""
    bounds = Bounds(blocks=6, prompts=(2,), caching=True, lookahead=0)
    kernel = Kernel(bounds.config())
    for number in range(2):
        kernel.step(bounds.arrival(number))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(next(executions(kernel.snapshot().batches[0])))
    for handle in order:
        name = bounds.arrival(handle - 1).request_id
        kernel.step(RequestCancelled(request_id=name, handle=handle, at=0))
    return kernel


def _no_fence(_state: State, _seat: int) -> int:
    """Take every row for one that is back."""
    return 0


def _no_room(_state: State, _lacking: int, _need: int) -> bool:
    """Find no victim, ever."""
    return False


# -- what it finds --------------------------------------------------------------------------------


def test_a_block_freed_too_early_is_found_in_a_short_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without fences a cancel frees what the batch may still write; the run is told and replays."""
    monkeypatch.setattr(State, "newest_row", _no_fence)
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


def test_a_kernel_that_accepts_what_cannot_have_happened_is_found() -> None:
    """With probing, a report about a batch that does not exist must be refused."""

    class Credulous(Kernel):
        def step(self, event: Event) -> tuple[Command, ...]:
            return () if isinstance(event, BatchRefused) else super().step(event)

    found = explore(Bounds(), Options(make_kernel=Credulous, probe=True))
    assert found.violation is not None
    assert found.violation.sentences == ["the event cannot have happened and is accepted"]


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


# -- progress -------------------------------------------------------------------------------------


def _graph(idle: list[bool], edges: list[tuple[int, int, Actor]]) -> Graph:
    return Graph(
        arrivals=[None] * len(idle), idle=idle, edges=[Edge(*edge, "", ()) for edge in edges]
    )


def test_an_end_that_only_a_client_can_leave_is_no_progress() -> None:
    """The trap: under fairness of everybody the client would have to cancel."""
    graph = _graph([True, False], [(0, 1, Actor.CLIENT), (1, 0, Actor.CLIENT)])
    found = stuck(graph)
    assert found is not None
    assert (found.state, found.sentence) == (
        1,
        "something is live or outstanding, and no move of CPU or NPU changes anything",
    )


def test_a_move_that_changes_nothing_is_no_progress() -> None:
    """A host that is ready for ever does not help."""
    found = stuck(_graph([True, False], [(0, 1, Actor.CLIENT), (1, 1, Actor.CPU)]))
    assert found is not None
    assert found.state == 1


def test_a_round_from_which_nothing_drains_is_found() -> None:
    """Two states that lead to each other only."""
    edges = [(0, 1, Actor.CLIENT), (1, 2, Actor.CPU), (2, 1, Actor.NPU)]
    found = stuck(_graph([True, False, False], edges))
    assert found is not None
    assert found.sentence == "no moves of CPU and NPU lead to an idle state"


def test_a_round_that_could_be_left_is_found_too() -> None:
    """Draining is possible here, but nothing makes it happen."""
    edges = [
        (0, 1, Actor.CLIENT),
        (1, 2, Actor.CPU),
        (2, 1, Actor.NPU),
        (2, 0, Actor.NPU),
    ]
    found = stuck(_graph([True, False, False], edges))
    assert found is not None
    assert found.sentence == ("CPU and NPU may go round for ever: 2 moves lead back to this state")


def test_faults_are_not_counted_on() -> None:
    """A batch that could be refused is still to be built."""
    edges = [(0, 1, Actor.CLIENT), (1, 2, Actor.FAULT), (1, 0, Actor.CPU), (2, 0, Actor.NPU)]
    assert stuck(_graph([True, False, False], edges)) is None


# -- what a client observes -----------------------------------------------------------------------


@pytest.mark.parametrize("handle", [1, 2])
@pytest.mark.parametrize("lookahead", [1, 2])
def test_a_client_cannot_tell_overlap_from_eager(handle: int, lookahead: int) -> None:
    """Per request, both loops have the same traces of arrive, tokens and end."""
    eager, overlap = (behaviour(Bounds(lookahead=depth), handle) for depth in (0, lookahead))
    compared, trace = difference(eager, overlap)
    assert trace is None
    assert compared == 11


@pytest.mark.parametrize("handle", [1, 2, 3])
@pytest.mark.campaign
def test_a_client_of_three_cannot_tell_overlap_from_eager(handle: int) -> None:
    """The same with three requests, five blocks and four tokens."""
    eager, overlap = (
        behaviour(Bounds(requests=3, blocks=5, tokens=4, lookahead=depth), handle)
        for depth in (0, 1)
    )
    assert difference(eager, overlap) == (14, None)


def test_a_different_behaviour_is_told_by_its_shortest_trace() -> None:
    """A request that may have one token more."""
    short, long = (behaviour(Bounds(requests=1, tokens=tokens), 1) for tokens in (2, 3))
    _, trace = difference(short, long)
    assert trace == ["arrive", "token", "token", "end abort (only the second)"]


def test_a_behaviour_of_half_an_exploration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not seen cannot be compared."""
    monkeypatch.setattr(State, "newest_row", _no_fence)
    with pytest.raises(ValueError, match=r"^the exploration of .* is not complete: a violation$"):
        behaviour(Bounds(), 1)
