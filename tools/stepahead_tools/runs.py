"""One run: a kernel, a workload and a machine from the settings, and its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import Struct, structs

from stepahead import Kernel
from stepahead_models.closed_form import ClosedForm
from stepahead_models.device import Device
from stepahead_models.loading import load_workload
from stepahead_models.noise import Noise, NoiseStream
from stepahead_models.profiles import Profile
from stepahead_models.record import Outcome, RunRecord
from stepahead_models.remote import InProcessStore
from stepahead_models.simulation import Observer, Simulation
from stepahead_models.tokens import HistoryHash
from stepahead_models.traces import Trace, plan_requests
from stepahead_models.workload import Workload
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER, Loop
from stepahead_tools.pacing import Pacing, pace
from stepahead_tools.settings import EOS_TOKEN_ID, VOCAB_SIZE, Settings

#: Is told how many requests have ended.
Progress = Callable[[int], None]
_NS_PER_S: Final = 1_000_000_000


class Scene(Struct, frozen=True, kw_only=True):
    """What every loop of a comparison runs on.

    Args:
        settings: what was asked for.
        profile: the device.
        machine: its simulation under the settings.
        trace: the requests with their arrivals.
        workload: the same, as the simulation takes them.
        model: the token model.
        capacity_per_s: measured requests/s that load 1 stands for, when pacing is by load.
    """

    settings: Settings
    profile: Profile
    machine: Device
    trace: Trace
    workload: Workload
    model: HistoryHash | ClosedForm
    capacity_per_s: Fraction | None

    @property
    def closed_loop(self) -> int | None:
        """How many requests run at once in a closed loop, or None."""
        pacing = self.settings.pacing
        return int(pacing.value) if pacing.kind == "concurrency" else None


def set_up(trace: Trace, settings: Settings, profile: Profile, progress: Progress | None) -> Scene:
    """Return the scene of a trace; measures the capacity first where arrivals are paced by it.

    Raises:
        OptionError: the block size cannot share this trace's prompts, or its arrivals cannot be
            scaled.
        DeviceModelError: the device cannot do what the settings ask for.
    """
    if settings.limit is not None:
        trace = trace.limit(settings.limit)
    if settings.warmup >= len(trace):
        raise OptionError(
            f"--warmup {settings.warmup} leaves none of the {len(trace)} requests to measure; give "
            f"at most {len(trace) - 1}"
        )
    unpaced = _scene(trace, settings, profile)
    capacity = None
    if settings.pacing.kind == "load":
        # Refuses what cannot be scaled before anything has run.
        pace(trace, settings.pacing, settings.seed, Fraction(1))
        capacity = measure_capacity(unpaced, progress)
    paced = pace(trace, settings.pacing, settings.seed, capacity)
    # Pacing moves the arrivals and nothing else.
    workload = replace(unpaced.workload, arrivals_ns=paced.arrivals_ns)
    return structs.replace(unpaced, trace=paced, workload=workload, capacity_per_s=capacity)


def measure_capacity(scene: Scene, progress: Progress | None = None) -> Fraction:
    """Return the requests/s that the eager loop serves when all requests arrive at time 0.

    Without speculation, so that a load means the same with and without it. Clients that leave after
    a time stay, since they would all leave while they wait. Counted are requests that were not
    refused, over the time of the whole run.
    """
    nothing = np.zeros_like(scene.workload.arrivals_ns)
    workload = replace(
        scene.workload, arrivals_ns=nothing, cancel_after_ns=np.full_like(nothing, -1)
    )
    pacing = Pacing("recorded")
    settings = structs.replace(scene.settings, pacing=pacing, speculation=None)
    burst = structs.replace(
        scene, workload=workload, settings=settings, model=_closed_form(settings)
    )
    record = run_loop(burst, EAGER, progress=progress)
    served = int((record.outcomes != Outcome.REFUSED).sum())
    if not served:
        raise OptionError(
            "--load needs requests that can be served, but all were refused; the first reason: "
            f"{next(iter(record.refusals.values()))[1]}"
        )
    return Fraction(served * _NS_PER_S, record.duration_ns)


def run_loop(  # noqa: PLR0913 # each by keyword
    scene: Scene,
    loop: Loop,
    *,
    stretches: bool = True,
    observers: Sequence[Observer] = (),
    kernel: Kernel | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Run the scene under one loop.

    Args:
        scene: what to run.
        loop: how to schedule.
        stretches: let the kernel answer several device steps at once.
        observers: see every event with its commands.
        kernel: the kernel to use, fresh; one for ``loop`` when None.
        progress: is told how many requests have ended.
    """
    settings, drafts = scene.settings, scene.settings.speculation
    kernel = kernel or Kernel(settings.kernel_config(loop))
    simulation = Simulation(
        kernel,
        scene.workload,
        scene.machine,
        scene.model,
        closed_loop=scene.closed_loop,
        stretches=stretches,
        observers=observers,
        remote=remote_store(settings, scene.profile) if kernel.config.remote else None,
        acceptance=None if drafts is None else drafts.acceptance(settings.seed),
    )
    return simulation.run(progress)


def machine(settings: Settings, profile: Profile) -> Device:
    """Return the machine of a device profile under the settings.

    Raises:
        DeviceModelError: the device has no sampler, but the settings ask for it.
    """
    spread, drafts = settings.noise_ppm, settings.speculation
    noises = {
        stream: Noise(settings.seed, stream, spread) if spread else None for stream in NoiseStream
    }
    return Device(
        npu=profile.npu_model(),
        cpu=profile.cpu_model().scaled(settings.cpu_scale),
        npu_sampler=profile.npu_sampler() if settings.npu_sampling else None,
        changed_batch=profile.changed_batch.terms(),
        submit=profile.dma.submit_terms(),
        drafter=None if drafts is None else drafts.costs,
        dma=profile.dma_model(),
        npu_noise=noises[NoiseStream.NPU],
        cpu_noise=noises[NoiseStream.CPU],
    )


def remote_store(settings: Settings, profile: Profile) -> InProcessStore | None:
    """Return an empty remote store for the blocks of a device, or None without."""
    if settings.remote is None:
        return None
    return InProcessStore(
        link=settings.remote.link,
        block_bytes=settings.block_size * profile.memory.kv_bytes_per_token.value,
        miss_ppm=settings.remote.miss_ppm,
        failure_ppm=settings.remote.failure_ppm,
        seed=settings.seed,
    )


def _scene(trace: Trace, settings: Settings, profile: Profile) -> Scene:
    """Return the scene of a trace with its recorded arrivals."""
    plan = plan_requests(trace, settings.ends, settings.max_model_len)
    try:
        workload = load_workload(
            trace,
            plan,
            block_size=settings.block_size,
            vocab_size=VOCAB_SIZE,
            prefix_caching=settings.prefix_caching,
        )
    except ValueError as error:
        raise OptionError(
            f"--block-size {settings.block_size} is not usable: {error}, or switch prefix caching "
            "off with --no-enable-prefix-caching"
        ) from error
    checked = HistoryHash(seed=settings.seed, vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    return Scene(
        settings=settings,
        profile=profile,
        machine=machine(settings, profile),
        trace=trace,
        workload=workload,
        model=_closed_form(settings) if settings.unchecked else checked,
        capacity_per_s=None,
    )


def _closed_form(settings: Settings) -> ClosedForm:
    return ClosedForm(seed=settings.seed, vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
