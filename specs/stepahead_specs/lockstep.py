"""An independent run of the declared state tables by the `transitions` library.

One `transitions.Machine` is built from the same rows that the kernel compiles, with
``auto_transitions`` off, and one `Shadow` per request or batch walks it in lockstep. That checks
the *compilation* of a table and that every change of state went along a declared edge. It says
nothing about whether the table is right: a wrong table is caught by behaviour.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Generic, TypeVar

from transitions import Machine, MachineError

S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)
K = TypeVar("K", bound=Hashable)


class Shadow:
    """One walker; ``state`` is the name of its present state, written by the library alone."""

    state: str


class Lockstep(Generic[K, S, T]):
    """Walkers by key over one declared table.

    Args:
        name: what a walker is, for sentences ("request", "batch").
        rows: the declaration: state -> trigger -> next state.
        initial: where a new walker stands.
    """

    def __init__(self, name: str, rows: Mapping[S, Mapping[T, S]], initial: S) -> None:
        self.name = name
        self.shadows: dict[K, Shadow] = {}
        #: Declared edges that were walked, as (state, trigger) names.
        self.taken: set[tuple[str, str]] = set()
        self._machine = Machine(
            model=None,
            states=[state.name for state in rows],
            transitions=[
                [trigger.name, state.name, after.name]
                for state, row in rows.items()
                for trigger, after in row.items()
            ],
            initial=initial.name,
            auto_transitions=False,
        )

    def state(self, key: K) -> str:
        """Return the name of the state of walker ``key``; a new walker stands at the start."""
        return self._shadow(key).state

    def fire(self, key: K, trigger: T) -> str | None:
        """Walk ``key`` along ``trigger``; return None, or one sentence if there is no such edge."""
        shadow = self._shadow(key)
        before = shadow.state
        refusal = f"{self.name} {key} is {before} and no declared edge takes {trigger.name}"
        event = self._machine.events.get(trigger.name)
        if event is None:
            return refusal
        try:
            event.trigger(shadow)
        except MachineError:
            return refusal
        self.taken.add((before, trigger.name))
        return None

    def compare(self, key: K, state: str) -> str | None:
        """Return one sentence if the scheduler's ``state`` of ``key`` is not the walker's."""
        shadow = self._shadow(key)
        if shadow.state == state:
            return None
        return (
            f"{self.name} {key} is {state}, its machine in the transitions library {shadow.state}"
        )

    def copy_states(self) -> dict[K, str]:
        """Return the states of all walkers, to be given to `restore_states` later."""
        return {key: shadow.state for key, shadow in self.shadows.items()}

    def restore_states(self, states: Mapping[K, str]) -> None:
        """Put every walker back to where `copy_states` saw it."""
        self.shadows = {}
        for key, state in states.items():
            self._shadow(key).state = state

    def _shadow(self, key: K) -> Shadow:
        if (shadow := self.shadows.get(key)) is None:
            shadow = self.shadows[key] = Shadow()
            self._machine.add_model(shadow)
            # The library keeps every model it has seen; the walkers are kept here alone.
            self._machine.models.remove(shadow)
        return shadow
