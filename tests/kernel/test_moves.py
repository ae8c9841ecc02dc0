"""Requests with a seat follow the declared table, cell by cell, one or many at a time."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from stepahead import IllegalTransition, KernelConfig
from stepahead.admission import arrive
from stepahead.arrays import EMPTY
from stepahead.events import RequestArrived
from stepahead.state import State
from stepahead.tables import REQUEST, REQUEST_ROWS, RequestState, RequestTrigger

CELLS = list(product(RequestState, RequestTrigger))


def seated(*states: RequestState) -> State:
    """Return a kernel's state with requests 1, 2, ... in the first seats, each in its state."""
    state = State(KernelConfig(num_blocks=8))
    for number, wanted in enumerate(states):
        name = f"r{number}"
        arrive(
            state,
            RequestArrived(request_id=name, prompt_length=1, max_tokens=2, at=0, arrived_at=0),
        )
        stay = state.live[number + 1]
        state.waiting.remove(stay)
        assert state.seat(stay, EMPTY) == number
        state.columns.state[number] = REQUEST.number[wanted]
    return state


def states_of(state: State, count: int) -> list[RequestState]:
    """Return the states of the first seats."""
    return [REQUEST.states[number] for number in state.columns.state[:count].tolist()]


@pytest.mark.parametrize(("before", "trigger"), CELLS)
def test_one_request_moves_as_the_table_says_or_not_at_all(
    before: RequestState, trigger: RequestTrigger
) -> None:
    """The sentence names the request by its handle, what it is in, and what it would take."""
    after = REQUEST_ROWS[before].get(trigger)
    for move in ("move", "move_one"):
        state = seated(RequestState.QUEUED, before)
        seats = np.array([1]) if move == "move" else 1
        if after is not None:
            getattr(state, move)(seats, trigger)
            assert states_of(state, 2) == [RequestState.QUEUED, after]
            continue
        with pytest.raises(IllegalTransition) as caught:
            getattr(state, move)(seats, trigger)
        assert str(caught.value) == str(REQUEST.refusal(2, before, trigger))
        assert states_of(state, 2) == [RequestState.QUEUED, before]


@pytest.mark.parametrize("trigger", RequestTrigger)
def test_many_requests_move_all_or_none(trigger: RequestTrigger) -> None:
    """One that cannot keeps the others where they are; nobody moves nobody."""
    able = [before for before in RequestState if trigger in REQUEST_ROWS[before]]
    unable = [before for before in RequestState if trigger not in REQUEST_ROWS[before]]
    state = seated(*able)
    state.move(np.arange(len(able)), trigger)
    assert states_of(state, len(able)) == [REQUEST_ROWS[before][trigger] for before in able]
    for other in unable:
        mixed = [*able, other, *able]
        state = seated(*mixed)
        with pytest.raises(IllegalTransition) as caught:
            state.move(np.arange(len(mixed)), trigger)
        assert str(caught.value) == str(REQUEST.refusal(len(able) + 1, other, trigger))
        assert states_of(state, len(mixed)) == mixed
    state.move(np.array([], dtype=np.int64), trigger)
