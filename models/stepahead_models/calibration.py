"""Fitting the CPU costs of a device profile to a measured envelope, and judging the result.

An eager loop exposes only the sum of the host's jobs per step, so two numbers are fitted, that sum
as a base and a slope per row, on the rows of the envelope that are marked ``fitted``. Everything
else of the envelope is held out. How the sum is split over the jobs is an inference: `HOST_SHARES`.

The fit works with any function from (row, CPU model) to a predicted point: the simulator, or the
closed-form `stepahead_models.estimate.EagerEstimate`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.envelope import Envelope, EnvelopeRow
from stepahead_models.estimate import Prediction

#: Share of the host's fitted time per job, host sampling excluded (it was measured).
#: Source: our inference. vLLM 0.33.0 spends two thirds of its scheduler time on selecting and a
#: third on results (own measurement); a fifth of the whole is set aside for dispatch and waiting.
HOST_SHARES: Final[Mapping[str, float]] = MappingProxyType(
    {"build": 0.54, "fill": 0.10, "synchronisation": 0.10, "result_processing": 0.26}
)


Floats: TypeAlias = NDArray[np.float64]

# Base and slope: where the search begins, how far a forward difference looks (further than the
# grain of a discrete simulation), and a step so small that it ends the search.
_START_NS: Final[Floats] = np.array([1_000_000.0, 100_000.0])
_PROBE_NS: Final[Floats] = np.array([50_000.0, 5_000.0])
_ENOUGH_NS: Final = 2_000.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the envelope beside what a model predicts for it; errors are relative."""

    measured: EnvelopeRow
    simulated: Prediction

    @property
    def tokens_error(self) -> float:
        """Relative error of output tokens per second."""
        return self.simulated.tokens_per_s / self.measured.tokens_per_s - 1

    @property
    def tpot_error(self) -> float:
        """Relative error of the time per output token."""
        return self.simulated.tpot_ms / self.measured.tpot_ms - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit gave.

    Args:
        base_ns: host time per step without rows, host sampling excluded.
        per_row_ns: host time per row, host sampling excluded.
        cpu: the CPU model with both split over the jobs.
        rows: the whole envelope against the model.
    """

    base_ns: int
    per_row_ns: int
    cpu: CpuModel
    rows: tuple[Comparison, ...]

    def errors(self, *, fitted: bool | None = None) -> tuple[float, float]:
        """Return the median and the worst absolute relative error over both figures.

        Args:
            fitted: only rows that were (True) or were not (False) used in the fit; None for all.
        """
        chosen = [row for row in self.rows if fitted is None or row.measured.fitted == fitted]
        sizes = [abs(e) for row in chosen for e in (row.tokens_error, row.tpot_error)]
        return statistics.median(sizes), max(sizes)

    def report(self) -> str:
        """Return the table of simulated against measured figures, and the errors, as text."""
        host = (
            f"host time per step: {self.base_ns / 1e3:.0f} us + {self.per_row_ns / 1e3:.1f} us "
            "per row (host sampling excluded)"
        )
        lines = [host]
        lines.append(
            "concurrency  tokens/s: measured simulated   error"
            "   TPOT ms: measured simulated   error"
        )
        for row in self.rows:
            lines.append(
                f"{row.measured.concurrency:11.2f}"
                f"{row.measured.tokens_per_s:20.1f}{row.simulated.tokens_per_s:10.1f}"
                f"{100 * row.tokens_error:+6.1f} %"
                f"{row.measured.tpot_ms:20.2f}{row.simulated.tpot_ms:10.2f}"
                f"{100 * row.tpot_error:+6.1f} %  {'fitted' if row.measured.fitted else 'held out'}"
            )
        for name, fitted in (("held out", False), ("fitted", True), ("all rows", None)):
            median, worst = self.errors(fitted=fitted)
            lines.append(f"{name}: median error {100 * median:.1f} %, worst {100 * worst:.1f} %")
        return "\n".join(lines)


Simulate = Callable[[EnvelopeRow, CpuModel], Prediction]


def split_host_time(base_ns: float, per_row_ns: float, cpu: CpuModel) -> CpuModel:
    """Split host time per step over the jobs of ``cpu`` by `HOST_SHARES`.

    Host sampling and the terms per token and per block stay as they are.
    """

    def job(name: str, terms: CpuTerms) -> CpuTerms:
        share = HOST_SHARES[name]
        return replace(terms, base_ns=round(base_ns * share), per_row_ns=round(per_row_ns * share))

    return replace(
        cpu,
        build=job("build", cpu.build),
        fill=job("fill", cpu.fill),
        synchronisation=job("synchronisation", cpu.synchronisation),
        result_processing=job("result_processing", cpu.result_processing),
    )


def calibrate(
    envelope: Envelope, cpu: CpuModel, simulate: Simulate, *, rounds: int = 12
) -> Calibration:
    """Fit host time per step to the fitted rows of an envelope, and compare all rows.

    Least squares over the relative errors of tokens per second and TPOT, by Gauss-Newton steps with
    forward differences, neither number below zero. A step that does not lower the sum is
    quartered, and the next ones grow again. At most ``rounds x 3 + 1`` simulations of each
    fitted row.

    Args:
        envelope: the measured rows.
        cpu: the model to start from; see `split_host_time` for what is kept of it.
        simulate: predicts a row under a CPU model.
        rounds: steps at most.

    Returns:
        The fitted model and its comparison with every row.
    """
    fitted = [row for row in envelope.rows if row.fitted]

    def errors(point: Floats) -> Floats:
        trial = split_host_time(float(point[0]), float(point[1]), cpu)
        compared = [Comparison(row, simulate(row, trial)) for row in fitted]
        return np.array([e for row in compared for e in (row.tokens_error, row.tpot_error)])

    point, size = _START_NS, 1.0
    here = errors(point)
    for _ in range(rounds):
        slopes = np.stack(
            [(errors(point + d) - here) / d.sum() for d in np.diag(_PROBE_NS)], axis=1
        )
        step = np.linalg.lstsq(slopes, -here, rcond=None)[0].astype(np.float64)
        reached = np.maximum(point + size * step, 0.0)
        if float(np.abs(reached - point).max()) < _ENOUGH_NS:
            break
        there = errors(reached)
        if float(there @ there) < float(here @ here):
            point, here, size = reached, there, min(1.0, 2 * size)
        else:
            size /= 4
    result = split_host_time(float(point[0]), float(point[1]), cpu)
    rows = compare(envelope, simulate, result)
    return Calibration(round(point[0]), round(point[1]), result, rows)


def compare(envelope: Envelope, simulate: Simulate, cpu: CpuModel) -> tuple[Comparison, ...]:
    """Return every row of an envelope beside its prediction under one CPU model."""
    return tuple(Comparison(row, simulate(row, cpu)) for row in envelope.rows)
