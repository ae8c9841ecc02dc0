"""Breadth first through every state of the real kernel within bounds.

The kernel itself is stepped, restored and stepped again; there is no model of it here. Every edge
is judged by all invariants (`stepahead_specs.explorer.watch`), the whole graph by
`stepahead_specs.explorer.progress`. A search that does not finish says so and is never a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Final, NoReturn, TypeAlias

import numpy as np

from stepahead.commands import Command, EmitTokens, FinishRequest
from stepahead.config import KernelConfig
from stepahead.errors import HostContractError
from stepahead.events import Event, RequestArrived
from stepahead.kernel import Kernel
from stepahead.state import Snapshot
from stepahead_specs.counting import counted
from stepahead_specs.explorer import watch
from stepahead_specs.explorer.bounds import Bounds, Move, impossible, moves
from stepahead_specs.explorer.canonical import Form, Kept, canonical
from stepahead_specs.explorer.graph import Edge, Graph, Words
from stepahead_specs.observation import Observation
from stepahead_specs.observer import sent

Journal: TypeAlias = list[tuple[Event, tuple[Command, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to search.

    Args:
        states_max: stop, unfinished, beyond so many states.
        seconds_max: stop, unfinished, after so many seconds.
        invariants: judge every edge by all invariants.
        probe: in every state, report what the kernel says cannot come next, and require that it is
            refused without a trace.
        steady: tell states apart by the row set that the planner remembers.
        follow: the handle of a request whose own behaviour is recorded on the edges.
        view: a look at each state that is kept in the graph; requests are then not renamed, and a
            view gets a snapshot and how many requests have arrived.
        make_kernel: what is explored; a mutant may stand in.
    """

    states_max: int = 1_000_000
    seconds_max: float = float("inf")
    invariants: bool = True
    probe: bool = False
    steady: bool = False
    follow: int | None = None
    view: Callable[[Snapshot, int], Hashable] | None = None
    make_kernel: Callable[[KernelConfig], Kernel] = Kernel


@dataclass(slots=True, kw_only=True)
class Violation:
    """What does not hold, and the shortest run that shows it."""

    sentences: list[str]
    events: list[Event]
    journal: Journal


@dataclass(slots=True, kw_only=True)
class Exploration:
    """What was found. ``stopped`` says why the search is not complete, or is None.

    ``steps`` counts (state, event) pairs, ``edges`` distinct pairs of different states.
    """

    bounds: Bounds
    graph: Graph
    states: int
    steps: int
    edges: int
    depth: int
    seconds: float
    stopped: str | None
    violation: Violation | None

    @property
    def passed(self) -> bool:
        """Tell whether everything within the bounds was seen, and all of it was right."""
        return self.stopped is None and self.violation is None


@dataclass(slots=True)
class _Node:
    """A state that is still to be left: everything needed to stand in it again."""

    number: int
    saved: Snapshot
    arrived: int
    seen: Observation


class _Stop(Exception):
    """The search ends here."""


