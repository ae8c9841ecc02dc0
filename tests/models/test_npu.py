"""Device models: what a batch costs, and that a stretch costs what its steps do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.arrays import Ints
from stepahead_models.npu import BatchShape, DeviceModelError, NpuModel, Polyline, RooflineNpu
from stepahead_models.profiles import load_profile, profile_names
from stepahead_models.staged import DecodeBucket, StagedNpu, Stages
from stepahead_models.table import Measurement, TableNpu

MODELS = {name: load_profile(name).npu_model() for name in profile_names()}

#: Round numbers: dense 10 per token bucket, groups of two KV buckets, one prefill chunk of 4.
STAGES = Stages(
    layers=2,
    dense_ns={1: 1_000, 2: 2_000, 4: 4_000, 8: 8_000},
    fused_one_ns=900,
    fused_saving_ns=50,
    decode=[
        DecodeBucket(size=16, group_ns=100, sequence_ns=10, group_rows_max=4),
        DecodeBucket(size=32, group_ns=100, sequence_ns=20, group_rows_max=2),
    ],
    decode_batches=[1, 2, 4],
    prefill_ns={4: [(4, 300), (16, 400), (32, 800)]},
    chunk_multiple=4,
    extend_size_min=16,
    head_ns=[(1, 7), (3, 9)],
)


def _shape(positions: list[int], counts: list[int], sampling_rows: int) -> BatchShape:
    return BatchShape(np.array(positions), np.array(counts), sampling_rows)


def _decode(positions: list[int]) -> BatchShape:
    return _shape(positions, [1] * len(positions), len(positions))


def test_a_shape_counts_its_rows_and_tokens() -> None:
    """Tokens are the sum of what the rows compute."""
    seen = _shape([5, 9], [3, 1], 2)

    assert (seen.rows, seen.tokens) == (2, 4)


@pytest.mark.parametrize("name", sorted(MODELS))
@given(
    positions=st.lists(st.integers(0, 9_000), min_size=1, max_size=40),
    steps=st.integers(1, 60),
)
def test_a_stretch_takes_as_long_as_its_single_steps(
    name: str, positions: list[int], steps: int
) -> None:
    """`repeat_ns` equals `step_ns` at positions that advance by one, on every packaged device."""
    _assert_stretch_equals_steps(MODELS[name], np.array(positions), steps)


@pytest.mark.parametrize("name", sorted(MODELS))
@given(
    start=st.sampled_from([1_000, 2_030, 4_080, 8_180, 16_370]),
    rows=st.integers(1, 300),
    steps=st.integers(1, 40),
)
def test_a_stretch_that_crosses_a_bucket_edge_takes_as_long_as_its_single_steps(
    name: str, start: int, rows: int, steps: int
) -> None:
    """Rows that move into the next KV bucket at different steps change the time at these steps."""
    _assert_stretch_equals_steps(MODELS[name], start + np.arange(rows) % 31, steps)


def test_a_stretch_wider_than_the_tables_takes_as_long_as_its_single_steps() -> None:
    """More rows than are tabulated go the slow way with the same answer."""
    _assert_stretch_equals_steps(MODELS["rngd-llama-3.1-8b"], np.arange(1_030), 3)


def _assert_stretch_equals_steps(model: NpuModel, positions: Ints, steps: int) -> None:
    ones = np.ones(len(positions), dtype=np.int64)
    singles = [model.step_ns(BatchShape(positions + k, ones, len(ones))) for k in range(steps)]

    assert model.repeat_ns(positions, steps).tolist() == singles


def test_a_roofline_takes_the_longer_of_compute_and_memory() -> None:
    """One token is bound by memory, many by arithmetic; the overhead comes on top."""
    model = RooflineNpu.from_rates(
        flops_per_s=1e12,
        bytes_per_s=1e9,
        flops_per_token=1e6,
        weights_bytes=5_000,
        kv_bytes_per_token=100,
        overhead_ns=7,
    )

    # 1 us of arithmetic per token; 5 us of weights and 0.1 us per KV token read.
    assert model.step_ns(_decode([9])) == 5_000 + 10 * 100 + 7
    assert model.step_ns(_shape([0], [50], 1)) == 50_000 + 7


def _verify(positions: list[int], drafts: list[int]) -> BatchShape:
    counts = [1 + count for count in drafts]
    return BatchShape(
        np.array(positions), np.array(counts), len(positions), drafts=np.array(drafts)
    )


def test_every_draft_is_a_position_that_is_sampled_from() -> None:
    """One more per draft than there are sampling rows."""
    assert _verify([5, 6, 7], [2, 0, 3]).samples == 8
    assert _shape([5, 9], [3, 1], 1).samples == 1


def test_a_row_with_drafts_reads_its_kv_once_and_pays_dense_and_head_per_token() -> None:
    """2 layers of dense 4 tokens and one group of two rows; the head at 4 positions; not fused."""
    model = StagedNpu(STAGES)
    assert model.step_ns(_verify([3, 4], [1, 1])) == 2 * (4_000 + 120) + 10
    # Its last position decides on the KV bucket: 15 is the last of the first bucket.
    assert model.step_ns(_verify([14], [1])) == 2 * (2_000 + 110) + 8
    assert model.step_ns(_verify([15], [1])) == 2 * (2_000 + 120) + 8
    # Beside a plain decode row, and beside a prompt.
    assert model.step_ns(_verify([3, 4], [1, 0])) == 2 * (4_000 + 120) + 9
    mixed = BatchShape(np.array([3, 0]), np.array([3, 4]), 2, drafts=np.array([2, 0]))
    assert model.step_ns(mixed) == 2 * (8_000 + 110 + 300) + 10


def test_a_roofline_reads_the_history_of_a_row_with_drafts_once() -> None:
    """9 KV tokens before it and 3 of its own, 3 us of arithmetic."""
    model = RooflineNpu.from_rates(
        flops_per_s=1e12,
        bytes_per_s=1e9,
        flops_per_token=1e6,
        weights_bytes=5_000,
        kv_bytes_per_token=100,
        overhead_ns=7,
    )
    assert model.step_ns(_verify([9], [2])) == 5_000 + 12 * 100 + 7


def test_one_decode_row_runs_fused() -> None:
    """The fused dense part replaces the bucket of one token: 2 layers, 110 attention, head 7."""
    assert StagedNpu(STAGES).step_ns(_decode([15])) == 2 * (900 + 110) + 7


def test_rows_of_one_bucket_run_fused_and_are_padded_to_a_compiled_batch() -> None:
    """Three rows cost four sequences and four tokens, less what the fused pipeline saves."""
    assert StagedNpu(STAGES).step_ns(_decode([3, 4, 5])) == 2 * (4_000 + 140 - 50) + 9


def test_rows_of_two_buckets_run_as_two_groups() -> None:
    """The row whose own token is the 17th falls into the second bucket."""
    assert StagedNpu(STAGES).step_ns(_decode([15, 16])) == 2 * (2_000 + 110 + 120) + 8


def test_a_group_above_the_largest_compiled_batch_takes_several_executions() -> None:
    """Three rows at 32 run as two and one, and not fused."""
    assert StagedNpu(STAGES).step_ns(_decode([20, 20, 20])) == 2 * (4_000 + 140 + 120) + 9


def test_rows_are_cut_into_the_compiled_batches_that_cost_least() -> None:
    """Where sequences are dear and groups cheap, three rows run as two and one, without fusing."""
    bucket = DecodeBucket(size=16, group_ns=10, sequence_ns=100, group_rows_max=4)
    model = StagedNpu(replace(STAGES, decode=[bucket]))

    assert model.step_ns(_decode([3, 4, 5])) == 2 * (4_000 + 10 + 200 + 10 + 100) + 9
    assert model.step_ns(_decode([3, 4, 5, 6])) == 2 * (4_000 + 10 + 400 - 50) + 10


def test_a_prompt_chunk_is_padded_and_samples_only_at_its_end() -> None:
    """Three tokens cost a chunk of four; without a sampling row there is no head."""
    model = StagedNpu(STAGES)

    assert model.step_ns(_shape([0], [3], 1)) == 2 * (4_000 + 300) + 7
    assert model.step_ns(_shape([0], [4], 0)) == 2 * (4_000 + 300)


def test_a_chunk_with_history_costs_by_its_padded_attention_size() -> None:
    """History 4 pads to 16; history 14 needs 32; 64 goes on along the last segment."""
    model = StagedNpu(STAGES)

    assert model.step_ns(_shape([4], [4], 0)) == 2 * (4_000 + 400)
    assert model.step_ns(_shape([14], [4], 0)) == 2 * (4_000 + 800)
    assert model.step_ns(_shape([40], [4], 0)) == 2 * (4_000 + 1_600)


def test_a_row_longer_than_the_largest_chunk_runs_in_several() -> None:
    """Six tokens are a chunk of four and a padded one of two with history."""
    assert StagedNpu(STAGES).step_ns(_shape([0], [6], 0)) == 2 * (8_000 + 300 + 400)


def test_a_mixed_batch_shares_the_dense_stage() -> None:
    """One decode row and a chunk of four fill a bucket of eight; attention adds up."""
    assert StagedNpu(STAGES).step_ns(_shape([10, 0], [1, 4], 2)) == 2 * (8_000 + 110 + 300) + 8


def test_a_position_above_the_largest_bucket_is_refused_in_steps_and_stretches() -> None:
    """The sentence names the position, the bucket and the option to lower."""
    model = StagedNpu(STAGES)
    sentence = re.escape(
        "a row stands at KV position 32, but the largest KV bucket of the device holds 32 tokens; "
        "lower max_model_len to that"
    )

    with pytest.raises(DeviceModelError, match=f"^{sentence}$"):
        model.step_ns(_decode([32]))
    with pytest.raises(DeviceModelError, match=f"^{sentence}$"):
        model.step_ns(_shape([0, 32], [4, 1], 0))
    with pytest.raises(DeviceModelError, match=f"^{sentence}$"):
        model.repeat_ns(np.array([30]), 3)


LACKING = (
    "the decode measurements lack tokens=3, kv_tokens=100; measure that point or leave its row or "
    "column out"
)
GRID = [
    Measurement(1, 1, 0, 10.0),
    Measurement(1, 1, 100, 20.0),
    Measurement(3, 3, 0, 30.0),
    Measurement(3, 3, 100, 60.0),
]


@pytest.mark.parametrize(
    ("rows", "kv_tokens", "expected"),
    [(1, 0, 10_000), (3, 100, 60_000), (2, 50, 30_000), (1, 200, 30_000), (4, 0, 40_000)],
)
def test_a_table_interpolates_and_goes_on_along_its_last_segments(
    rows: int, kv_tokens: int, expected: int
) -> None:
    """Measured points come back; between them bilinear; outside the nearest line goes on."""
    assert TableNpu(GRID).step_ns(_decode([kv_tokens] + [0] * (rows - 1))) == expected


def test_a_table_with_one_line_is_a_constant_and_never_below_a_nanosecond() -> None:
    """One point has no slope; an extrapolated time stays positive."""
    falling = [Measurement(1, 1, 0, 2.0), Measurement(1, 1, 10, 1.0)]

    assert TableNpu(GRID[:1]).step_ns(_decode([500, 3])) == 10_000
    assert TableNpu(GRID[:1]).repeat_ns(np.array([500, 3]), 2).tolist() == [10_000, 10_000]
    assert TableNpu(falling).step_ns(_decode([100])) == 1


def test_a_table_prices_prompts_by_their_own_grid_where_there_is_one() -> None:
    """Lines with more tokens than rows are the prefill grid; without them decode serves."""
    prefill = [*GRID, Measurement(1, 8, 0, 80.0)]

    assert TableNpu(prefill).step_ns(_shape([0], [8], 1)) == 80_000
    assert TableNpu(GRID).step_ns(_shape([0], [5], 1)) == 50_000


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "a table of measurements has no line; give at least one"),
        (GRID[:3], LACKING),
        ([*GRID, GRID[0]], "the decode measurements hold tokens=1, kv_tokens=0 twice; keep one"),
    ],
)
def test_an_unusable_table_is_refused(lines: list[Measurement], sentence: str) -> None:
    """The sentence names the grid and the point."""
    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        TableNpu(lines)


def test_a_polyline_passes_through_its_points_and_goes_on() -> None:
    """Between and beyond the points the nearest segment counts; one point is a constant."""
    line = Polyline([(1.0, 10.0), (2.0, 20.0), (4.0, 20.0)])

    assert [line(x) for x in (0.0, 1.5, 3.0, 9.0)] == [0.0, 15.0, 20.0, 20.0]
    assert Polyline([(3.0, 5.0)])(100.0) == 5.0


def test_a_polyline_needs_ascending_points() -> None:
    """Points out of order are refused with the points in the sentence."""
    sentence = "points [(2, 1), (1, 1)] do not ascend; sort them by their first value"

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        Polyline([(2, 1), (1, 1)])
