"""The random search over the real kernel, and what it must reach."""

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stepahead_specs.goals import GOALS
from stepahead_specs.machines import CrowdedMachine, KernelMachine


def test_every_invariant_holds_whatever_happens_next() -> None:
    """Arrivals, cancels, refusals, failures and completions in any order break no invariant."""
    run_state_machine_as_test(KernelMachine, settings=settings(stateful_step_count=40))


def test_every_invariant_holds_where_there_is_never_enough_room() -> None:
    """Preemption, fences and shared prefixes under overlap break no invariant either."""
    run_state_machine_as_test(CrowdedMachine, settings=settings(stateful_step_count=40))


def test_the_search_reaches_every_goal() -> None:
    """A situation that is never reached is one about which the search says nothing."""
    KernelMachine.reached_goals.clear()
    search = settings(
        max_examples=150,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
    )
    run_state_machine_as_test(KernelMachine, settings=search)
    run_state_machine_as_test(CrowdedMachine, settings=search)
    missing = sorted(set(GOALS) - set(KernelMachine.reached_goals))
    assert missing == []
