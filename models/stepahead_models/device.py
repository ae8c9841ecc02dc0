"""One machine: an NPU, the host thread beside it, and who of the two samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias, TypeVar

import numpy as np

from stepahead.arrays import quick
from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.dma import Dma
from stepahead_models.noise import Noise
from stepahead_models.npu import BatchShape, NpuModel
from stepahead_models.profiles import Profile
from stepahead_models.speculation import DraftCosts
from stepahead_models.tokens import Ints

_FREE: Final = CpuTerms()
_Key = TypeVar("_Key")


#: A duration per turn in ns, shape ``(turns,)``, or one that all turns share.
Span: TypeAlias = Ints | int


@dataclass(slots=True, kw_only=True)
class TurnCosts:
    """Durations of the turns of a steady state in ns; ``step`` has shape ``(turns,)``."""

    fill: Span
    step: Ints
    publish: Span
    build: Span
    collect: Span


class _Costs(dict[_Key, int]):
    """What a job costs in ns by its size, worked out once for each size."""

    def __init__(self, cost: Callable[[_Key], int]) -> None:
        super().__init__()
        self._cost: Final = cost

    def __missing__(self, size: _Key) -> int:
        cost = self[size] = self._cost(size)
        return cost


@dataclass(frozen=True, kw_only=True)
class Device:
    """Durations of everything that takes time, in integer ns.

    Args:
        npu: the accelerator.
        cpu: the host thread.
        dma: copies between KV memory and host memory, or None where there are none.
        npu_sampler: cost of sampling on the NPU, inside its step; None when the host samples.
        changed_batch: what the host pays more for a batch that it changes before the dispatch.
        drafter: what the host pays more for a batch with drafts, or None where they cost nothing.
        submit: what the host pays to set one copy up, to or from wherever.
        npu_noise, cpu_noise: deviations by batch number, or None.
    """

    npu: NpuModel
    cpu: CpuModel
    dma: Dma | None = None
    npu_sampler: CpuTerms | None = None
    changed_batch: CpuTerms = _FREE
    drafter: DraftCosts | None = None
    submit: CpuTerms = _FREE
    npu_noise: Noise | None = None
    cpu_noise: Noise | None = None
    # What the host's jobs cost, by their sizes.
    _fills: _Costs[int] = field(init=False, repr=False, compare=False)
    _publishes: _Costs[int] = field(init=False, repr=False, compare=False)
    #: By rows and sampled positions.
    _collects: _Costs[tuple[int, int]] = field(init=False, repr=False, compare=False)
    #: By what it costs unscaled.
    _builds: _Costs[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cpu, host_samples = self.cpu, self.npu_sampler is None

        def collect_ns(size: tuple[int, int]) -> int:
            return cpu.synchronisation_ns(size[0]) + cpu.sampling_ns(size[1] if host_samples else 0)

        object.__setattr__(self, "_fills", _Costs(cpu.fill_ns))
        object.__setattr__(self, "_publishes", _Costs(cpu.processing_ns))
        object.__setattr__(self, "_collects", _Costs(collect_ns))
        object.__setattr__(self, "_builds", _Costs(cpu.scaled_ns))

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
            duration += self.npu_sampler.total_ns(shape.samples)
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
        self, shape: BatchShape, after: int, new_blocks: Ints, executed: int, lookahead: int
    ) -> TurnCosts:
        """Return what the turns of a steady state cost, one per entry of ``new_blocks``.

        Args:
            shape: a step of it.
            after: how many steps behind that one the first turn begins.
            new_blocks: blocks that each turn's selection adds.
            executed: number of the batch whose results the first turn publishes.
            lookahead: batches prepared ahead.
        """
        rows, sampling, turns = shape.rows, shape.sampling_rows, len(new_blocks)
        fill, collect = self._fills[rows], self._collects[rows, sampling]
        publish = self._publishes[sampling] if sampling else 0  # nothing comes out, nobody is told
        build = self._builds_ns(rows, shape.tokens, new_blocks)
        if sampling == rows:
            step = self.decode_ns(shape.positions + after, executed + 1, turns)
        else:
            costs = [
                self.step_ns(shape.after(after + turn), executed + 1 + turn)
                for turn in range(turns)
            ]
            step = np.array(costs, dtype=np.int64)
        if self.cpu_noise is None:
            return TurnCosts(fill=fill, step=step, publish=publish, build=build, collect=collect)
        return TurnCosts(
            fill=_disturbed(self.cpu_noise, fill, executed + 1, turns),
            step=step,
            publish=_disturbed(self.cpu_noise, publish, executed, turns) if sampling else 0,
            build=_disturbed(self.cpu_noise, build, executed + 1 + lookahead, turns),
            collect=_disturbed(self.cpu_noise, collect, executed + 1, turns),
        )

    def _builds_ns(self, rows: int, tokens: int, new_blocks: Ints) -> Span:
        """Return how long each of several batches of one size is built."""
        cpu = self.cpu
        if not cpu.build.per_block_ns:
            return cpu.build_like_ns(rows, tokens, 0)
        totals = new_blocks * cpu.build.per_block_ns + cpu.build.total_ns(rows, tokens)
        if not cpu.is_scaled:
            return totals
        return quick(np.array([self._builds[total] for total in totals.tolist()]))

    def build_ns(self, shape: BatchShape, batch_id: int) -> int:
        """Return how long the host builds a batch, its drafts included."""
        duration = self.cpu.build_like_ns(shape.rows, shape.tokens, shape.new_blocks)
        if self.drafter is not None and shape.drafts is not None:
            duration += self.cpu.scaled_ns(self.drafter.total_ns(shape.drafts))
        return duration if self.cpu_noise is None else self.cpu_noise.apply_ns(duration, batch_id)

    def fill_ns(self, rows: int, batch_id: int, pruned_rows: int = 0) -> int:
        """Return how long the host fills ``rows`` rows, drops ``pruned_rows``, and dispatches."""
        duration = self._fills[rows]
        if pruned_rows:
            duration += self.cpu.scaled_ns(self.changed_batch.total_ns(pruned_rows))
        return duration if self.cpu_noise is None else self.cpu_noise.apply_ns(duration, batch_id)

    def collect_ns(self, rows: int, samples: int, batch_id: int) -> int:
        """Return the host's time from the end of a device step to its tokens: notice, sample."""
        duration = self._collects[rows, samples]
        return duration if self.cpu_noise is None else self.cpu_noise.apply_ns(duration, batch_id)

    def submit_ns(self, blocks: int) -> int:
        """Return how long the host sets up a copy of ``blocks`` KV blocks; never disturbed."""
        return self.cpu.scaled_ns(self.submit.total_ns(0, blocks=blocks))

    def publish_ns(self, requests: int, batch_id: int, tokens: int = -1) -> int:
        """Return how long the host processes results: ``tokens`` in all, one each if left at -1."""
        known = self._publishes
        duration = known[requests] if tokens < 0 else self.cpu.processing_ns(requests, tokens)
        return duration if self.cpu_noise is None else self.cpu_noise.apply_ns(duration, batch_id)


def _disturbed(noise: Noise, duration_ns: Span, batch_id: int, count: int) -> Ints:
    """Return the durations of ``count`` batches from ``batch_id`` on, with their noise."""
    durations = np.empty(count, dtype=np.int64)
    durations[:] = duration_ns
    return noise.apply_many_ns(durations, _from(batch_id, count))


def _from(batch_id: int, count: int) -> Ints:
    return np.arange(batch_id, batch_id + count, dtype=np.int64)
