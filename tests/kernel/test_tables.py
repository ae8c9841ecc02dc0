"""The two state tables: complete, compiled without change, and equal to an independent library."""

from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import TypeAlias

import numpy as np
import pytest

from stepahead.errors import IllegalTransition, TableError
from stepahead.tables import (
    BATCH,
    BATCH_ROWS,
    ILLEGAL,
    REQUEST,
    REQUEST_ROWS,
    TRIGGERS_OF_EVENT,
    BatchState,
    BatchTrigger,
    RequestState,
    RequestTrigger,
    StateTable,
)
from stepahead_specs.lockstep import Lockstep

AnyTable: TypeAlias = (
    StateTable[RequestState, RequestTrigger] | StateTable[BatchState, BatchTrigger]
)

REQUEST_PAIRS = list(product(RequestState, RequestTrigger))
BATCH_PAIRS = list(product(BatchState, BatchTrigger))


def _name(value: Enum) -> str:
    return value.name


@pytest.mark.parametrize(("state", "trigger"), REQUEST_PAIRS, ids=_name)
def test_every_request_pair_moves_or_raises_without_a_trace(
    state: RequestState, trigger: RequestTrigger
) -> None:
    """A declared edge is followed; every other pair raises and leaves the table as it was."""
    declared = {s: dict(row) for s, row in REQUEST_ROWS.items()}
    expected = REQUEST_ROWS[state].get(trigger)
    if expected is None:
        with pytest.raises(IllegalTransition):
            REQUEST.next_state(7, state, trigger)
    else:
        assert REQUEST.next_state(7, state, trigger) is expected
    assert declared == REQUEST_ROWS


@pytest.mark.parametrize(("state", "trigger"), BATCH_PAIRS, ids=_name)
def test_every_batch_pair_moves_or_raises_without_a_trace(
    state: BatchState, trigger: BatchTrigger
) -> None:
    """A declared edge is followed; every other pair raises and leaves the table as it was."""
    declared = {s: dict(row) for s, row in BATCH_ROWS.items()}
    expected = BATCH_ROWS[state].get(trigger)
    if expected is None:
        with pytest.raises(IllegalTransition):
            BATCH.next_state(7, state, trigger)
    else:
        assert BATCH.next_state(7, state, trigger) is expected
    assert declared == BATCH_ROWS


@pytest.mark.parametrize(("state", "trigger"), REQUEST_PAIRS, ids=_name)
def test_compiled_request_cell_equals_the_declared_one(
    state: RequestState, trigger: RequestTrigger
) -> None:
    """The integer in the compiled column is the declared next state, or the illegal mark."""
    declared = REQUEST_ROWS[state].get(trigger)
    cell = int(REQUEST.edges[trigger][list(RequestState).index(state)])
    assert cell == (ILLEGAL if declared is None else list(RequestState).index(declared))


@pytest.mark.parametrize(("state", "trigger"), BATCH_PAIRS, ids=_name)
def test_compiled_batch_cell_equals_the_declared_one(
    state: BatchState, trigger: BatchTrigger
) -> None:
    """The integer in the compiled column is the declared next state, or the illegal mark."""
    declared = BATCH_ROWS[state].get(trigger)
    cell = int(BATCH.edges[trigger][list(BatchState).index(state)])
    assert cell == (ILLEGAL if declared is None else list(BatchState).index(declared))


@pytest.mark.parametrize(("state", "trigger"), REQUEST_PAIRS, ids=_name)
def test_request_table_agrees_with_the_transitions_library(
    state: RequestState, trigger: RequestTrigger
) -> None:
    """A machine of the transitions library, built from the same rows, moves or refuses alike."""
    lockstep: Lockstep[int, RequestState, RequestTrigger]
    lockstep = Lockstep("request", REQUEST_ROWS, state)
    column = int(REQUEST.edges[trigger][list(RequestState).index(state)])
    refused = lockstep.fire(7, trigger)
    assert (refused is None) == (column != ILLEGAL)
    after = state if column == ILLEGAL else list(RequestState)[column]
    assert lockstep.state(7) == after.name


