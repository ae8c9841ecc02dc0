"""The sentence under a comparison."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from msgspec.structs import replace

from stepahead_models.record import RunRecord
from stepahead_tools.distribution import Distribution
from stepahead_tools.metrics import RunMetrics, measure
from stepahead_tools.verdict import verdict

MS = 1_000_000


def flat(milliseconds: float) -> Distribution:
    """All values alike."""
    value = round(milliseconds * MS)
    return Distribution(count=1, mean_ns=value, percentiles_ns=(value,) * 6)


@pytest.fixture
def figures(make_record: Callable[..., RunRecord]) -> RunMetrics:
    """One run: 100 tokens/s, TPOT 10 ms, TTFT 50 ms, answers of 91 tokens."""
    empty = measure(make_record(arrivals_ns=[0]))
    return replace(
        empty,
        output_tokens_per_s=Fraction(100),
        tpot=flat(10),
        ttft=flat(50),
        e2el=flat(950),
        overloaded=False,
    )


def said(before: RunMetrics, **changed: object) -> str:
    """Judge overlap with the changed figures against eager."""
    return verdict(("eager", before), ("overlap", replace(before, **changed)))


def test_a_loop_that_is_better_at_one_and_no_worse_at_the_other_pays(figures: RunMetrics) -> None:
    """The changes are told, and what it costs in TTFT."""
    assert said(figures, tpot=flat(8), ttft=flat(60), e2el=flat(780)) == (
        "Overlap pays on this load: output tokens/s +0.0 %, mean TPOT -20.0 %, mean E2EL -17.9 %; "
        "TTFT changes by +10.0 ms (+20.0 %) at p50 and +10.0 ms (+20.0 %) at p99."
    )


def test_a_later_first_token_is_weighed_by_the_time_of_whole_answers(figures: RunMetrics) -> None:
    """Tokens that come 1 % faster do not pay for a first one that comes as much later."""
    assert said(figures, tpot=flat(9.9), ttft=flat(57), e2el=flat(948)) == (
        "Whether overlap pays on this load depends on what you want: output tokens/s +0.0 %, mean "
        "TPOT -1.0 %, mean E2EL -0.2 %; TTFT changes by +7.0 ms (+14.0 %) at p50 and +7.0 ms "
        "(+14.0 %) at p99."
    )
    assert said(figures, tpot=flat(9.9), e2el=flat(948)).startswith("Overlap pays on this load: ")


def test_an_earlier_first_token_pays_where_nothing_is_worse(figures: RunMetrics) -> None:
    """That is what a loop that selects late is for."""
    assert said(figures, ttft=flat(40), e2el=flat(948)).startswith("Overlap pays on this load: ")
    assert said(figures, ttft=flat(40), tpot=flat(10.1)).startswith("Whether overlap pays ")


def test_a_loop_that_changes_nothing_does_not_pay(figures: RunMetrics) -> None:
    """Less than half a percent is nothing."""
    assert said(figures, tpot=flat(9.96)) == (
        "Overlap does not pay on this load: output tokens/s +0.0 %, mean TPOT -0.4 %, mean E2EL "
        "+0.0 %; TTFT changes by +0.0 ms (+0.0 %) at p50 and +0.0 ms (+0.0 %) at p99."
    )


def test_a_change_that_rounds_to_nothing_has_no_minus(figures: RunMetrics) -> None:
    """A loss of 0.0 % reads like a loss."""
    changed = said(
        figures, output_tokens_per_s=Fraction(99_999, 1_000), tpot=flat(8), ttft=flat(49.999_99)
    )
    assert "tokens/s +0.0 %" in changed
    assert "-0.0" not in changed


def test_a_loop_that_is_worse_at_one_depends(figures: RunMetrics) -> None:
    """More tokens/s at a longer TPOT is for the user to judge."""
    assert said(figures, output_tokens_per_s=Fraction(110), tpot=flat(11)).startswith(
        "Whether overlap pays on this load depends on what you want: output tokens/s +10.0 %, mean "
        "TPOT +10.0 %, mean E2EL +0.0 %;"
    )


def test_an_overloaded_run_says_nothing_about_ttft(figures: RunMetrics) -> None:
    """It is enough that one of the runs is."""
    assert said(figures, overloaded=True) == (
        "Overlap does not pay on this load: output tokens/s +0.0 %, mean TPOT +0.0 %; the waiting "
        "line grows to the end (overloaded), so nothing is said about TTFT; try --load 0.6."
    )


def test_runs_in_which_nothing_completes_have_no_ttft(figures: RunMetrics) -> None:
    """All may have been cancelled."""
    nothing = replace(figures, ttft=None, tpot=None, output_tokens_per_s=None)
    assert said(nothing) == (
        "Overlap does not pay on this load: output tokens/s +0.0 %, mean TPOT +0.0 %; no request "
        "completed, so there is no TTFT."
    )
