"""What one client can observe of its own request, over all runs: arrive, tokens, end.

The graph of an exploration that follows one request is an automaton whose edges carry what the
client sees, most of them nothing. Two schedulers are the same for the client if both automata have
the same traces; they are compared after determinisation, state set by state set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stepahead_specs.explorer.bounds import Bounds
from stepahead_specs.explorer.graph import Graph, Words
from stepahead_specs.explorer.search import Options, Search

#: For each state: the states that are entered unseen, and by word.
_Moves = list[dict[str, set[int]]]
_SILENT = ""


class Behaviour:
    """The traces of one request, as a deterministic automaton that is built where it is walked."""

    def __init__(self, graph: Graph) -> None:
        self._moves: _Moves = [{} for _ in graph.arrivals]
        for edge in graph.edges:
            self._enter(edge.source, edge.target, edge.words)
        self.start = self._closed([0])

    def _enter(self, source: int, target: int, words: Words) -> None:
        """Add an edge; where it carries several words, states of its own stand between them."""
        for word in words[:-1]:
            self._moves.append({})
            between = len(self._moves) - 1
            self._moves[source].setdefault(word, set()).add(between)
            source = between
        word = words[-1] if words else _SILENT
        self._moves[source].setdefault(word, set()).add(target)

    def _closed(self, states: Iterable[int]) -> frozenset[int]:
        """Return the states with all that can be entered from them unseen."""
        closed = set(states)
        line = deque(closed)
        while line:
            for target in self._moves[line.popleft()].get(_SILENT, ()):
                if target not in closed:
                    closed.add(target)
                    line.append(target)
        return frozenset(closed)

    def after(self, states: frozenset[int]) -> dict[str, frozenset[int]]:
        """Return the words that may be seen next, in order, and where each leads."""
        targets: dict[str, set[int]] = {}
        for state in states:
            for word, entered in self._moves[state].items():
                if word != _SILENT:
                    targets.setdefault(word, set()).update(entered)
        return {word: self._closed(targets[word]) for word in sorted(targets)}


def behaviour(bounds: Bounds, handle: int) -> Behaviour:
    """Explore within ``bounds`` and return the behaviour of the request with this handle.

    Raises:
        ValueError: the exploration did not finish.
    """
    found = Search(bounds, Options(invariants=False, follow=handle)).run()
    if not found.passed:
        why = found.stopped or "a violation"
        raise ValueError(f"the exploration of {bounds} is not complete: {why}")
    return Behaviour(found.graph)


def difference(one: Behaviour, other: Behaviour) -> tuple[int, list[str] | None]:
    """Compare two behaviours.

    Returns:
        How many pairs of state sets were compared, and a shortest trace that only one of them has,
        its last word marked with which; None if the behaviours are the same.
    """
    line: deque[tuple[frozenset[int], frozenset[int], list[str]]] = deque()
    line.append((one.start, other.start, []))
    compared = {(one.start, other.start)}
    while line:
        left, right, trace = line.popleft()
        ways, others = one.after(left), other.after(right)
        for word in sorted(ways.keys() ^ others.keys()):
            side = "first" if word in ways else "second"
            return len(compared), [*trace, f"{word} (only the {side})"]
        for word, entered in ways.items():
            pair = (entered, others[word])
            if pair not in compared:
                compared.add(pair)
                line.append((*pair, [*trace, word]))
    return len(compared), None
