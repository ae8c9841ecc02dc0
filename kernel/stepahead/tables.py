"""The two state machines, declared once as data, and their compilation for the hot path.

How to read a table: a row for every state, an edge for every trigger that the state accepts, an
empty row for a terminal state. There are no conditions and no callbacks; guards live with the code
that gives the trigger. A state is named by what the trace and the documents call it.

Edges that one may miss, and why they are absent:

* A DISPATCHED batch takes neither Refuse nor Abandon: the NPU owns it, so a cancel only discards
  output, and only the device itself can fail it.
* A request that is PREPARED or DISPATCHED cannot be preempted: its rows are outstanding, so the
  victim waits (`Intent.PREEMPT`) until it is FILLED.
* A terminal request takes nothing. Its outstanding rows (draining) are the batches' business.
* A request with several outstanding rows follows its oldest row not yet filled, so a younger row
  fires no trigger of its own when it is selected; at Fill, Select moves the request on to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeVar

import numpy as np

from stepahead.arrays import Ints, quick
from stepahead.errors import IllegalTransition, TableError


class Symbol(Enum):
    """An Enum for hot dictionaries: members are singletons, so they hash by identity, in C."""

    __hash__ = object.__hash__


class RequestState(Symbol):
    """Where a request is; values are the words of the trace."""

    QUEUED = "queued"
    PREPARED = "prepared"
    DISPATCHED = "dispatched"
    FILLED = "filled"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class RequestTrigger(Symbol):
    """What moves a request along an edge."""

    SELECT = "select"
    WITHDRAW = "withdraw"
    RESTORE = "restore"
    DISPATCH = "dispatch"
    FILL = "fill"
    PREEMPT = "preempt"
    FINISH = "finish"
    CANCEL = "cancel"
    FAIL = "fail"


class BatchState(Symbol):
    """Where a batch is."""

    QUEUED = "queued"
    PREPARED = "prepared"
    DISPATCHED = "dispatched"
    FILLED = "filled"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class BatchTrigger(Symbol):
    """What moves a batch along an edge."""

    PREPARE = "prepare"
    REFUSE = "refuse"
    ABANDON = "abandon"
    DISPATCH = "dispatch"
    FILL = "fill"
    RETIRE = "retire"
    FAIL = "fail"


_Request = RequestState
_ENDS: Final = {RequestTrigger.CANCEL: _Request.CANCELLED, RequestTrigger.FAIL: _Request.CANCELLED}

REQUEST_ROWS: Final[Mapping[RequestState, Mapping[RequestTrigger, RequestState]]] = {
    _Request.QUEUED: {RequestTrigger.SELECT: _Request.PREPARED, **_ENDS},
    _Request.PREPARED: {
        RequestTrigger.DISPATCH: _Request.DISPATCHED,
        RequestTrigger.WITHDRAW: _Request.QUEUED,
        RequestTrigger.RESTORE: _Request.FILLED,
        **_ENDS,
    },
    _Request.DISPATCHED: {RequestTrigger.FILL: _Request.FILLED, **_ENDS},
    _Request.FILLED: {
        RequestTrigger.SELECT: _Request.PREPARED,
        RequestTrigger.PREEMPT: _Request.QUEUED,
        RequestTrigger.FINISH: _Request.COMPLETED,
        **_ENDS,
    },
    _Request.COMPLETED: {},
    _Request.CANCELLED: {},
}

_Batch = BatchState
BATCH_ROWS: Final[Mapping[BatchState, Mapping[BatchTrigger, BatchState]]] = {
    _Batch.QUEUED: {
        BatchTrigger.PREPARE: _Batch.PREPARED,
        BatchTrigger.REFUSE: _Batch.CANCELLED,
        BatchTrigger.FAIL: _Batch.CANCELLED,
    },
    _Batch.PREPARED: {
        BatchTrigger.DISPATCH: _Batch.DISPATCHED,
        BatchTrigger.ABANDON: _Batch.CANCELLED,
        BatchTrigger.FAIL: _Batch.CANCELLED,
    },
    _Batch.DISPATCHED: {BatchTrigger.FILL: _Batch.FILLED, BatchTrigger.FAIL: _Batch.CANCELLED},
    _Batch.FILLED: {BatchTrigger.RETIRE: _Batch.COMPLETED},
    _Batch.COMPLETED: {},
    _Batch.CANCELLED: {},
}

#: Event -> what it may fire, for readers and for the generated reference.
TRIGGERS_OF_EVENT: Final[
    Mapping[str, tuple[tuple[RequestTrigger, ...], tuple[BatchTrigger, ...]]]
] = {
    "RequestArrived": ((), ()),
    "RequestCancelled": ((RequestTrigger.CANCEL,), ()),
    "HostReady": (
        (
            RequestTrigger.SELECT,
            RequestTrigger.PREEMPT,
            RequestTrigger.WITHDRAW,
            RequestTrigger.RESTORE,
        ),
        (BatchTrigger.RETIRE, BatchTrigger.ABANDON),
    ),
    "Woke": ((RequestTrigger.SELECT, RequestTrigger.PREEMPT), ()),
    "BatchPrepared": ((RequestTrigger.DISPATCH,), (BatchTrigger.PREPARE, BatchTrigger.DISPATCH)),
    "BatchRefused": ((RequestTrigger.WITHDRAW, RequestTrigger.RESTORE), (BatchTrigger.REFUSE,)),
    "BatchExecuted": (
        (
            RequestTrigger.FILL,
            RequestTrigger.SELECT,
            RequestTrigger.DISPATCH,
            RequestTrigger.FINISH,
            RequestTrigger.PREEMPT,
        ),
        (BatchTrigger.FILL, BatchTrigger.DISPATCH, BatchTrigger.ABANDON),
    ),
    "BatchFailed": (
        (RequestTrigger.FAIL, RequestTrigger.DISPATCH),
        (BatchTrigger.FAIL, BatchTrigger.DISPATCH),
    ),
    "TransferDone": ((RequestTrigger.DISPATCH,), (BatchTrigger.DISPATCH, BatchTrigger.ABANDON)),
    "TransferFailed": (
        (
            RequestTrigger.WITHDRAW,
            RequestTrigger.FILL,
            RequestTrigger.PREEMPT,
            RequestTrigger.DISPATCH,
        ),
        (BatchTrigger.DISPATCH, BatchTrigger.ABANDON),
    ),
    "PauseRequested": ((), ()),
    "ResumeRequested": ((), ()),
    "CacheResetRequested": ((), ()),
}

ILLEGAL: Final = -1


S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)


class StateTable(Generic[S, T]):
    """A declared table, checked, and compiled to integers.

    States and triggers are numbered in the order of their Enum. ``edges[trigger][state]`` is the
    number of the next state or `ILLEGAL`: an array per trigger, of the type of the columns, since a
    scatter that casts costs six times as much.

    Raises:
        TableError: a state has no row, or an edge leads to a state that is not declared.
    """

    def __init__(
        self, name: str, states: type[S], triggers: type[T], rows: Mapping[S, Mapping[T, S]]
    ) -> None:
        self.name = name
        self.states: tuple[S, ...] = tuple(states)
        self.triggers: tuple[T, ...] = tuple(triggers)
        self.rows = rows
        if missing := [state.name for state in self.states if state not in rows]:
            raise TableError(
                f"table {name} has no row for {', '.join(missing)}; an empty row is terminal"
            )
        self.number = {state: index for index, state in enumerate(self.states)}
        self.edges = {trigger: self._column(trigger) for trigger in self.triggers}

    def _column(self, trigger: T) -> Ints:
        after = (self.rows[state].get(trigger) for state in self.states)
        return quick(np.array([ILLEGAL if s is None else self.number[s] for s in after]))

    def next_state(self, ident: int, state: S, trigger: T) -> S:
        """Return the state after ``trigger``.

        Raises:
            IllegalTransition: the table has no such edge.
        """
        after = self.rows[state].get(trigger)
        if after is None:
            raise self.refusal(ident, state, trigger)
        return after

    def refusal(self, ident: int, state: S, trigger: T) -> IllegalTransition:
        """Return the error that names the machine, its state, the trigger and the ways out."""
        return IllegalTransition(
            machine=self.name,
            ident=str(ident),
            state=state.name,
            trigger=trigger.name,
            accepts=tuple(option.name for option in self.rows[state]),
        )


REQUEST: Final = StateTable("request", RequestState, RequestTrigger, REQUEST_ROWS)
BATCH: Final = StateTable("batch", BatchState, BatchTrigger, BATCH_ROWS)
