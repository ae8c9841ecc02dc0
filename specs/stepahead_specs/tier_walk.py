"""The search over the kernel with all tiers on, by whoever chooses: Hypothesis or a random source.

`wander` lets anything happen that a correct host may report, transfers in any order with any end,
and then lets everything come to its end. `TierBench` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from stepahead.config import BatchPreference, KernelConfig, SelectionTiming
from stepahead_specs.machines import EOS
from stepahead_specs.oracle import Ask
from stepahead_specs.tier_bench import TierBench

T = TypeVar("T")
LONGEST = 12 + 4  # prompt and output of `turn`


class Choose(Protocol):
    """Who decides: Hypothesis, or a seeded random source."""

    def __call__(self, options: Sequence[T], /) -> T:
        """Return one of the options."""
        ...


def tiers(choose: Choose) -> KernelConfig:
    """Choose a kernel with a small pool, a few host pages, and any of the options."""
    block_size = choose((1, 2, 4))
    lookahead = choose((0, 1, 2, 3))
    late = choose((False, True)) and lookahead > 0
    pages = choose((4, 1, 2, 16, 0))
    return KernelConfig(
        num_blocks=-(-(LONGEST - 1) // block_size) + choose((0, 1, 4)),
        block_size=block_size,
        max_concurrency=choose((1, 2, 4)),
        max_num_batched_tokens=choose((64, 5)),
        max_tokens_per_row=choose((64, 3)),
        max_model_len=24,
        lookahead=lookahead,
        preference=choose(tuple(BatchPreference)),
        timing=SelectionTiming.JUST_IN_TIME if late else SelectionTiming.EARLY,
        late_joiners=choose((False, True)),
        prune=choose((False, True)),
        eos_token_id=EOS,
        host_pages=pages,
        write_through_threshold=choose((1, 2, None)),
        write_back=pages > 0 and choose((False, True)),
        layerwise_reload=pages > 0 and choose((False, True)),
        load_deadline_ns=choose((0, 0, 15)),
        remote=lookahead == 0 and choose((False, True)),
        num_speculative_tokens=0 if lookahead else choose((0, 0, 2)),
    )


def turn(choose: Choose, name: str) -> Ask:
    """Choose a turn of one of three conversations; two long ones fill the pool."""
    length, family = choose((12, 11, 9, 6, 1)), choose((0, 20, 40))
    return Ask(
        request_id=name,
        prompt=tuple(range(family, family + length)),
        max_tokens=choose((1, 2, 3, 4)),
        eos_at=choose((None, None, 0, 1)),
    )


def wander(bench: TierBench, choose: Choose, steps: int) -> None:
    """Let anything happen that may, ``steps`` times, then let everything come to its end."""
    for _ in range(steps):
        kind = choose(("run", "run", "arrive", "arrive", "go", "go", "other"))
        if bench.config.num_speculative_tokens:
            bench.luck = choose((1, 0, 5))
        if kind == "run":
            run_on(bench, choose((5, 20, 60)), copies=choose((True, False)))
        elif kind == "go":
            moves: list[Callable[[], object]] = [*bench.moves()]
            moves.extend(partial(bench.transfer_failed, ident) for ident in bench.transfers)
            if moves:
                choose(moves)()
        elif kind == "arrive":
            for _ in range(choose((1, 2, 3, 4))):
                arrive(bench, choose)
        else:
            choose([*others(bench)])()
    bench.drain()


def arrive(bench: TierBench, choose: Choose) -> None:
    """Let a turn arrive; the host looked it up in the remote store, or did not, or is wrong."""
    ask = turn(choose, f"r{len(bench.journal)}")
    every = len(ask.prompt) // bench.config.block_size
    bench.arrive(ask, choose((None, bench.lookup(ask.prompt), every, 0)))


def run_on(bench: TierBench, turns: int, *, copies: bool) -> None:
    """Take the most urgent move that there is, ``turns`` times; without ``copies`` none ends."""
    for _ in range(turns):
        if (move := next(bench.moves(copies=copies), None)) is not None:
            move()


def others(bench: TierBench) -> Iterator[Callable[[], object]]:
    """Iterate over what may happen and is not the course of things."""
    yield bench.pause_or_resume
    yield bench.reset_cache
    closed = next(i for i in range(1, 1000) if i not in bench.transfers)
    yield partial(bench.report_again, closed)
    for handle in bench.live():
        yield partial(bench.cancel, bench.asks[handle].request_id, handle)
    if bench.building is not None:
        yield bench.refused