@pytest.mark.parametrize(("state", "trigger"), BATCH_PAIRS, ids=_name)
def test_batch_table_agrees_with_the_transitions_library(
    state: BatchState, trigger: BatchTrigger
) -> None:
    """A machine of the transitions library, built from the same rows, moves or refuses alike."""
    lockstep: Lockstep[int, BatchState, BatchTrigger]
    lockstep = Lockstep("batch", BATCH_ROWS, state)
    column = int(BATCH.edges[trigger][list(BatchState).index(state)])
    refused = lockstep.fire(7, trigger)
    assert (refused is None) == (column != ILLEGAL)
    after = state if column == ILLEGAL else list(BatchState)[column]
    assert lockstep.state(7) == after.name


@pytest.mark.parametrize("table", [REQUEST, BATCH], ids=["request", "batch"])
def test_columns_are_integers_of_one_cell_per_state(table: AnyTable) -> None:
    """A column can be indexed by a whole column of states."""
    for column in table.edges.values():
        assert column.dtype == np.int64
        assert column.shape == (len(table.states),)


def test_only_the_two_ends_are_terminal_in_both_tables() -> None:
    """COMPLETED and CANCELLED have empty rows, and no other state has."""
    requests = {state.name for state, row in REQUEST_ROWS.items() if not row}
    batches = {state.name for state, row in BATCH_ROWS.items() if not row}
    assert requests == {"COMPLETED", "CANCELLED"}
    assert batches == {"COMPLETED", "CANCELLED"}


def test_every_live_request_can_be_cancelled_and_failed() -> None:
    """A client may leave and a device may die at any moment of a request's life."""
    for state, row in REQUEST_ROWS.items():
        if row:
            assert row[RequestTrigger.CANCEL] is RequestState.CANCELLED, state
            assert row[RequestTrigger.FAIL] is RequestState.CANCELLED, state


def test_every_state_is_reached_and_every_trigger_used() -> None:
    """No state is dead weight, no trigger is a word without an edge."""
    request_ends = {after for row in REQUEST_ROWS.values() for after in row.values()}
    batch_ends = {after for row in BATCH_ROWS.values() for after in row.values()}
    assert request_ends == set(RequestState)
    assert batch_ends | {BatchState.QUEUED} == set(BatchState)
    assert {t for row in REQUEST_ROWS.values() for t in row} == set(RequestTrigger)
    assert {t for row in BATCH_ROWS.values() for t in row} == set(BatchTrigger)


def test_every_trigger_is_fired_by_some_event() -> None:
    """The table of events names a cause for every trigger of both machines."""
    requests = {t for fired, _ in TRIGGERS_OF_EVENT.values() for t in fired}
    batches = {t for _, fired in TRIGGERS_OF_EVENT.values() for t in fired}
    assert requests == set(RequestTrigger)
    assert batches | {BatchTrigger.ABANDON} == set(BatchTrigger)


def test_error_names_machine_state_trigger_and_ways_out() -> None:
    """The sentence of an illegal move says who, where, what, and what would be accepted."""
    with pytest.raises(IllegalTransition) as caught:
        BATCH.next_state(7, BatchState.DISPATCHED, BatchTrigger.REFUSE)
    assert (
        str(caught.value) == "batch 7 is DISPATCHED and cannot take REFUSE; it accepts FILL, FAIL"
    )


def test_error_of_an_ended_machine_says_so() -> None:
    """A terminal state offers no way out, and the sentence says why."""
    with pytest.raises(IllegalTransition) as caught:
        REQUEST.next_state(3, RequestState.COMPLETED, RequestTrigger.CANCEL)
    assert (
        str(caught.value)
        == "request 3 is COMPLETED and cannot take CANCEL; it accepts nothing, it has ended"
    )


def test_a_table_without_a_row_for_a_state_is_refused() -> None:
    """A forgotten row is an error of the declaration, named at construction."""
    rows: dict[BatchState, Mapping[BatchTrigger, BatchState]] = {
        state: row for state, row in BATCH_ROWS.items() if state is not BatchState.FILLED
    }
    with pytest.raises(TableError) as caught:
        StateTable("batch", BatchState, BatchTrigger, rows)
    assert str(caught.value) == "table batch has no row for FILLED; an empty row is terminal"
    del rows[BatchState.QUEUED]
    with pytest.raises(TableError) as caught:
        StateTable("batch", BatchState, BatchTrigger, rows)
    assert (
        str(caught.value) == "table batch has no row for QUEUED, FILLED; an empty row is terminal"
    )
