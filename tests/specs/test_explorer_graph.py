"""What the explored graph says: progress, and what one client observes."""

import pytest

from stepahead.state import State
from stepahead_specs.explorer import (
    Actor,
    Bounds,
    Graph,
)
from stepahead_specs.explorer.behaviours import behaviour, difference
from stepahead_specs.explorer.graph import Edge
from stepahead_specs.explorer.progress import stuck


def _no_fence(_state: State, _seat: int) -> int:
    """Take every row for one that is back."""
    return 0


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


@pytest.mark.parametrize("handle", [1, 2])
@pytest.mark.parametrize("drafts", [1, 2])
def test_a_client_cannot_tell_that_tokens_were_guessed(handle: int, drafts: int) -> None:
    """Per request, the traces with drafts, right or wrong, are those without."""
    plain, guessed = (
        behaviour(Bounds(blocks=4, lookahead=0, drafts=width), handle) for width in (0, drafts)
    )
    compared, trace = difference(plain, guessed)
    assert trace is None
    assert compared == 10


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


@pytest.mark.interpreted  # it replaces a method
def test_a_behaviour_of_half_an_exploration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not seen cannot be compared."""
    monkeypatch.setattr(State, "newest_row", _no_fence)
    with pytest.raises(ValueError, match=r"^the exploration of .* is not complete: a violation$"):
        behaviour(Bounds(), 1)
