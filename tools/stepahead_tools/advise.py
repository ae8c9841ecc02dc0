"""`stepahead advise`: which loop to use on a load, for how much goodput, and why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import structs
from rich.console import Console

from stepahead_models.profiles import load_profile
from stepahead_models.traces import demo_trace, read_trace
from stepahead_tools.advice import Advice, advice_document, show_advice
from stepahead_tools.advise_options import FIXED, AdviseOptions, VaryChoice
from stepahead_tools.break_even import (
    CANCEL_PERCENTS,
    CPU_FACTORS,
    OUTPUT_FACTORS,
    cancel_scan,
    cpu_scan,
    output_scan,
)
from stepahead_tools.engines import open_engine
from stepahead_tools.errors import OptionError
from stepahead_tools.logs import start_log
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP
from stepahead_tools.progress import ProgressBar
from stepahead_tools.results import encode
from stepahead_tools.runs import measure_capacity, set_up
from stepahead_tools.search import Place, best_point, points_max, try_point
from stepahead_tools.service_levels import ServiceLevel, preset, service_levels
from stepahead_tools.session import STANDARD_OUTPUT, check_targets
from stepahead_tools.settings import DEMO, resolve
from stepahead_tools.tables import show_configuration
from stepahead_tools.unused import Need, given, needs_of_a_run, refuse_unused

_LOOPS: Final = (EAGER, OVERLAP, JUST_IN_TIME)
#: Where the loops are compared when no load holds what is asked for.
_FALLBACK: Final = {VaryChoice.LOAD: 0.6, VaryChoice.CONCURRENCY: 16.0}


@dataclass(slots=True)
class _Count:
    """Points tried so far, shown."""

    show: Callable[[int], None]
    done: int = 0

    def __call__(self) -> None:
        self.done += 1
        self.show(self.done)


def advise(options: AdviseOptions) -> None:
    """Search, scan, print the advice, and write it as JSON where asked for.

    Raises:
        OptionError, TraceError, DeviceModelError, OSError: what was asked for cannot run.
    """
    place = _place(options)
    console = Console(quiet=options.json == STANDARD_OUTPUT)
    scene = set_up(place.trace, place.settings, place.profile, None)
    show_configuration(console, scene, _LOOPS, _arrivals(place))
    scans = len(CPU_FACTORS) + len(OUTPUT_FACTORS) + len(CANCEL_PERCENTS)
    total = len(_LOOPS) * (points_max(place) + 1 + scans)
    with ProgressBar("simulating", total, unit="runs") as bar:
        count = _Count(bar)
        found = {loop: best_point(place, loop, count) for loop in _LOOPS}
        best = {loop.name: point for loop, (point, _) in found.items()}
        eager = best[EAGER.name]
        load = _FALLBACK[options.vary] if eager is None else eager.load
        same = {loop.name: try_point(place, loop, load) for loop in _LOOPS}
        advice = Advice(
            place=place,
            best=best,
            tried={loop.name: points for loop, (_, points) in found.items()},
            load=load,
            same=same,
            cpu=list(cpu_scan(place, _LOOPS, load, count)),
            outputs=list(output_scan(place, _LOOPS, load, count)),
            cancels=list(cancel_scan(place, _LOOPS, load, count)),
        )
    show_advice(console, advice)
    if options.json == STANDARD_OUTPUT:
        sys.stdout.write(encode(advice_document(advice)))
    elif options.json is not None:
        options.json.write_text(encode(advice_document(advice)), encoding="utf-8", newline="\n")


def _arrivals(place: Place) -> str:
    """Return how requests come in the search, in words."""
    if place.clients:
        return "closed loops, whose number of clients is searched"
    drawn = "drawn at random" if place.poisson else "scaled"
    capacity = float(place.capacity_per_s)
    return f"{drawn}; load 1 is the eager capacity of {capacity:.3f} requests/s, measured"


def _refuse(options: AdviseOptions) -> None:
    """Refuse what advise chooses itself or cannot do, before anything has run."""
    if flags := given(options, FIXED):
        raise OptionError(
            f"advise chooses loads and loops itself, checks and drafts no tokens, and takes no "
            f"{', '.join(flags)}; leave that out, or use compare"
        )
    if options.seeds < 1:
        raise OptionError(f"--seeds {options.seeds} is out of range; give 1 or more")
    clients = options.vary is VaryChoice.CONCURRENCY
    refuse_unused(
        options,
        (
            Need(
                options=("poisson",),
                met=not clients,
                where="with --vary concurrency, where nothing arrives at random",
                way_out="search over the load",
            ),
            Need(
                options=("seeds",),
                met=options.poisson,
                where="where no arrivals are drawn at random",
                way_out="give --poisson",
            ),
        ),
    )
    check_targets(options, ())


def _asked(options: AdviseOptions) -> tuple[list[str], tuple[ServiceLevel, ...]]:
    """Return the words for goodput, and what a whole run must hold."""
    goodput, levels = list(options.goodput or ()), list(options.slo or ())
    if options.preset is not None:
        if goodput or levels:
            raise OptionError(
                f"--preset {options.preset} sets objectives and service levels; leave out "
                "--goodput and --slo, or give them without a preset"
            )
        goodput, levels = preset(options.preset)
    if not goodput:
        raise OptionError(
            "advise needs objectives to judge requests by; give --goodput, for example "
            "--goodput ttft:500 tpot:30, or --preset"
        )
    return goodput, service_levels(levels)


def _place(options: AdviseOptions) -> Place:
    """Read the trace and the options, and measure the capacity."""
    _refuse(options)
    goodput, levels = _asked(options)
    profile = load_profile(options.device)
    # Times do not depend on token values, so nothing is lost by leaving them out.
    chosen = replace(options, goodput=goodput, unchecked=True)
    engine = open_engine(chosen, _LOOPS, profile)
    for sentences in engine.warnings.values():
        for sentence in sentences:
            start_log(options.log_format.value).warning(sentence)
    settings = resolve(chosen, profile, engine.config)
    refuse_unused(options, needs_of_a_run(engine, _LOOPS, settings))
    path = demo_trace() if options.trace == DEMO else Path(options.trace)
    trace = read_trace(path, skip_bad_lines=options.skip_bad_lines)
    trace = trace if settings.limit is None else trace.limit(settings.limit)
    clients = options.vary is VaryChoice.CONCURRENCY
    if not (clients or options.poisson or trace.span_ns):
        raise OptionError(
            f"all requests of trace {trace.name!r} arrive at once, so there are no times to "
            "scale; add --poisson or --vary concurrency"
        )
    with ProgressBar("capacity", len(trace)) as progress:
        unpaced = structs.replace(
            settings, pacing=structs.replace(settings.pacing, kind="recorded")
        )
        capacity = measure_capacity(set_up(trace, unpaced, profile, None), progress)
    return Place(
        trace=trace,
        profile=profile,
        settings=unpaced,
        capacity_per_s=capacity,
        poisson=options.poisson,
        clients=clients,
        seeds=options.seeds,
        levels=levels,
    )
