"""Calibration: the fit finds what made the data, and the shipped costs meet the aim."""

from __future__ import annotations

import re
from math import exp

import numpy as np
import pytest

from stepahead_models.calibration import (
    HOST_SHARES,
    Calibration,
    Comparison,
    calibrate,
    compare,
    split_host_time,
)
from stepahead_models.closed_loop import ClosedLoop
from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.envelope import Envelope, EnvelopeRow, Lengths, load_envelope
from stepahead_models.estimate import EagerEstimate, Prediction, eager_host_ns
from stepahead_models.npu import DeviceModelError
from stepahead_models.profiles import load_profile

ENVELOPE = load_envelope("rngd-llama-3.1-8b")
PROFILE = load_profile("rngd-llama-3.1-8b")
LENGTHS = Lengths(source="made up", prompt=[10, 20, 40], output=[4, 8])


def simple_device(row: EnvelopeRow, cpu: CpuModel) -> Prediction:
    """Decode in 10 ms plus 0.1 ms per row, plus the host's jobs."""
    rows = round(row.concurrency)
    tpot_ms = 10 + 0.1 * rows + eager_host_ns(cpu, rows, rows) / 1e6
    return Prediction(rows / tpot_ms * 1e3, tpot_ms)


def _measured_on_simple_device(cpu: CpuModel) -> Envelope:
    rows: list[EnvelopeRow] = []
    for concurrency in (1, 4, 16, 64):
        bare = EnvelopeRow(concurrency, concurrency, 9, 1.0, 1.0)
        truth = simple_device(bare, cpu)
        fitted = concurrency < 64
        figures = (truth.tokens_per_s, truth.tpot_ms)
        rows.append(EnvelopeRow(concurrency, concurrency, 9, *figures, None, fitted))
    return Envelope("made up", "none", "made up", rows, LENGTHS)


def test_the_fit_recovers_the_costs_that_made_the_data() -> None:
    """Base and slope come back within 1 %, and with them the held-out row."""
    truth = split_host_time(1_500_000, 80_000, CpuModel(host_sampling=CpuTerms(base_ns=9_000)))
    start = CpuModel(host_sampling=CpuTerms(base_ns=9_000))

    found = calibrate(_measured_on_simple_device(truth), start, simple_device)

    assert found.base_ns == pytest.approx(1_500_000, rel=0.01)
    assert found.per_row_ns == pytest.approx(80_000, rel=0.01)
    assert found.errors(fitted=False)[1] < 0.01
    assert found.cpu.host_sampling == CpuTerms(base_ns=9_000)


def test_the_fit_shortens_steps_that_overshoot() -> None:
    """TPOT explodes just above the truth, so a full step from the flat part goes far beyond it."""

    def steep(row: EnvelopeRow, cpu: CpuModel) -> Prediction:
        host_ms = eager_host_ns(cpu, row.requested, row.requested) / 1e6
        tpot_ms = 10 + 100 / (1 + exp(-6 * (host_ms - 2.5)))
        return Prediction(row.requested / tpot_ms * 1e3, tpot_ms)

    truth = split_host_time(1_400_000, 120_000, CpuModel())
    points = [steep(row, truth) for row in ENVELOPE.rows[:3]]
    rows = [
        EnvelopeRow(n, n, 9, point.tokens_per_s, point.tpot_ms, None, fitted=True)
        for n, point in zip((1, 2, 4), points, strict=True)
    ]

    found = calibrate(
        Envelope("made up", "none", "none", rows, LENGTHS), CpuModel(), steep, rounds=40
    )

    assert found.base_ns == pytest.approx(1_400_000, rel=0.02)
    assert found.per_row_ns == pytest.approx(120_000, rel=0.02)


def test_the_fit_does_not_look_at_held_out_rows() -> None:
    """A held-out row that is wildly wrong changes nothing but its own error."""
    envelope = _measured_on_simple_device(split_host_time(1_000_000, 50_000, CpuModel()))
    rows = [*envelope.rows[:3], EnvelopeRow(64, 64, 9, 1.0, 1_000.0)]
    spoilt = Envelope("made up", "none", "made up", rows, LENGTHS)

    clean, dirty = (calibrate(e, CpuModel(), simple_device) for e in (envelope, spoilt))

    assert clean.cpu == dirty.cpu
    assert dirty.errors(fitted=False)[1] > 0.9 > clean.errors(fitted=False)[1]


def test_the_shares_of_the_jobs_make_up_the_whole() -> None:
    """Splitting loses nothing; terms per token and per block stay."""
    cpu = split_host_time(
        1_000_000, 1_000, CpuModel(build=CpuTerms(per_token_ns=2, per_block_ns=3))
    )

    assert sum(HOST_SHARES.values()) == pytest.approx(1)
    assert cpu.build == CpuTerms(base_ns=540_000, per_row_ns=540, per_token_ns=2, per_block_ns=3)
    assert eager_host_ns(cpu, 10, 10) == 1_000_000 + 10 * 1_000 + 10 * 2


