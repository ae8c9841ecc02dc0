"""What the whole graph says: every state drains, and fair runs end without any client's help.

*Can drain*: from every state some way of CPU and NPU moves leads to an idle state. *Progress*:
every way of them does. Fairness means that CPU and NPU keep moving; it never means that a client
must move. So clients and faults are left out altogether: they may interrupt only finitely often
within the bounds, and a state whose only way out is a cancel is a violation, not progress. Moves
that change nothing (the host is ready and nothing can be selected) are no progress either.

Over a finite graph progress is: no state of the CPU and NPU moves but an idle one is an end, and no
such moves form a cycle.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stepahead_specs.explorer.bounds import Actor
from stepahead_specs.explorer.graph import Graph

_MACHINE = (Actor.CPU, Actor.NPU)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A state from which CPU and NPU do not lead to an end, and why."""

    state: int
    sentence: str


def stuck(graph: Graph) -> Stuck | None:
    """Return the first state, in order of the shortest way to it, that does not make progress."""
    count = len(graph.arrivals)
    forth: list[set[int]] = [set() for _ in range(count)]
    back: list[set[int]] = [set() for _ in range(count)]
    for source, target, actor, *_ in graph.edges:
        if actor in _MACHINE and source != target:
            forth[source].add(target)
            back[target].add(source)
    for state in range(count):
        if not forth[state] and not graph.idle[state]:
            return Stuck(
                state,
                "something is live or outstanding, and no move of CPU or NPU changes anything",
            )
    drains = _reaching([state for state in range(count) if graph.idle[state]], back)
    for state in range(count):
        if not drains[state]:
            return Stuck(state, "no moves of CPU and NPU lead to an idle state")
    return _cycle(forth, back)


def _reaching(goals: list[int], back: list[set[int]]) -> list[bool]:
    """Tell for each state whether some way leads from it to a goal."""
    reaches = [False] * len(back)
    line = deque(goals)
    for goal in goals:
        reaches[goal] = True
    while line:
        for source in back[line.popleft()]:
            if not reaches[source]:
                reaches[source] = True
                line.append(source)
    return reaches


def _cycle(forth: list[set[int]], back: list[set[int]]) -> Stuck | None:
    """Return a state on a cycle, or None: take away ends until only cycles are left."""
    ways = [len(targets) for targets in forth]
    line = deque(state for state, count in enumerate(ways) if not count)
    left = set(range(len(forth)))
    while line:
        end = line.popleft()
        left.discard(end)
        for source in back[end]:
            ways[source] -= 1
            if not ways[source]:
                line.append(source)
    if not left:
        return None
    # Every state that is left has a way that stays among those left; following it finds a cycle.
    seen: dict[int, int] = {}
    state = min(left)
    while state not in seen:
        seen[state] = len(seen)
        state = min(target for target in forth[state] if target in left)
    length = len(seen) - seen[state]
    return Stuck(
        state, f"CPU and NPU may go round for ever: {length} moves lead back to this state"
    )