class Search:
    """One exploration; `run` it once."""

    def __init__(self, bounds: Bounds, options: Options) -> None:
        self.bounds = bounds
        self.options = options
        self.config: Final = bounds.config()
        self.kernel = options.make_kernel(self.config)
        self.graph = Graph()
        self.depth = 0
        self.stopped: str | None = None
        self.violation: Violation | None = None
        self._numbers: dict[Form, int] = {}
        self._kept: Final = Kept(
            ordered=bounds.caching,
            steady=options.steady,
            named=options.view is not None,
            follow=options.follow,
        )
        self._began = time.monotonic()

    def run(self) -> Exploration:
        """Explore until everything is seen, something is wrong, or a limit is reached."""
        saved = self.kernel.snapshot()
        self.graph.forms.append(self._form(saved, 0))
        self._numbers[self.graph.forms[0]] = 0
        self._look(saved, 0)
        frontier = [_Node(0, saved, 0, watch.first(self.config))]
        try:
            while frontier:
                frontier = [found for node in frontier for found in self._leave(node)]
                self.depth += bool(frontier)
        except _Stop:
            pass
        graph = self.graph
        return Exploration(
            bounds=self.bounds,
            graph=graph,
            states=len(graph.arrivals),
            steps=len(graph.edges),
            edges=len({edge[:2] for edge in graph.edges if edge.source != edge.target}),
            depth=self.depth,
            seconds=time.monotonic() - self._began,
            stopped=self.stopped,
            violation=self.violation,
        )

    def _form(self, saved: Snapshot, arrived: int) -> Form:
        return canonical(saved, arrived, self._kept)

    def _look(self, saved: Snapshot, arrived: int) -> None:
        if self.options.view is not None:
            self.graph.views.append(self.options.view(saved, arrived))

    def _leave(self, node: _Node) -> list[_Node]:
        """Take every move out of a state; return the states that are new."""
        self._keep_within_limits()
        self.kernel.restore(node.saved)
        choices = moves(self.kernel, node.saved, self.bounds, node.arrived)
        if self.options.probe:
            self._probe(node)
        return [found for move in choices if (found := self._take(node, move)) is not None]

    def _take(self, node: _Node, move: Move) -> _Node | None:
        kernel, event = self.kernel, move.event
        kernel.restore(node.saved)
        try:
            commands = kernel.step(event)
        except Exception as error:  # noqa: BLE001 - whatever a mutant raises is a finding
            self._fail(node, event, [f"the kernel raises {type(error).__name__}: {error}"])
        freeze(commands)
        seen = node.seen
        if self.options.invariants:
            seen, broken = watch.after(seen, event, commands, kernel)
            if broken:
                self._fail(node, event, broken)
        saved = kernel.snapshot()
        arrived = node.arrived + isinstance(event, RequestArrived)
        known = len(self._numbers)
        form = self._form(saved, arrived)
        number = self._numbers.setdefault(form, known)
        words = heard(self.options.follow, event, commands, node.arrived + 1)
        kind = type(event).__name__
        self.graph.edges.append(Edge(node.number, number, move.actor, kind, words))
        if number < known:
            return None
        self.graph.forms.append(form)
        self._look(saved, arrived)
        self.graph.arrivals.append((node.number, event))
        self.graph.idle.append(_rests(saved))
        return _Node(number, saved, arrived, seen)

    def _keep_within_limits(self) -> None:
        if len(self._numbers) > self.options.states_max:
            self.stopped = f"{counted(len(self._numbers), 'state')}, depth {self.depth}"
        elif time.monotonic() - self._began > self.options.seconds_max:
            self.stopped = (
                f"{self.options.seconds_max:g} seconds, "
                f"{counted(len(self._numbers), 'state')}, depth {self.depth}"
            )
        if self.stopped is not None:
            raise _Stop

    def _fail(self, node: _Node, event: Event, sentences: list[str]) -> NoReturn:
        events = [*self.graph.path(node.number), event]
        self.violation = Violation(
            sentences=sentences, events=events, journal=retrace(self.options, self.config, events)
        )
        raise _Stop

    def _probe(self, node: _Node) -> None:
        """Report what cannot have happened; it must be refused, and nothing may change."""
        kernel = self.kernel
        before = kernel.digest()
        for event in impossible(kernel, node.saved):
            try:
                kernel.step(event)
            except HostContractError:
                if kernel.digest() != before:
                    self._fail(node, event, ["the event is refused and leaves a trace"])
            else:
                self._fail(node, event, ["the event cannot have happened and is accepted"])


def _rests(saved: Snapshot) -> bool:
    """Tell whether nobody owes a move: nothing is outstanding, and nothing live or all paused."""
    outstanding = len(saved.batches) > saved.filled
    paused = saved.flags[0]
    return not outstanding and (paused or not saved.stays)


def retrace(options: Options, config: KernelConfig, events: Sequence[Event]) -> Journal:
    """Run ``events`` through a fresh kernel; stop where it raises, with an empty answer."""
    kernel = options.make_kernel(config)
    journal: Journal = []
    for event in events:
        try:
            journal.append((event, kernel.step(event)))
        except Exception:  # noqa: BLE001 - the run is told up to here, the violation says the rest
            journal.append((event, ()))
            break
    return journal


def freeze(commands: tuple[Command, ...]) -> None:
    """Make the arrays of an answer read-only: the kernel has promised never to write them again."""
    for command in commands:
        for entry in fields(command):
            value: object = getattr(command, entry.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


def heard(follow: int | None, event: Event, commands: tuple[Command, ...], coming: int) -> Words:
    """Return what the client of request ``follow`` sees of a step, in order.

    ``coming`` is the handle that an arrival in this step gets.
    """
    if follow is None:
        return ()
    words: list[str] = []
    if isinstance(event, RequestArrived) and coming == follow:
        words.append("arrive")
    for command in commands:
        if isinstance(command, EmitTokens):
            for handle, _, tokens in sent(command):
                words.extend(["token"] * len(tokens) if handle == follow else ())
        elif isinstance(command, FinishRequest) and command.handle == follow:
            words.append(f"end {command.reason.value}")
    return tuple(words)
