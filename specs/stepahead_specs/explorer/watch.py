"""The outside view of each state, so that all invariants are checked along every edge.

An observation holds history, which a canonical form leaves out on purpose. A state keeps the
observation of the shortest path to it, and each edge is judged by a copy of that. So what an
invariant says of a state or of one step is checked completely; what it says of a longer past (how
many rows a request has wasted) is checked along shortest paths only.
"""

from __future__ import annotations

from dataclasses import replace

from stepahead.commands import Command
from stepahead.config import KernelConfig
from stepahead.events import Event
from stepahead.kernel import Kernel
from stepahead_specs.accounts import account
from stepahead_specs.invariants import Kind, violations
from stepahead_specs.observation import Observation
from stepahead_specs.observer import Observer, limits


def first(config: KernelConfig) -> Observation:
    """Return the observation of a kernel that has seen nothing."""
    return Observation(limits(config))


def after(
    seen: Observation, event: Event, commands: tuple[Command, ...], kernel: Kernel
) -> tuple[Observation, list[str]]:
    """Return the observation after one more step, and one sentence per violation."""
    copy = fork(seen)
    Observer(copy).saw(event, commands)
    copy.accounted(account(kernel))
    broken = violations(copy)
    if kernel.idle():
        broken += violations(copy, Kind.EVENTUALLY)
    copy.forget()
    return copy, [str(violation) for violation in broken]


def fork(seen: Observation) -> Observation:
    """Return an independent copy; what never changes is shared."""
    return replace(
        seen,
        requests={
            handle: replace(
                request,
                table=dict(request.table),
                sampled=list(request.sampled),
                emitted=list(request.emitted),
            )
            for handle, request in seen.requests.items()
        },
        batches={
            ident: replace(batch, values=dict(batch.values))
            for ident, batch in seen.batches.items()
        },
        contents=dict(seen.contents),
        totals=dict(seen.totals),
    )
