"""What makes overlap pay, one thing at a time: the cost of preparation, short outputs, cancels.

Each scan changes the workload or the host, keeps the load, and runs every loop. Loads are factors
on the eager capacity of what runs, measured anew where the requests change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import structs

from stepahead_models.traces import Trace
from stepahead_specs.counting import counted
from stepahead_tools.loops import EAGER, Loop
from stepahead_tools.metrics import RunMetrics
from stepahead_tools.runs import measure_capacity, set_up
from stepahead_tools.search import Place, Point, try_point

CPU_FACTORS: Final = (0.0625, 0.25, 1.0, 4.0)
OUTPUT_FACTORS: Final = (Fraction(1, 16), Fraction(1, 4), Fraction(1))
CANCEL_PERCENTS: Final = (0, 20, 50)
#: A gain that counts: half a percent.
NOTICEABLE: Final = 0.005
_HASH: Final = 2_654_435_761
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One line of a scan: what was changed, and each loop's point, the eager one first."""

    label: str
    value: float
    points: dict[str, Point]

    def mean(self, loop: str, figure: Callable[[RunMetrics], float]) -> float:
        """Return a figure of one loop, averaged over its runs."""
        return self.points[loop].spread(figure)[0]

    def gain(self, loop: str, figure: Callable[[RunMetrics], float]) -> float:
        """Return the relative change of a figure against eager."""
        before = self.mean(EAGER.name, figure)
        return self.mean(loop, figure) / before - 1 if before else 0.0

    @property
    def preparation_share(self) -> float:
        """How long an eager preparation takes, relative to the device step."""
        return self.mean(EAGER.name, preparation_share)


def preparation_share(run: RunMetrics) -> float:
    """Return the mean preparation over the mean device step; the eager loop exposes all of it."""
    record = run.record
    if not record.preparations or not record.npu_busy_ns:
        return 0.0
    step = record.npu_busy_ns / record.steps
    return record.exposed_ns / record.preparations / step


def wasted_share(run: RunMetrics) -> float:
    """Return the NPU time of wasted and discarded rows over all NPU time."""
    record = run.record
    lost = record.wasted_eos.npu_ns + record.wasted_cancel.npu_ns + record.discarded.npu_ns
    return lost / record.npu_busy_ns if record.npu_busy_ns else 0.0


def e2el_ms(run: RunMetrics) -> float:
    """Return the mean time from arrival to last token, ms."""
    return 0.0 if run.e2el is None else run.e2el.mean_ns / 1e6


def cpu_scan(
    place: Place, loops: Sequence[Loop], load: float, tried: Callable[[], None]
) -> Iterator[Variant]:
    """Yield the loops at the same load with cheaper and dearer hosts."""
    for factor in CPU_FACTORS:
        scale = place.settings.cpu_scale * factor
        other = replace(place, settings=structs.replace(place.settings, cpu_scale=scale))
        yield _variant(f"CPU x {scale:g}", scale, other, loops, load, tried)


def output_scan(
    place: Place, loops: Sequence[Loop], load: float, tried: Callable[[], None]
) -> Iterator[Variant]:
    """Yield the loops with all outputs shortened, at least one token each."""
    for factor in OUTPUT_FACTORS:
        trace = _shortened(place.trace, factor)
        mean = float(trace.output_lengths.mean())
        yield _variant(
            counted(round(mean), "output token"),
            mean,
            _on(place, trace, factor != 1),
            loops,
            load,
            tried,
        )


def cancel_scan(
    place: Place, loops: Sequence[Loop], load: float, tried: Callable[[], None]
) -> Iterator[Variant]:
    """Yield the loops with more clients that leave in the middle of their output."""
    for percent in CANCEL_PERCENTS:
        trace = _cancelled(place.trace, percent)
        yield _variant(
            f"{percent} % more cancels",
            percent,
            _on(place, trace, percent != 0),
            loops,
            load,
            tried,
        )


def break_even(variants: Sequence[Variant], loop: str) -> float | None:
    """Return the share of preparation from which a loop cuts TPOT noticeably, or None if never.

    Between two lines of the scan the gain is taken as straight; below the cheapest it is taken to
    go to nothing with the preparation.
    """
    share, gain = 0.0, 0.0
    for variant in sorted(variants, key=lambda variant: variant.preparation_share):
        after = -variant.gain(loop, tpot_ms)
        if after >= NOTICEABLE:
            part = (NOTICEABLE - gain) / (after - gain)
            return share + part * (variant.preparation_share - share)
        share, gain = variant.preparation_share, after
    return None


def tpot_ms(run: RunMetrics) -> float:
    """Return the mean TPOT, ms."""
    return 0.0 if run.tpot is None else run.tpot.mean_ns / 1e6


def _variant(  # noqa: PLR0913, PLR0917 # a line and where it is tried
    label: str,
    value: float,
    place: Place,
    loops: Sequence[Loop],
    load: float,
    tried: Callable[[], None],
) -> Variant:
    points: dict[str, Point] = {}
    for loop in loops:
        points[loop.name] = try_point(place, loop, load)
        tried()
    return Variant(label=label, value=value, points=points)


def _on(place: Place, trace: Trace, changed: bool) -> Place:  # noqa: FBT001 # a fact, not a mode
    """Return the place with other requests, and with the capacity for them."""
    if not changed or place.clients:
        return replace(place, trace=trace)
    scene = set_up(trace, place.settings, place.profile, None)
    return replace(place, trace=trace, capacity_per_s=measure_capacity(scene))


def _shortened(trace: Trace, factor: Fraction) -> Trace:
    if factor == 1:
        return trace
    lengths = trace.output_lengths * factor.numerator // factor.denominator
    return replace(trace, output_lengths=np.maximum(lengths, 1))


def _cancelled(trace: Trace, percent: int) -> Trace:
    """Let so many of a hundred requests be cancelled after half their output, whoever they are."""
    chosen = np.arange(len(trace)) * _HASH % (1 << 32) * _PERCENT < percent << 32
    chosen &= (trace.output_lengths > 1) & (trace.cancel_after_ns < 0)
    halves = trace.output_lengths // 2
    return replace(trace, cancel_after_tokens=np.where(chosen, halves, trace.cancel_after_tokens))
