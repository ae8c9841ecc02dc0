"""A closed-form steady state of the eager loop, for fitting where no simulator is at hand."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepahead_models.cpu import CpuModel
from stepahead_models.envelope import EnvelopeRow, Lengths
from stepahead_models.npu import BatchShape
from stepahead_models.profiles import Profile

# The third of the R3 sequence (M. Roberts 2018); the workload uses the first two.
_STEP_3: Final = 0.5497004779019703


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulated operating point."""

    tokens_per_s: float
    tpot_ms: float


class EagerEstimate:
    """Predicts rows of an envelope without simulating.

    n requests decode together. A step takes the mean device time of n rows, drawn evenly from the
    lengths of the workload and from the progress through them, plus the host's jobs. Between two
    tokens of one request the prefills of the other n - 1 requests come in their share: each request
    brings one per output. The first token takes half a step of waiting, its own prefill and the
    host's jobs. What it leaves out: batches that mix prefill and decode, the ramp at both ends of a
    run, queueing, and that long requests are met more often.
    """

    _DRAWS: Final = 64

    def __init__(self, profile: Profile, lengths: Lengths) -> None:
        self._npu = profile.npu_model()
        self._chunk = profile.limits.max_tokens_per_row.value
        self._prompts, self._outputs = lengths.workload(self._DRAWS * 128)
        self._output_mean = float(self._outputs.mean())
        self._prefill_ns, self._prefill_steps, self._prefill_tokens = self._prefill()
        self._decode_ns: dict[int, float] = {}

    def __call__(self, row: EnvelopeRow, cpu: CpuModel) -> Prediction:
        """Predict one row of an envelope under a CPU model."""
        rows = max(1, round(row.concurrency))
        if rows not in self._decode_ns:
            self._decode_ns[rows] = self._decode(rows)
        host_ns = eager_host_ns(cpu, rows, rows)
        step_ns = self._decode_ns[rows] + host_ns
        chunk_tokens = round(self._prefill_tokens / self._prefill_steps)
        prefill_ns = self._prefill_ns + self._prefill_steps * eager_host_ns(cpu, 1, chunk_tokens)
        tpot_ns = step_ns + (row.concurrency - 1) * prefill_ns / self._output_mean
        first_ns = prefill_ns + (step_ns / 2 if rows > 1 else 0)
        latency_ns = first_ns + (self._output_mean - 1) * tpot_ns
        return Prediction(row.concurrency * self._output_mean / latency_ns * 1e9, tpot_ns / 1e6)

    def _decode(self, rows: int) -> float:
        """Mean device time of a decode step of ``rows`` rows in ns."""
        ones = np.ones(rows, dtype=np.int64)
        count = self._DRAWS * rows
        progress = np.mod(0.5 + np.arange(count) * _STEP_3, 1.0)
        kv = self._prompts[:count] + (self._outputs[:count] * progress).astype(np.int64)
        shapes = (BatchShape(kv[i * rows : (i + 1) * rows], ones, rows) for i in range(self._DRAWS))
        return statistics.fmean(self._npu.step_ns(shape) for shape in shapes)

    def _prefill(self) -> tuple[float, float, float]:
        """Mean device time in ns, steps and tokens of a request's prefill."""
        time, steps = 0, 0
        prompts = self._prompts[: self._DRAWS * 4].tolist()
        for prompt in prompts:
            for position in range(0, prompt, self._chunk):
                count = min(self._chunk, prompt - position)
                last = int(position + count == prompt)
                shape = BatchShape(np.array([position]), np.array([count]), last)
                time += self._npu.step_ns(shape)
                steps += 1
        return time / len(prompts), steps / len(prompts), sum(prompts) / len(prompts)


def eager_host_ns(cpu: CpuModel, rows: int, tokens: int) -> float:
    """Return all jobs of the host that an eager loop exposes between two steps."""
    return cpu.build_ns(BatchShape(np.zeros(rows, dtype=np.int64), np.array([tokens]), rows)) + (
        cpu.fill_ns(rows)
        + cpu.sampling_ns(rows)
        + cpu.synchronisation_ns(rows)
        + cpu.processing_ns(rows)
    )
