"""`stepahead calibrate`: a device profile against the measurements that it was fitted to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from stepahead_models.calibration import Comparison, calibrate
from stepahead_models.closed_loop import ClosedLoop
from stepahead_models.cpu import CpuModel
from stepahead_models.envelope import EnvelopeRow, load_envelope
from stepahead_models.estimate import Prediction
from stepahead_models.profiles import load_profile
from stepahead_tools.calibrate_options import CalibrateOptions
from stepahead_tools.progress import ProgressBar


def calibrate_profile(options: CalibrateOptions) -> None:
    """Run the envelope's closed loops on the profile and print simulated against measured."""
    profile = load_profile(options.profile)
    envelope = load_envelope(profile.name)
    simulate = ClosedLoop(profile, envelope.lengths)
    console = Console()
    with ProgressBar("simulating", len(envelope.rows), unit="closed loops") as bar:
        runs = 0

        def counted(row: EnvelopeRow, cpu: CpuModel) -> Prediction:
            nonlocal runs
            runs += 1
            bar(min(runs, len(envelope.rows)))
            return simulate(row, cpu)

        if options.fit:
            fitted = calibrate(envelope, profile.cpu_model(), counted)
            console.print(
                f"fitted host time per step: {fitted.base_ns / 1e3:.0f} us + "
                f"{fitted.per_row_ns / 1e3:.1f} us per row, host sampling excluded",
                highlight=False,
            )
            rows: Sequence[Comparison] = fitted.rows
        else:
            cpu = profile.cpu_model()
            rows = [Comparison(row, counted(row, cpu)) for row in envelope.rows]
    console.print(_table(rows))
    for label, chosen in (
        ("held out", [row for row in rows if not row.measured.fitted]),
        ("all rows", list(rows)),
    ):
        errors = [abs(error) for row in chosen for error in (row.tokens_error, row.tpot_error)]
        console.print(
            f"{label}: median error {100 * statistics.median(errors):.1f} %, worst "
            f"{100 * max(errors):.1f} %",
            highlight=False,
        )
    console.print(
        "The idle column of the source (TPOT x (1 - utilisation)) is an inference; it is shown, "
        "and no fit uses it.",
        highlight=False,
    )


def _table(rows: Sequence[Comparison]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name in (
        "conc.",
        "tok/s meas.",
        "sim.",
        "error",
        "TPOT ms meas.",
        "sim.",
        "error",
        "idle ms inferred",
    ):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        measured, simulated = row.measured, row.simulated
        idle = "-" if measured.idle_ms is None else f"{measured.idle_ms:.1f}"
        table.add_row(
            f"{measured.concurrency:.1f}",
            f"{measured.tokens_per_s:.1f}",
            f"{simulated.tokens_per_s:.1f}",
            f"{100 * row.tokens_error:+z.1f} %",
            f"{measured.tpot_ms:.2f}",
            f"{simulated.tpot_ms:.2f}",
            f"{100 * row.tpot_error:+z.1f} %",
            idle,
            "fitted" if measured.fitted else "held out",
        )
    return table
