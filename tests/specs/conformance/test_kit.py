"""The kit passes what is right, finds what is wrong, and says what it has not looked at."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec import structs

from stepahead_specs.conformance.adapter import Adapter, Answer, Factory, Selected, Submission
from stepahead_specs.conformance.bounds import Bounds
from stepahead_specs.conformance.checker import check_history
from stepahead_specs.conformance.examples.planted import (
    EarlyFreeAdapter,
    FillByRowAdapter,
    NextStepAdapter,
)
from stepahead_specs.conformance.examples.small_adapter import SmallAdapter
from stepahead_specs.conformance.exhaustive import Explored, explore, plans
from stepahead_specs.conformance.history import write
from stepahead_specs.conformance.host import AdapterError, Host
from stepahead_specs.conformance.judge import RECOMPUTED
from stepahead_specs.conformance.kernel_adapter import KernelAdapter
from stepahead_specs.conformance.machine import machine
from stepahead_specs.conformance.parts import NEEDS, NEVER, Part, scope, together, unknown_rules
from stepahead_specs.conformance.vllm_adapter import VllmAdapter
from stepahead_specs.conformance.vllm_setup import available
from stepahead_specs.goals import GOALS
from stepahead_specs.invariants import INVARIANTS, InvariantViolated
from stepahead_specs.records import Limits

RIGHT = [SmallAdapter, KernelAdapter]
PLANTED = [(EarlyFreeAdapter, "INV-3"), (FillByRowAdapter, "INV-7"), (NextStepAdapter, "INV-1")]

SMALL = Limits(
    num_blocks=4,
    block_size=1,
    max_concurrency=2,
    max_num_batched_tokens=8,
    max_tokens_per_row=8,
    max_model_len=8,
    lookahead=0,
)


def searched(factory: Factory, lookahead: int) -> Explored:
    """Run the exhaustive plan of one lookahead."""
    plan = next(iter(plans(Bounds(lookaheads=(lookahead,)))))
    return explore(factory, plan, runs_max=3000)


@pytest.mark.parametrize("adapter", RIGHT)
def test_every_order_of_a_small_plan_is_run_and_passes(adapter: Factory) -> None:
    """Eager search is complete, with a number of runs that changes only with the kit."""
    explored = searched(adapter, 0)
    assert explored.failure is None
    assert explored.complete
    assert explored.tally.runs == 49
    assert {"a request is preempted at once", RECOMPUTED} <= set(explored.tally.goals)


@pytest.mark.parametrize(("adapter", "key"), PLANTED)
def test_a_planted_bug_is_found(adapter: Factory, key: str) -> None:
    """Each bug of the small scheduler is found with one step ahead, by the rule that names it."""
    explored = searched(adapter, 1)
    assert explored.failure is not None
    assert not explored.complete
    error = explored.failure.error
    assert isinstance(error, InvariantViolated)
    assert key in {violation.key for violation in error.violations}


@pytest.mark.parametrize("adapter", RIGHT)
def test_long_random_runs_pass(adapter: Factory) -> None:
    """Tight limits, chunks, preemptions and cancels in any order break no rule."""
    random = machine(adapter, getattr(adapter, "bounds", Bounds()))
    run_state_machine_as_test(
        random,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    assert {
        "a batch waits prepared while another is dispatched",
        "a row is wasted by EOS",
        "no block is free",
    } <= set(random.tally.goals)


def test_the_goal_of_recomputed_tokens_has_its_own_name() -> None:
    """The words that the judge counts are those of the list of goals."""
    assert RECOMPUTED in GOALS


def test_random_runs_find_a_planted_bug() -> None:
    """The machine keeps the run that fails."""
    random = machine(FillByRowAdapter, Bounds())
    with pytest.raises(InvariantViolated):
        run_state_machine_as_test(
            random,
            settings=settings(
                max_examples=100,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    assert random.failure is not None
    assert isinstance(random.failure.error, InvariantViolated)


@pytest.mark.parametrize(("adapter", "key"), PLANTED)
def test_a_failing_run_fails_again_as_a_history(adapter: Factory, key: str, tmp_path: Path) -> None:
    """What the kit writes, the checker reads, and both name the same fact and rules."""
    failure = searched(adapter, 1).failure
    assert failure is not None
    path = tmp_path / "failing.jsonl"
    failure.write(path)
    checked = check_history(path)
    assert isinstance(failure.error, InvariantViolated)
    assert list(checked.violations) == failure.error.violations
    assert checked.line == len(failure.facts) + 1
    assert key in checked.page()


def test_a_good_run_passes_as_a_history(tmp_path: Path) -> None:
    """A drained run of the small scheduler has nothing that the checker objects to."""
    host = Host(SmallAdapter, SMALL)
    plan = next(iter(plans(Bounds())))
    for ask in plan.asks:
        host.submit(replace(ask, eos_at=None))
    host.drain()
    path = tmp_path / "good.jsonl"
    write(path, host.opened, host.facts)
    checked = check_history(path)
    assert checked.violations == ()
    assert "No rule that could be checked is broken." in checked.page()


def test_every_rule_is_either_run_or_left_out_with_a_reason() -> None:
    """No invariant of the list is silently missing from the page, and no name is stale."""
    names = {entry.name for entry in INVARIANTS}
    assert set(NEEDS) | set(NEVER) <= names
    assert set(NEEDS) & set(NEVER) == set()
    chosen = scope(tuple(Part), {})
    left_out = {line.partition(" ")[2].replace(" ", "_") for line in chosen.left_out}
    assert {entry.name for entry in chosen.rules} == set(NEEDS)
    assert names - set(NEEDS) == left_out - {""}


class Blind(Adapter):
    """The small scheduler, whose inputs and blocks nobody sees."""

    def __init__(self, limits: Limits) -> None:
        self.inner = SmallAdapter(limits)

    def submit(self, submission: Submission) -> str | None:
        """Take a request."""
        return self.inner.submit(submission)

    def cancel(self, request: int) -> Answer:
        """End a request."""
        return self.inner.cancel(request)

    def prepare(self) -> Selected | None:
        """Choose a batch, without its blocks."""
        chosen = self.inner.prepare()
        if chosen is None:
            return None
        rows = [structs.replace(row, blocks=None) for row in chosen.rows]
        return Selected(batch=chosen.batch, rows=rows)

    def dispatch(self, batch: int) -> None:
        """Tell nothing."""

    def complete(self, batch: int, tokens: Sequence[int | None]) -> Answer:
        """Take what was sampled."""
        return self.inner.complete(batch, tokens)

    def observe(self) -> None:
        """Tell nothing."""


def test_what_is_not_told_is_not_checked_and_listed() -> None:
    """A scheduler that hides its blocks is judged by its tokens, and the page says so."""
    explored = searched(Blind, 0)
    assert explored.failure is None
    scope_of_all = together(explored.tally.scopes)
    left_out = scope_of_all.left_out
    assert left_out["INV-1 nothing is kept when nothing is left"] == (
        "it is not told which blocks are free and held (`state`)"
    )
    assert "INV-14" in {entry.key for entry in scope_of_all.rules}


class Forgetful(Blind):
    """Loses the token of every second batch."""

    def complete(self, batch: int, tokens: Sequence[int | None]) -> Answer:
        """Lose it."""
        answer = super().complete(batch, tokens)
        return answer if batch % 2 else Answer(finished=answer.finished)


def test_a_lost_token_is_found_without_seeing_blocks() -> None:
    """Outputs alone are enough for what clients notice."""
    failure = searched(Forgetful, 0).failure
    assert failure is not None
    assert "is lost" in str(failure.error)


def test_a_rule_that_some_runs_waive_is_listed_although_others_run_it() -> None:
    """What is waived under some limits must not look checked under all."""
    told = tuple(Part)
    joined = together([scope(told, {}), scope(told, {"every_request_ends": "it is slow"})])
    assert "every_request_ends" in {entry.name for entry in joined.rules}
    assert joined.left_out["INV-15 every request ends"] == (
        "in some runs waived by the adapter: it is slow"
    )


class Waiving(SmallAdapter):
    """Waives a rule that nobody has."""

    @property
    def waived(self) -> dict[str, str]:
        """Return a name with a typo."""
        return {"nothing_is_kept_when_nothing_is_leftt": "we keep a block for luck"}


def test_a_waiver_must_name_a_rule() -> None:
    """A typo in a waiver is refused, or it would look like a pass."""
    with pytest.raises(AdapterError) as caught:
        Host(Waiving, SMALL)
    assert str(caught.value) == (
        "the adapter waives 'nothing_is_kept_when_nothing_is_leftt', which is no rule"
    )
    assert unknown_rules(["every_request_ends"]) == []


@pytest.mark.skipif(not available(), reason="vLLM is not importable here")
@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_schedulers_of_vllm_pass_every_order(lookahead: int) -> None:
    """`Scheduler` and `AsyncScheduler` break no rule that they claim, within the small plan."""
    adapter: type[Adapter] = VllmAdapter
    explored = searched(adapter, lookahead)
    assert explored.failure is None
    assert explored.complete
