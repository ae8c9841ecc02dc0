"""What an exploration has seen: all states and all edges, by number."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from stepahead.events import Event
from stepahead_specs.explorer.bounds import Actor
from stepahead_specs.explorer.canonical import Form

#: What a client sees of one request along an edge: "arrive", "token", "end stop" ...
Words: TypeAlias = tuple[str, ...]


class Edge(NamedTuple):
    """An event taken in a state; ``kind`` names it, ``words`` is what the followed client saw."""

    source: int
    target: int
    actor: Actor
    kind: str
    words: Words


@dataclass(slots=True)
class Graph:
    """All states and edges, by number; state 0 is the empty kernel.

    ``forms[s]`` is the canonical form of state ``s`` and ``views[s]`` the view of it, if one was
    asked for; ``arrivals[s]`` is how it was first reached: from which state, by which event.
    ``idle[s]``: nothing is outstanding, and nothing live unless in a pause. Edges that stay where
    they are, are kept too.
    """

    forms: list[Form] = field(default_factory=list[Form])
    views: list[Hashable] = field(default_factory=list[Hashable])
    arrivals: list[tuple[int, Event] | None] = field(default_factory=lambda: [None])
    edges: list[Edge] = field(default_factory=list[Edge])
    idle: list[bool] = field(default_factory=lambda: [True])

    def path(self, state: int) -> list[Event]:
        """Return the events of a shortest way to ``state``."""
        events: list[Event] = []
        step = self.arrivals[state]
        while step is not None:
            events.append(step[1])
            step = self.arrivals[step[0]]
        return events[::-1]
