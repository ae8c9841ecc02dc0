"""The host's costs: sums, one rounding per total, and noise that only depends on its key."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.noise import Noise, NoiseStream, noise_ppm
from stepahead_models.npu import BatchShape, DeviceModelError

HOST = CpuModel(
    build=CpuTerms(base_ns=1_000, per_row_ns=100, per_token_ns=10, per_block_ns=1),
    fill=CpuTerms(base_ns=2_000, per_row_ns=20),
    host_sampling=CpuTerms(base_ns=3_000, per_row_ns=30),
    synchronisation=CpuTerms(base_ns=4_000),
    result_processing=CpuTerms(base_ns=5_000, per_row_ns=50, per_token_ns=5),
)
SHAPE = BatchShape(np.array([0, 7]), np.array([6, 1]), 2, new_blocks=3)


def test_each_job_adds_its_terms() -> None:
    """Build counts rows, tokens and new blocks; the others rows, one token each."""
    assert HOST.build_ns(SHAPE) == 1_000 + 200 + 70 + 3
    assert HOST.fill_ns(2) == 2_040
    assert HOST.sampling_ns(2) == 3_060
    assert HOST.synchronisation_ns(2) == 4_000
    assert HOST.processing_ns(2) == 5_110


def test_nothing_is_sampled_for_a_batch_without_sampling_rows() -> None:
    """A batch of prompt chunks alone skips the sampling job, base included."""
    assert HOST.sampling_ns(0) == 0


@given(
    rows=st.integers(1, 500), blocks=st.integers(0, 500), scale=st.sampled_from(["1", "0.5", "3"])
)
def test_building_a_decode_batch_costs_the_same_with_and_without_its_shape(
    rows: int, blocks: int, scale: str
) -> None:
    """`build_like_ns` is a shorter way to the same number."""
    ones = np.ones(rows, dtype=np.int64)
    host = HOST.scaled(scale)

    assert host.build_like_ns(rows, rows, blocks) == host.build_ns(
        BatchShape(ones, ones, rows, blocks)
    )


@pytest.mark.parametrize(("total", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_a_scaled_total_rounds_half_to_even_once(total: int, expected: int) -> None:
    """0.5, 1.5, 2.5 and 3.5 ns become 0, 2, 2 and 4."""
    host = CpuModel(synchronisation=CpuTerms(base_ns=total)).scaled(0.5)

    assert host.synchronisation_ns(1) == expected


def test_scales_multiply_exactly() -> None:
    """A float counts as the decimal it prints as, so ten tenths are one."""
    assert HOST.scaled(0.1).scaled(10).scale == Fraction(1)


def test_a_host_without_costs_takes_no_time() -> None:
    """Every job of the zero host is free."""
    host = CpuModel.zero()

    assert host.build_ns(SHAPE) + host.fill_ns(9) + host.sampling_ns(9) == 0
    assert host.synchronisation_ns(9) + host.processing_ns(9) == 0


@pytest.mark.parametrize("factor", [-1.0, float("inf"), float("nan"), "much", "1/0"])
def test_a_scale_must_be_a_finite_number_from_zero_up(factor: float | str) -> None:
    """The sentence repeats what was given."""
    sentence = f"CPU scale {factor} is not usable; give a finite number >= 0"

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        HOST.scaled(factor)


def test_a_negative_cost_is_refused() -> None:
    """The sentence names the term."""
    with pytest.raises(
        DeviceModelError, match=r"^CPU cost per_row_ns=-1 is negative; give 0 or more$"
    ):
        CpuTerms(per_row_ns=-1)


@given(seed=st.integers(-(2**70), 2**70), first=st.integers(0, 2**40))
def test_noise_of_many_batches_is_the_noise_of_each(seed: int, first: int) -> None:
    """The array form and the single form agree, on deviations and on durations."""
    ids = first + np.arange(20)
    noise = Noise(seed, NoiseStream.NPU, 50_000)
    singles = [noise.deviation_ppm(int(i)) for i in ids]
    durations = np.arange(20) * 12_345_678

    assert noise_ppm(seed, ids, stream=NoiseStream.NPU, spread_ppm=50_000).tolist() == singles
    assert noise.apply_many_ns(durations, ids).tolist() == [
        noise.apply_ns(int(d), int(i)) for d, i in zip(durations, ids, strict=True)
    ]


def test_noise_has_the_shape_that_it_claims() -> None:
    """Mean 0, standard deviation spread / sqrt(6), nothing beyond the spread."""
    ppm = noise_ppm(7, np.arange(200_000), stream=NoiseStream.CPU, spread_ppm=60_000)

    assert abs(float(ppm.mean())) < 200
    assert abs(float(ppm.std()) - 60_000 / 6**0.5) < 200
    assert int(np.abs(ppm).max()) <= 60_000


def test_noise_differs_by_seed_stream_and_batch() -> None:
    """Two seeds, the two streams and neighbouring batches share nothing."""
    ids = np.arange(1_000)
    runs = [
        noise_ppm(seed, ids, stream=stream, spread_ppm=999_999).tolist()
        for seed in (1, 2)
        for stream in NoiseStream
    ]

    assert all(len(set(run)) > 990 for run in runs)
    for one in range(len(runs)):
        for other in range(one):
            assert abs(float(np.corrcoef(runs[one], runs[other])[0, 1])) < 0.1


def test_noise_of_known_keys_never_changes() -> None:
    """Pinned: results of earlier versions must stay reproducible."""
    noise = Noise(1, NoiseStream.NPU, 100_000)

    assert [noise.deviation_ppm(batch) for batch in range(4)] == PINNED


@pytest.mark.parametrize("spread", [-1, 1_000_000])
def test_a_spread_out_of_range_is_refused(spread: int) -> None:
    """The sentence gives the range."""
    sentence = f"noise spread {spread} ppm is not usable; give 0 to 999999 millionths"

    with pytest.raises(DeviceModelError, match=f"^{sentence}$"):
        Noise(1, NoiseStream.CPU, spread)


PINNED = [-93420, 55318, -10203, 48298]
