"""A machine as a whole: who pays for what."""

from __future__ import annotations

import numpy as np

from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.device import Device
from stepahead_models.examples import ConstantNpu, roofline_device
from stepahead_models.noise import Noise, NoiseStream
from stepahead_models.npu import BatchShape
from stepahead_models.profiles import load_profile

SHAPE = BatchShape(np.array([5, 0]), np.array([1, 8]), 1, 2)


def test_collecting_is_noticing_and_sampling_where_the_host_samples() -> None:
    """A device with a sampler takes the sampling into its step."""
    cpu = CpuModel(synchronisation=CpuTerms(base_ns=5), host_sampling=CpuTerms(per_row_ns=3))
    host = Device(npu=ConstantNpu(100), cpu=cpu)
    sampler = Device(npu=ConstantNpu(100), cpu=cpu, npu_sampler=CpuTerms(base_ns=7, per_row_ns=1))
    assert (host.collect_ns(4, 2, 1), host.step_ns(SHAPE, 1)) == (11, 100)
    assert (sampler.collect_ns(4, 2, 1), sampler.step_ns(SHAPE, 1)) == (5, 108)
    assert sampler.decode_ns(np.array([5, 6]), 1, 2).tolist() == [109, 109]


def test_a_changed_batch_costs_more_only_when_rows_are_dropped() -> None:
    """Pruning is paid for by whom it helps."""
    device = Device(
        npu=ConstantNpu(1),
        cpu=CpuModel(fill=CpuTerms(base_ns=10)),
        changed_batch=CpuTerms(base_ns=4, per_row_ns=1),
    )
    assert device.fill_ns(3, 1) == 10
    assert device.fill_ns(3, 1, pruned_rows=2) == 16


def test_noise_is_the_same_in_a_stretch_and_step_by_step() -> None:
    """It depends on the batch number alone."""
    quiet = roofline_device()
    device = Device(
        npu=quiet.npu,
        cpu=quiet.cpu,
        npu_noise=Noise(1, NoiseStream.NPU, 50_000),
        cpu_noise=Noise(1, NoiseStream.CPU, 50_000),
    )
    positions = np.array([5, 9])
    stretch = device.decode_ns(positions, 11, 6)
    single = [
        device.step_ns(BatchShape(positions + step, np.ones(2, dtype=np.int64), 2), 11 + step)
        for step in range(6)
    ]
    assert stretch.tolist() == single
    assert len({*(device.publish_ns(2, batch) for batch in range(6))}) > 1
    assert device.build_ns(SHAPE, 3) != quiet.build_ns(SHAPE, 3)


def test_a_profile_becomes_a_machine_whose_host_scales() -> None:
    """Twice the host costs, the same NPU."""
    profile = load_profile("fast")
    once, twice = Device.of(profile), Device.of(profile, cpu_scale=2)
    assert twice.build_ns(SHAPE, 1) == 2 * once.build_ns(SHAPE, 1) > 0
    assert twice.step_ns(SHAPE, 1) == once.step_ns(SHAPE, 1)
