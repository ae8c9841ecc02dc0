"""The random search over the real kernel, and what it must reach."""

from types import new_class
from typing import cast

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from stepahead import KernelConfig
from stepahead_models.journal import replay_journal
from stepahead_specs.bench import Bench, BenchError
from stepahead_specs.goals import GOALS
from stepahead_specs.machines import FAILURE, CrowdedMachine, DraftingMachine, KernelMachine
from stepahead_specs.oracle import HashModel


def test_every_invariant_holds_whatever_happens_next() -> None:
    """Arrivals, cancels, refusals, failures and completions in any order break no invariant."""
    run_state_machine_as_test(KernelMachine, settings=settings(stateful_step_count=40))


def test_every_invariant_holds_where_there_is_never_enough_room() -> None:
    """Preemption, fences and shared prefixes under overlap break no invariant either."""
    run_state_machine_as_test(CrowdedMachine, settings=settings(stateful_step_count=40))


def test_every_invariant_holds_with_drafts() -> None:
    """Drafts that are right, wrong, refused, cancelled and cut short break no invariant."""
    run_state_machine_as_test(DraftingMachine, settings=settings(stateful_step_count=40))


def _seeded(machine: type[KernelMachine], number: int) -> type[KernelMachine]:
    """Return a machine that searches from a seed of its own."""
    made = cast("type[KernelMachine]", new_class(machine.__name__, (machine,)))
    return seed(number)(made)


def test_the_search_reaches_every_goal() -> None:
    """A situation that is never reached is one about which the search says nothing.

    What Hypothesis draws depends on what else is imported, so a search that misses a goal goes on
    with another seed, and only a goal that is missed again and again is out of reach.
    """
    KernelMachine.reached_goals.clear()
    search = settings(
        max_examples=50,
        stateful_step_count=40,
        derandomize=False,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
    )
    missing = set(GOALS)
    for number in range(12):
        for machine in (KernelMachine, CrowdedMachine, DraftingMachine):
            run_state_machine_as_test(_seeded(machine, number), settings=search)
        missing = set(GOALS) - set(KernelMachine.reached_goals)
        if not missing:
            break
    assert sorted(missing) == []


class _Refusing(Bench):
    """A host that gives up when the first batch comes back."""

    def executed(self) -> None:
        """Fail, as a broken scheduler would make a bench fail."""
        raise BenchError("the device is not there")


class _RefusingMachine(KernelMachine):
    def make_bench(self, config: KernelConfig) -> Bench:
        """Return the bench that gives up."""
        return _Refusing(config, HashModel(eos=config.eos_token_id))


def test_a_failure_is_left_as_a_journal_that_replays() -> None:
    """What failed can be run once more on the real kernel, step by step."""
    FAILURE.unlink(missing_ok=True)
    search = settings(max_examples=30, database=None, deadline=None, phases=(Phase.generate,))
    with pytest.raises(BenchError):
        run_state_machine_as_test(_RefusingMachine, settings=search)
    assert replay_journal(FAILURE).lines > 0