def test_the_shipped_host_costs_are_near_what_the_closed_form_gives() -> None:
    """They were fitted with the simulator, on concurrency 1, 4 and 16 alone; within 10 %."""
    assert [row.requested for row in ENVELOPE.rows if row.fitted] == [1, 4, 16]
    shipped = PROFILE.cpu_model()

    fitted = calibrate(ENVELOPE, shipped, EagerEstimate(PROFILE, ENVELOPE.lengths)).cpu

    for job in HOST_SHARES:
        mine, theirs = getattr(shipped, job), getattr(fitted, job)
        assert mine.base_ns == pytest.approx(theirs.base_ns, rel=0.1)
        assert mine.per_row_ns == pytest.approx(theirs.per_row_ns, rel=0.1)


def test_the_shipped_profile_meets_the_aim_on_held_out_rows() -> None:
    """Simulated tokens/s and TPOT of five rows: median error under 10 %, worst under 20 %."""
    held_out = [row for row in ENVELOPE.rows if not row.fitted]
    envelope = Envelope("held out", "none", "none", held_out, ENVELOPE.lengths)

    rows = compare(envelope, ClosedLoop(PROFILE, ENVELOPE.lengths), PROFILE.cpu_model())

    median, worst = Calibration(0, 0, CpuModel(), rows).errors()
    assert len(rows) == 5
    assert median < 0.10
    assert worst < 0.20


def test_the_closed_form_agrees_with_the_simulator_at_low_load() -> None:
    """Concurrency 2, 4 and 8: both figures within 3 %."""
    estimate = EagerEstimate(PROFILE, ENVELOPE.lengths)
    simulated = ClosedLoop(PROFILE, ENVELOPE.lengths)

    for row in ENVELOPE.rows[1:4]:
        one, other = (predict(row, PROFILE.cpu_model()) for predict in (estimate, simulated))
        assert one.tokens_per_s == pytest.approx(other.tokens_per_s, rel=0.03)
        assert one.tpot_ms == pytest.approx(other.tpot_ms, rel=0.03)


def test_overlap_raises_throughput_by_no_more_than_the_host_time_it_can_hide() -> None:
    """At concurrency 8 the gain lies between half of that time and all of it."""
    row, cpu = ENVELOPE.rows[3], PROFILE.cpu_model()

    eager = ClosedLoop(PROFILE, ENVELOPE.lengths)(row, cpu)
    overlap = ClosedLoop(PROFILE, ENVELOPE.lengths, lookahead=1)(row, cpu)

    hidden_ms = eager_host_ns(cpu, 8, 8) / 1e6
    assert hidden_ms / 2 < eager.tpot_ms - overlap.tpot_ms < hidden_ms


def test_the_report_shows_every_row_and_hides_no_error() -> None:
    """One line per row, marked, then median and worst of held-out, fitted and all rows."""
    rows = (
        Comparison(EnvelopeRow(1.0, 1, 9, 60.0, 15.0, None, fitted=True), Prediction(63.0, 15.3)),
        Comparison(EnvelopeRow(107.2, 128, 9, 1_000.0, 50.0), Prediction(900.0, 65.0)),
    )

    report = Calibration(1_124_000, 176_700, CpuModel(), rows).report()

    assert report == (
        "host time per step: 1124 us + 176.7 us per row (host sampling excluded)\n"
        "concurrency  tokens/s: measured simulated   error   TPOT ms: measured simulated   error\n"
        "       1.00                60.0      63.0  +5.0 %               15.00     15.30  +2.0 %"
        "  fitted\n"
        "     107.20              1000.0     900.0 -10.0 %               50.00     65.00 +30.0 %"
        "  held out\n"
        "held out: median error 20.0 %, worst 30.0 %\n"
        "fitted: median error 3.5 %, worst 5.0 %\n"
        "all rows: median error 7.5 %, worst 30.0 %"
    )


def test_a_workload_has_the_quantiles_that_it_was_drawn_from() -> None:
    """Any prefix of the workload is spread over both distributions; every call gives the same."""
    prompts, outputs = LENGTHS.workload(400)

    assert np.percentile(prompts, [0, 50, 100]) == pytest.approx([10, 20, 40], abs=1)
    assert np.percentile(outputs[:100], [0, 50, 100]) == pytest.approx([4, 6, 8], abs=1)
    assert abs(float(np.corrcoef(prompts, outputs)[0, 1])) < 0.1
    assert LENGTHS.workload(50)[0].tolist() == prompts[:50].tolist()


def test_an_unknown_envelope_lists_the_known_ones() -> None:
    """The sentence says what may be given instead."""
    sentence = "there is no measured envelope 'nope'; give one of rngd-llama-3.1-8b"

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        load_envelope("nope")
