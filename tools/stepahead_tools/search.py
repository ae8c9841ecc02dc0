"""The load at which a loop gives the most goodput: a coarse grid, then halves around the best.

A load is a factor on the eager capacity of the trace, or a number of clients. Every point is a
simulated run, or one per seed where arrivals are random.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from stepahead_models.profiles import Profile
from stepahead_models.traces import Trace
from stepahead_tools.loops import Loop
from stepahead_tools.metrics import RunMetrics, measure
from stepahead_tools.pacing import Pacing
from stepahead_tools.runs import run_loop, set_up
from stepahead_tools.service_levels import ServiceLevel
from stepahead_tools.settings import Settings

LOADS: Final = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
ROUNDS: Final = 4
_NS_PER_S: Final = 1_000_000_000
#: Two-sided 95 % points of Student's t by degrees of freedom, from 1 on; then the normal one.
_T: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where points are tried.

    Args:
        trace: the requests, already limited, arrivals as recorded.
        profile: the device.
        settings: everything but the load.
        capacity_per_s: eager capacity, requests/s.
        poisson: arrivals are drawn at random, once per seed.
        clients: the load is a number of clients.
        seeds: runs per random point.
        levels: what a run must hold.
    """

    trace: Trace
    profile: Profile
    settings: Settings
    capacity_per_s: Fraction
    poisson: bool
    clients: bool
    seeds: int
    levels: tuple[ServiceLevel, ...]

    def grid(self) -> list[float]:
        """Return the loads to begin with."""
        if not self.clients:
            return list(LOADS)
        most = min(self.settings.max_concurrency, len(self.trace))
        return [float(1 << power) for power in range(most.bit_length())]

    def paced(self, load: float) -> list[Settings]:
        """Return the settings of the runs at one load."""
        if self.clients:
            return [replace(self.settings, pacing=Pacing("concurrency", load))]
        rate = Fraction(str(load)) * self.capacity_per_s
        if not self.poisson:
            recorded = Fraction((len(self.trace) - 1) * _NS_PER_S, self.trace.span_ns)
            return [replace(self.settings, pacing=Pacing("speed", float(rate / recorded)))]
        pacing = Pacing("rate", float(rate))
        first = self.settings.seed
        return [
            replace(self.settings, pacing=pacing, seed=first + place) for place in range(self.seeds)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one loop does at one load; ``runs`` has one entry per seed."""

    load: float
    runs: tuple[RunMetrics, ...]
    holds: bool

    @property
    def goodput_per_s(self) -> float:
        """Mean goodput, requests/s."""
        return statistics.fmean(float(run.goodput_per_s or 0) for run in self.runs)

    def spread(self, figure: Callable[[RunMetrics], float]) -> tuple[float, float | None]:
        """Return the mean of a figure over the runs, and half its 95 % interval, if it has one."""
        values = [figure(run) for run in self.runs]
        if len(values) < 2:  # noqa: PLR2004 # one run has no spread
            return values[0], None
        degrees = len(values) - 1
        student = _T[degrees - 1] if degrees <= len(_T) else _NORMAL
        half = student * statistics.stdev(values) / len(values) ** 0.5
        return statistics.fmean(values), half


def try_point(place: Place, loop: Loop, load: float) -> Point:
    """Run one loop at one load."""
    runs: list[RunMetrics] = []
    for settings in place.paced(load):
        scene = set_up(place.trace, settings, place.profile, None)
        runs.append(
            measure(
                run_loop(scene, loop),
                warmup=settings.warmup,
                objectives=settings.objectives,
                closed_loop=place.clients,
            )
        )
    holds = all(level.holds(run) for level in place.levels for run in runs)
    return Point(load=load, runs=tuple(runs), holds=holds)


def best_point(
    place: Place, loop: Loop, tried: Callable[[], None]
) -> tuple[Point | None, list[Point]]:
    """Search for the load of highest goodput among those at which every level holds.

    ``tried`` is called after each point. Of equal goodputs the lower load counts.

    Returns:
        The best point, or None if none holds; and all points by load.
    """
    points: dict[float, Point] = {}

    def visit(loads: Sequence[float]) -> None:
        for load in loads:
            if load not in points:
                points[load] = try_point(place, loop, load)
                tried()

    visit(place.grid())
    for _ in range(ROUNDS):
        visit(_around(place, points))
    ordered = [points[load] for load in sorted(points)]
    holding = [point for point in ordered if point.holds]
    best = max(holding, key=lambda point: point.goodput_per_s) if holding else None
    return best, ordered


def _around(place: Place, points: dict[float, Point]) -> list[float]:
    """Return the middles between the best load and its neighbours; if none holds, go lower."""
    loads = sorted(points)
    holding = [load for load in loads if points[load].holds]
    if not holding:
        middles = [loads[0] / 2]
    else:
        best = max(holding, key=lambda load: points[load].goodput_per_s)
        index = loads.index(best)
        middles = [
            (best + loads[near]) / 2 for near in (index - 1, index + 1) if 0 <= near < len(loads)
        ]
    if place.clients:
        return [float(max(round(load), 1)) for load in middles]
    return [round(load, 3) for load in middles]


def points_max(place: Place) -> int:
    """Return how many points a search tries at most."""
    return len(place.grid()) + 2 * ROUNDS
