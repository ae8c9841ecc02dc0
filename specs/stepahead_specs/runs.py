"""Runs of the searches as they went, and copies of the kernel taken along them, for tests of rules.

A rule that is tested in every state that a walk comes across needs no scenario of its own. The runs
are not checked here: what is wrong in them is the searches' business.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from stepahead import Kernel, KernelConfig
from stepahead.state import Snapshot, State
from stepahead_specs.bench import Bench
from stepahead_specs.machines import EOS
from stepahead_specs.oracle import HashModel
from stepahead_specs.tier_bench import TierBench
from stepahead_specs.tier_walk import tiers, wander
from stepahead_specs.walk import draw, play


def walked(seed: int) -> Bench:
    """Return a run without tiers."""
    benches: list[Bench] = []

    def make(config: KernelConfig, model: HashModel) -> Bench:
        benches.append(Bench(config, model, checked=False))
        return benches[-1]

    play(draw(Random(seed)), make)  # noqa: S311 - repeatable, not secret
    return benches[0]


def wandered(
    seed: int, steps: int, make: Callable[[KernelConfig, HashModel], TierBench] = TierBench
) -> TierBench:
    """Return a run of so many moves, with whatever tiers the seed chooses."""
    choose = Random(seed).choice  # noqa: S311 - repeatable, not secret
    bench = make(tiers(choose), HashModel(eos=EOS))
    wander(bench, choose, steps)
    return bench


class Copy:
    """A copy of the kernel, taken in a run."""

    def __init__(self, config: KernelConfig, saved: Snapshot) -> None:
        self.config = config
        self._saved = saved

    def state(self) -> State:
        """Return a state of its own, to be looked at and changed."""
        state = State(self.config)
        state.restore(self._saved)
        return state


def copies(bench: Bench, every: int) -> list[Copy]:
    """Return copies of the kernel as it was along a run, after every so many events."""
    kernel = Kernel(bench.config)
    found: list[Copy] = []
    for number, (event, _) in enumerate(bench.journal):
        kernel.step(event)
        if number % every == 0:
            found.append(Copy(bench.config, kernel.snapshot()))
    return found
