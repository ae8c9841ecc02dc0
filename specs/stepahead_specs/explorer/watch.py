"""The outside view of each state, so that all invariants are checked along every edge.

An observation holds history, which a canonical form leaves out on purpose. A state keeps the
observation of the shortest path to it, and each edge is judged by a copy of that. So what an
invariant says of a state or of one step is checked completely; what it says of a longer past (how
many rows a request has wasted) is checked along shortest paths only.
"""

from __future__ import annotations

from stepahead.commands import Command
from stepahead.config import KernelConfig
from stepahead.events import Event
from stepahead.kernel import Kernel
from stepahead_specs.accounts import account
from stepahead_specs.invariants import Kind, summary, violations
from stepahead_specs.observation import Observation
from stepahead_specs.observer import Observer, limits


def first(config: KernelConfig) -> Observation:
    """Return the observation of a kernel that has seen nothing."""
    return Observation(limits(config))


def after(
    seen: Observation, event: Event, commands: tuple[Command, ...], kernel: Kernel
) -> tuple[Observation, list[str]]:
    """Return the observation after one more step, and what is violated, in sentences."""
    copy = seen.copy()
    Observer(copy).saw(event, commands)
    copy.accounted(account(kernel))
    broken = violations(copy)
    if kernel.idle():
        broken += violations(copy, Kind.EVENTUALLY)
    copy.forget()
    return copy, summary(broken).splitlines()
