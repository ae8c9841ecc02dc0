"""Just-in-time selection on simulated machines: who joins, what is hidden, what noise does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead.commands import Command
from stepahead.events import BatchExecuted, Event
from stepahead_models import walk
from stepahead_models.closed_form import ClosedForm
from stepahead_models.device import Device
from stepahead_models.examples import (
    ROUND_CPU,
    VOCABULARY,
    constant_device,
    mixed_workload,
    plain_workload,
    roofline_device,
)
from stepahead_models.noise import Noise, NoiseStream
from stepahead_models.record import RunRecord
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash
from stepahead_models.workload import Workload

EOS = 7
MACHINE = constant_device(1000, ROUND_CPU)


def noisy(device: Device, spread_ppm: int, seed: int) -> Device:
    """Return a device whose NPU and CPU times deviate by up to ``spread_ppm``."""
    return replace(
        device,
        npu_noise=Noise(seed, NoiseStream.NPU, spread_ppm),
        cpu_noise=Noise(seed, NoiseStream.CPU, spread_ppm),
    )


def run(  # noqa: PLR0913 # a machine and a loop, by keyword
    workload: Workload,
    device: Device,
    *,
    timing: SelectionTiming = SelectionTiming.JUST_IN_TIME,
    lookahead: int = 1,
    late_joiners: bool = False,
    prune: bool = False,
    stretches: bool = True,
    budget: int = 64,
    known: dict[int, str] | None = None,
) -> tuple[RunRecord, Kernel]:
    """Run a workload; return the record and the kernel at its end.

    With a small token budget prompts take many steps; unchecked runs take them in stretches.
    ``known`` gets the kernel's digest after each device step, by the number of its batch.
    """
    kernel = Kernel(
        KernelConfig(
            num_blocks=4000,
            block_size=4,
            max_concurrency=min(16, budget),
            max_num_batched_tokens=budget,
            max_model_len=512,
            lookahead=lookahead,
            timing=timing,
            late_joiners=late_joiners,
            prune=prune,
            eos_token_id=EOS,
        )
    )
    kind = ClosedForm if budget < 64 else HistoryHash
    model = kind(vocab_size=VOCABULARY, eos_token_id=EOS)

    def observe(event: Event, _: tuple[Command, ...]) -> None:
        if known is not None and isinstance(event, BatchExecuted):
            known[event.batch_id + len(event.tokens) - 1] = kernel.digest()

    simulation = Simulation(
        kernel, workload, device, model, stretches=stretches, observers=[observe]
    )
    return simulation.run(), kernel


def test_who_arrives_while_the_device_runs_joins_the_next_batch() -> None:
    """The newcomer arrives 300 ns after a step has begun; overlap has closed the next batch."""
    load = plain_workload([4, 4], arrivals_ns=[0, 20_000], max_tokens=[60, 2])
    late, _ = run(load, MACHINE)
    early, _ = run(load, MACHINE, timing=SelectionTiming.EARLY)
    begun = int(late.step_starts_ns[late.step_starts_ns <= 20_000][-1])
    following = late.step_starts_ns[late.step_starts_ns > 20_000]
    assert begun < 20_000 < int(following[0])
    assert late.first_dispatches_ns[1] == following[0]
    after = early.step_starts_ns[early.step_starts_ns > 20_000]
    assert early.first_dispatches_ns[1] == after[1]


def test_steps_follow_each_other_as_closely_as_under_overlap() -> None:
    """On a machine without surprises nothing is exposed: same starts, same tokens."""
    load = plain_workload([4, 9, 30], max_tokens=[80, 50, 90])
    late, kernel = run(load, MACHINE)
    early, _ = run(load, MACHINE, timing=SelectionTiming.EARLY)
    assert late.step_starts_ns.tolist() == early.step_starts_ns.tolist()
    assert late.tokens_digest == early.tokens_digest
    assert late.exposed_preparations == 0
    assert late.preparations > 0
    assert late.margin_ppm == kernel.margin_ppm is not None
    assert early.margin_ppm is None


def test_a_step_that_becomes_shorter_is_learnt_in_the_middle_of_a_run() -> None:
    """A few preparations come late, then they are hidden again."""

    class Shorter:
        """Takes 1000 ns, and 600 once the first row stands beyond position 60."""

        def step_ns(self, shape: object) -> int:
            positions: list[int] = getattr(shape, "positions").tolist()  # noqa: B009 # any shape
            return 600 if positions[0] >= 60 else 1000

        def repeat_ns(self, positions: np.ndarray, steps: int) -> np.ndarray:
            return np.where(positions[0] + np.arange(steps) >= 60, 600, 1000)

    device = replace(MACHINE, npu=Shorter())
    load = plain_workload([4], max_tokens=[200])
    for stretches in (True, False):
        record, _ = run(load, device, stretches=stretches)
        assert 0 < record.exposed_preparations <= 8


@given(st.integers(0, 10**6), st.sampled_from([0, 50_000, 200_000]), st.integers(1, 2))
@settings(max_examples=15)
def test_stretches_learn_what_single_steps_learn_whatever_the_noise(
    seed: int, spread_ppm: int, lookahead: int
) -> None:
    """The kernel is the same after every stretch, margin and estimates included."""
    device = noisy(roofline_device((1, 3, 30)[seed % 3]), spread_ppm, seed)
    workload = mixed_workload(seed, 4)
    leapt_at: dict[int, str] = {}
    single_at: dict[int, str] = {}
    (leapt, _), (single, _) = (
        run(
            workload,
            device,
            lookahead=lookahead,
            late_joiners=seed % 2 == 0,
            prune=seed % 4 < 2,
            budget=(64, 18)[seed % 5 < 2],
            stretches=known is leapt_at,
            known=known,
        )
        for known in (leapt_at, single_at)
    )
    assert leapt_at.items() <= single_at.items()
    assert leapt.journal_digest == single.journal_digest
    assert leapt.step_starts_ns.tolist() == single.step_starts_ns.tolist()
    assert leapt.exposed_ns == single.exposed_ns


@pytest.mark.parametrize("seed", range(6))
def test_long_prompts_teach_what_their_single_steps_do(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is learnt from, also behind those that are walked at once."""
    monkeypatch.setattr(walk, "_FIRST_TURNS", 3)
    load = plain_workload([300, 30, 200], arrivals_ns=[0, 50_000, 90_000], max_tokens=[10, 60, 2])
    device = noisy(roofline_device(), (0, 20_000, 200_000)[seed % 3], seed)
    known: list[dict[int, str]] = [{}, {}]
    for stretches in (False, True):
        run(load, device, budget=9, stretches=stretches, known=known[stretches])
    single, leapt = known
    assert len(leapt) < len(single) / 2
    assert leapt.items() <= single.items()


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_tokens_are_those_of_the_eager_loop(seed: int) -> None:
    """Late joiners and pruning on; every request that completed in both got the same output."""
    device = noisy(roofline_device((1, 3, 30)[seed % 3]), 200_000, seed)
    workload = mixed_workload(seed, 4)
    late, _ = run(workload, device, late_joiners=True, prune=True)
    eager, _ = run(workload, device, timing=SelectionTiming.EARLY, lookahead=0)
    done = (late.outcomes <= 1) & (eager.outcomes <= 1)
    assert done.any()
    assert late.checksums[done].tolist() == eager.checksums[done].tolist()
    assert late.leaked_blocks == eager.leaked_blocks == 0
    assert late.wasted_eos.rows == late.wasted_cancel.rows == 0


def test_noise_exposes_few_preparations() -> None:
    """With 20 % on every time, the margin keeps late preparations below two in a hundred."""
    draw = np.random.default_rng(5)
    load = plain_workload(
        draw.integers(4, 60, 60).tolist(),
        arrivals_ns=np.cumsum(draw.integers(0, 20_000, 60)).tolist(),
        max_tokens=draw.integers(2, 90, 60).tolist(),
    )
    record, _ = run(load, noisy(MACHINE, 200_000, 3))
    assert record.preparations > 500
    assert record.exposed_preparations <= record.preparations // 50
