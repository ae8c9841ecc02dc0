"""Every order of a few moves: small, but complete within its bounds.

A scheduler under test can neither be copied nor restored, so each run starts afresh and repeats a
prefix of choices; the last choice that has another option is changed until none has. An unfinished
search is never called complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from stepahead_specs.conformance.adapter import Factory
from stepahead_specs.conformance.bounds import Bounds, Failure, Tally
from stepahead_specs.conformance.host import Host
from stepahead_specs.counting import counted
from stepahead_specs.oracle import Ask
from stepahead_specs.records import Limits

EOS: Final = 5
_TOKENS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one exhaustive search varies, and what is fixed.

    Args:
        limits: of the scheduler.
        asks: the requests, in the order in which they come.
        cancels: how many clients may leave.
    """

    limits: Limits
    asks: tuple[Ask, ...]
    cancels: int

    def __str__(self) -> str:
        sizes = " and ".join(f"{len(ask.prompt)}+{ask.max_tokens}" for ask in self.asks)
        return (
            f"lookahead {self.limits.lookahead}, {counted(len(self.asks), 'request')} ({sizes} "
            f"tokens), {counted(self.limits.num_blocks, 'block')} of {self.limits.block_size}, "
            f"at most {counted(self.cancels, 'cancel')}"
        )


@dataclass(slots=True)
class Explored:
    """What a search did; ``complete`` says that every order within the plan was run."""

    plan: Plan
    complete: bool = False
    tally: Tally = field(default_factory=Tally)
    failure: Failure | None = None

    def __str__(self) -> str:
        runs = counted(self.tally.runs, "run")
        end = "complete" if self.complete else f"not complete: stopped after {runs}"
        return f"{self.plan}: {runs}, longest {counted(self.tally.longest, 'step')}, {end}"


def plans(bounds: Bounds) -> Iterator[Plan]:
    """Choose one small plan for each of the two smallest lookaheads; the others stay random.

    Two requests do not fit together, and one of them ends by EOS.
    """
    block_size = min(bounds.block_sizes)
    for lookahead in sorted(bounds.lookaheads)[:2]:
        asks = (
            Ask(request_id="a", prompt=(1,), max_tokens=3, eos_at=1),
            Ask(request_id="b", prompt=(1, 2), max_tokens=2),
        )
        limits = Limits(
            num_blocks=-(-3 // block_size),
            block_size=block_size,
            max_concurrency=2,
            max_num_batched_tokens=_TOKENS_MAX,
            max_tokens_per_row=_TOKENS_MAX,
            max_model_len=24,
            lookahead=lookahead,
            eos_token_id=EOS,
            by_priority=bounds.by_priority[0],
            prefix_caching=bounds.prefix_caching[0],
        )
        yield Plan(limits=limits, asks=asks, cancels=1)


def explore(factory: Factory, plan: Plan, runs_max: int) -> Explored:
    """Run every order of moves within the plan, or ``runs_max`` of them; stop at a failure."""
    explored = Explored(plan)
    prefix: list[int] = []
    while explored.tally.runs < runs_max:
        host = Host(factory, plan.limits)
        choices: list[tuple[int, int]] = []
        try:
            _run(host, plan, prefix, choices)
        except Exception as error:  # noqa: BLE001 # whatever a foreign scheduler raises
            explored.failure = Failure(host.opened, tuple(host.facts), error)
            explored.tally.add(host.judge)
            return explored
        explored.tally.add(host.judge)
        while choices and choices[-1][0] == choices[-1][1] - 1:
            choices.pop()
        if not choices:
            explored.complete = True
            return explored
        prefix = [chosen for chosen, _ in choices]
        prefix[-1] += 1
    return explored


def _run(host: Host, plan: Plan, prefix: list[int], choices: list[tuple[int, int]]) -> None:
    coming, cancels = 0, 0
    while True:
        moves: list[tuple[str, Callable[[], object]]] = []
        # That nothing is selected for nobody is left to the random runs.
        if host.may_prepare() and host.live():
            moves.append(("prepare", host.prepare))
        if host.on_device() is not None:
            moves.append(("complete", host.complete))
        if coming < len(plan.asks):
            moves.append(("submit", partial(host.submit, plan.asks[coming])))
        if not moves:
            break
        if cancels < plan.cancels:
            moves += [("cancel", partial(host.cancel, request)) for request in host.live()]
        chosen = prefix[len(choices)] if len(choices) < len(prefix) else 0
        choices.append((chosen, len(moves)))
        kind, move = moves[chosen]
        move()
        coming += kind == "submit"
        cancels += kind == "cancel"
    host.drain()
