"""One machine: an NPU, the host thread beside it, and who of the two samples."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.dma import Dma
from stepahead_models.noise import Noise
from stepahead_models.npu import BatchShape, NpuModel
from stepahead_models.profiles import Profile
from stepahead_models.tokens import Ints

_FREE: Final = CpuTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCosts:
    """Durations of the turns of a steady state in ns, each of shape ``(turns,)``."""

    fill: Ints
    step: Ints
    publish: Ints
    build: Ints
    collect: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Durations of everything that takes time, in integer ns.

    Args:
        npu: the accelerator.
        cpu: the host thread.
        dma: copies between KV memory and host memory, or None where there are none.
        npu_sampler: cost of sampling on the NPU, inside its step; None when the host samples.
        changed_batch: what the host pays more for a batch that it changes before the dispatch.
        submit: what the host pays to set one copy up, to or from wherever.
        npu_noise, cpu_noise: deviations by batch number, or None.
    """

    npu: NpuModel
    cpu: CpuModel
    dma: Dma | None = None
    npu_sampler: CpuTerms | None = None
    changed_batch: CpuTerms = _FREE
    submit: CpuTerms = _FREE
    npu_noise: Noise | None = None
    cpu_noise: Noise | None = None

    @classmethod
    def of(
        cls, profile: Profile, *, cpu_scale: float | str | Fraction = 1, npu_samples: bool = False
    ) -> Device:
        """Return the machine that a profile describes.

        Args:
            profile: the numbers.
            cpu_scale: factor on every cost of the host.
            npu_samples: let the NPU sample.

        Raises:
            DeviceModelError: the scale is not usable, or the NPU cannot sample.
        """
        return cls(
            npu=profile.npu_model(),
            cpu=profile.cpu_model().scaled(cpu_scale),
            npu_sampler=profile.npu_sampler() if npu_samples else None,
            changed_batch=profile.changed_batch.terms(),
            submit=profile.dma.submit_terms(),
        )

    def step_ns(self, shape: BatchShape, batch_id: int) -> int:
        """Return how long the NPU executes a batch."""
        duration = self.npu.step_ns(shape)
        if self.npu_sampler is not None and shape.sampling_rows:
            duration += self.npu_sampler.total_ns(shape.sampling_rows)
        return duration if self.npu_noise is None else self.npu_noise.apply_ns(duration, batch_id)

    def decode_ns(self, positions: Ints, batch_id: int, steps: int) -> Ints:
        """Return how long each of ``steps`` decode batches from ``batch_id`` on takes.

        Args:
            positions: KV tokens before each row at the first of them, shape ``(rows,)``.
            batch_id: number of the first.
            steps: how many.
        """
        durations = self.npu.repeat_ns(positions, steps)
        if self.npu_sampler is not None:
            durations = durations + self.npu_sampler.total_ns(len(positions))
        if self.npu_noise is not None:
            durations = self.npu_noise.apply_many_ns(durations, _from(batch_id, steps))
        return durations

    def turn_costs(
        self, positions: Ints, new_blocks: Ints, executed: int, lookahead: int
    ) -> TurnCosts:
        """Return what the turns of a steady state cost, one per entry of ``new_blocks``.

        Args:
            positions: KV tokens before each row at the first step that a turn begins; ``(rows,)``.
            new_blocks: blocks that each turn's selection adds.
            executed: number of the batch whose results the first turn publishes.
            lookahead: batches prepared ahead.
        """
        rows, turns = len(positions), len(new_blocks)
        cpu = self.cpu
        collect = cpu.synchronisation_ns(rows)
        if self.npu_sampler is None:
            collect += cpu.sampling_ns(rows)
        most = int(new_blocks[new_blocks.argmax()])
        build = np.array([cpu.build_decode_ns(rows, count) for count in range(most + 1)])
        return TurnCosts(
            fill=self._many(cpu.fill_ns(rows), executed + 1, turns),
            step=self.decode_ns(positions, executed + 1, turns),
            publish=self._many(cpu.processing_ns(rows), executed, turns),
            build=self._many(build[new_blocks], executed + 1 + lookahead, turns),
            collect=self._many(collect, executed + 1, turns),
        )

    def build_ns(self, shape: BatchShape, batch_id: int) -> int:
        """Return how long the host builds a batch."""
        return self._disturbed(self.cpu.build_ns(shape), batch_id)

    def fill_ns(self, rows: int, batch_id: int, pruned_rows: int = 0) -> int:
        """Return how long the host fills ``rows`` rows, drops ``pruned_rows``, and dispatches."""
        duration = self.cpu.fill_ns(rows)
        if pruned_rows:
            duration += self.cpu.scaled_ns(self.changed_batch.total_ns(pruned_rows))
        return self._disturbed(duration, batch_id)

    def collect_ns(self, rows: int, sampling_rows: int, batch_id: int) -> int:
        """Return the host's time from the end of a device step to its tokens: notice, sample."""
        duration = self.cpu.synchronisation_ns(rows)
        if self.npu_sampler is None:
            duration += self.cpu.sampling_ns(sampling_rows)
        return self._disturbed(duration, batch_id)

    def submit_ns(self, blocks: int) -> int:
        """Return how long the host sets up a copy of ``blocks`` KV blocks; never disturbed."""
        return self.cpu.scaled_ns(self.submit.total_ns(0, blocks=blocks))

    def publish_ns(self, requests: int, batch_id: int) -> int:
        """Return how long the host processes the results of ``requests`` requests."""
        return self._disturbed(self.cpu.processing_ns(requests), batch_id)

    def _disturbed(self, duration_ns: int, batch_id: int) -> int:
        if self.cpu_noise is None:
            return duration_ns
        return self.cpu_noise.apply_ns(duration_ns, batch_id)

    def _many(self, duration_ns: int | Ints, batch_id: int, count: int) -> Ints:
        """Return the durations of ``count`` batches from ``batch_id`` on, disturbed."""
        durations = np.empty(count, dtype=np.int64)
        durations[:] = duration_ns
        if self.cpu_noise is None:
            return durations
        return self.cpu_noise.apply_many_ns(durations, _from(batch_id, count))


def _from(batch_id: int, count: int) -> Ints:
    return np.arange(batch_id, batch_id + count, dtype=np.int64)
