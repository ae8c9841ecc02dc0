"""Bounded, exhaustive exploration of the real kernel: `explore(Bounds(...))`.

Every interleaving of clients, CPU and NPU within the bounds is taken, breadth first, on the kernel
itself. What is claimed is exactly: complete for these bounds, or not complete.
"""

from dataclasses import replace

from stepahead_specs.explorer.bounds import Actor, Bounds
from stepahead_specs.explorer.graph import Graph
from stepahead_specs.explorer.progress import stuck
from stepahead_specs.explorer.report import report, summary, write_journal
from stepahead_specs.explorer.search import Exploration, Options, Search, Violation, retrace

__all__ = [
    "Actor",
    "Bounds",
    "Exploration",
    "Graph",
    "Options",
    "Violation",
    "explore",
    "report",
    "summary",
    "write_journal",
]


def explore(bounds: Bounds, options: Options | None = None) -> Exploration:
    """Explore everything within ``bounds``; judge every edge and, if complete, the whole graph."""
    options = options or Options()
    found = Search(bounds, options).run()
    if not found.passed or (end := stuck(found.graph)) is None:
        return found
    events = found.graph.path(end.state)
    violation = Violation(
        sentences=[end.sentence],
        events=events,
        journal=retrace(options, bounds.config(), events),
    )
    return replace(found, violation=violation)
