"""`stepahead calibration`: what a device profile predicts beside what was measured, row by row."""

from __future__ import annotations

from textwrap import wrap

from rich.console import Console

from stepahead_models.calibration import HOST_SHARES, Calibration, calibrate, compare
from stepahead_models.closed_loop import ClosedLoop
from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.envelope import EnvelopeRow, load_envelope
from stepahead_models.estimate import Prediction
from stepahead_models.profiles import load_profile
from stepahead_tools.options import CalibrationOptions
from stepahead_tools.progress import ProgressBar


def show_calibration(options: CalibrationOptions) -> None:
    """Print every measured row beside its simulation, the errors, and what nobody measured.

    Raises:
        DeviceModelError: there is no such measurement.
    """
    envelope = load_envelope(options.measured)
    profile = load_profile(envelope.profile)
    console = Console()
    with ProgressBar("runs", len(envelope.rows)) as progress:
        simulate = _Counted(ClosedLoop(profile, envelope.lengths), progress)
        if options.fit:
            found = calibrate(envelope, profile.cpu_model(), simulate)
        else:
            cpu = profile.cpu_model()
            base_ns, per_row_ns = host_time(cpu)
            found = Calibration(base_ns, per_row_ns, cpu, compare(envelope, simulate, cpu))
    _print(console, f"measured: {envelope.source}")
    _print(console, f"lengths: {envelope.lengths.source}")
    how = "fitted just now" if options.fit else "as the profile has them"
    _print(console, f"simulated: profile {profile.name}, eager loop, CPU costs {how}")
    console.print(found.report(), highlight=False, markup=False, soft_wrap=True)
    _print(console, f"inferred, measured by nobody: {', '.join(profile.inferred())}")


def host_time(cpu: CpuModel) -> tuple[int, int]:
    """Return the host's time per step and per row without its sampling, ns, before any scale."""
    terms: list[CpuTerms] = [getattr(cpu, job) for job in HOST_SHARES]
    return sum(term.base_ns for term in terms), sum(term.per_row_ns for term in terms)


class _Counted:
    """Tells a progress bar how many rows were simulated."""

    def __init__(self, simulate: ClosedLoop, progress: ProgressBar) -> None:
        self._simulate = simulate
        self._progress = progress
        self._runs = 0

    def __call__(self, row: EnvelopeRow, cpu: CpuModel) -> Prediction:
        self._progress(self._runs)
        self._runs += 1
        return self._simulate(row, cpu)


def _print(console: Console, words: str) -> None:
    for line in wrap(words, max(console.width, 40), subsequent_indent="  ", break_on_hyphens=False):
        console.print(line, highlight=False, markup=False)
