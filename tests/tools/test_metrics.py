"""Latencies, throughput and goodput from a record."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from stepahead_models.record import NEVER, Outcome, RunRecord
from stepahead_tools.metrics import Objectives, RunMetrics, SingleToken, measure

S, MS = 1_000_000_000, 1_000_000


@pytest.fixture
def record(make_record: Callable[..., RunRecord]) -> RunRecord:
    """Three requests that complete, one with a single token, one cancelled, one refused."""
    return make_record(
        arrivals_ns=[0, 1 * S, 2 * S, 3 * S, 4 * S],
        first_dispatches_ns=[0, 1 * S + 5 * MS, 2 * S, 3 * S, NEVER],
        first_tokens_ns=[100 * MS, 1 * S + 200 * MS, 2 * S + 300 * MS, 3 * S + 50 * MS, NEVER],
        last_tokens_ns=[500 * MS, 1 * S + 200 * MS, 2 * S + 310 * MS, 3 * S + 60 * MS, NEVER],
        ends_ns=[500 * MS, 1 * S + 200 * MS, 2 * S + 310 * MS, 3 * S + 70 * MS, 4 * S],
        output_tokens=[5, 1, 4, 2, 0],
        outcomes=[
            Outcome.STOP,
            Outcome.LENGTH,
            Outcome.STOP,
            Outcome.CANCELLED,
            Outcome.REFUSED,
        ],
        duration_ns=4 * S,
        npu_busy_ns=1 * S,
        step_starts_ns=[0, 14, 28],
        step_ends_ns=[10, 20, 30],
        run_steps=[3],
        run_gaps_ns=[NEVER],
        # Emissions 0 to 2: request 0 has all, request 2 leaves out the one in the middle.
        emission_times_ns=[10, 20, 50],
        segment_requests=[0, 2, 2],
        segment_firsts=[0, 0, 2],
        segment_lasts=[2, 0, 2],
    )


def objectives(*, tpot_ms: int | None = None, lone: SingleToken = "meets") -> Objectives:
    """Ask for a first token within 250 ms and perhaps for a TPOT."""
    tpot = None if tpot_ms is None else tpot_ms * MS
    return Objectives(ttft_ns=250 * MS, tpot_ns=tpot, e2el_ns=None, lone_token=lone)


def test_every_request_has_one_outcome(record: RunRecord) -> None:
    """Completed, cancelled, refused and errored requests sum to those of the trace."""
    found = measure(record)
    counts = (found.completed, found.cancelled, found.refused, found.errored)
    assert counts == (3, 1, 1, 0)
    assert (found.measured, found.single_token) == (3, 1)


def test_latencies_are_those_of_completed_requests(record: RunRecord) -> None:
    """Cancelled and refused requests have no part in TTFT, E2EL and queue time."""
    found = measure(record)
    assert found.ttft is not None
    assert found.e2el is not None
    assert found.queue is not None
    assert (found.ttft.count, found.ttft.mean_ns, found.ttft.at(50)) == (3, 200 * MS, 200 * MS)
    assert found.e2el.mean_ns == round(Fraction((500 + 200 + 310) * MS, 3))
    assert found.queue.at(99) == round(5 * MS * Fraction(98, 100))


def test_tpot_needs_two_tokens_and_is_rounded_half_to_even(
    record: RunRecord, make_record: Callable[..., RunRecord]
) -> None:
    """400 ms over 4 gaps and 10 ms over 3; 5 ns over 2 gaps are 2 ns, 7 ns are 4 ns."""
    found = measure(record)
    assert found.tpot is not None
    assert (found.tpot.count, found.tpot.mean_ns) == (2, (100 * MS + 3_333_333) // 2)
    for span, expected in ((5, 2), (7, 4)):
        one = make_record(
            outcomes=[Outcome.STOP], output_tokens=[3], last_tokens_ns=[span], ends_ns=[span]
        )
        tpot = measure(one).tpot
        assert tpot is not None
        assert tpot.mean_ns == expected


def test_gaps_between_tokens_are_pooled_over_requests(record: RunRecord) -> None:
    """Request 0 has gaps of 10 and 30 ns, request 2 one of 40 ns over the emission it left out."""
    found = measure(record)
    assert found.itl is not None
    assert (found.itl.count, found.itl.at(50), found.itl.mean_ns) == (3, 30, 27)


def test_throughput_counts_tokens_that_came_out(record: RunRecord) -> None:
    """The window ends with the last end; a cancelled request's tokens count, it does not."""
    found = measure(record)
    assert found.duration_ns == 4 * S
    assert found.output_tokens_per_s == Fraction(5 + 1 + 4 + 2, 4)
    assert found.requests_per_s == Fraction(3, 4)


def test_warm_up_is_left_out_of_the_statistics_and_not_of_the_counts(record: RunRecord) -> None:
    """With the first request left out, the window begins at the second one's arrival."""
    found = measure(record, warmup=1)
    assert (found.completed, found.measured) == (3, 2)
    assert found.duration_ns == 3 * S
    assert found.output_tokens == 1 + 4 + 2
    assert found.ttft is not None
    assert found.ttft.mean_ns == 250 * MS


@pytest.mark.parametrize(
    ("asked", "good", "share"),
    [
        (objectives(), 2, Fraction(2, 3)),
        (objectives(tpot_ms=99), 1, Fraction(1, 3)),
        (objectives(tpot_ms=100), 2, Fraction(2, 3)),
        (objectives(tpot_ms=100, lone="fails"), 1, Fraction(1, 3)),
        (objectives(tpot_ms=100, lone="exclude"), 1, Fraction(1, 2)),
    ],
    ids=["ttft", "tpot-below", "tpot-met", "lone-fails", "lone-excluded"],
)
def test_goodput_asks_for_every_objective(
    record: RunRecord, asked: Objectives, good: int, share: Fraction
) -> None:
    """An objective is met by what is equal to it; the share leaves out what was not asked."""
    found = measure(record, objectives=asked)
    assert (found.goodput_per_s, found.goodput_share) == (Fraction(good, 4), share)


def test_the_machine_is_judged_over_the_whole_run(record: RunRecord) -> None:
    """Busy share and host gaps do not depend on the warm-up; the first step has no gap."""
    found: RunMetrics = measure(record, warmup=2)
    assert found.npu_busy_share == Fraction(1, 4)
    assert found.host_gap is not None
    assert (found.host_gap.count, found.host_gap_total_ns) == (2, 12)
