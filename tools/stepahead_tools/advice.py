"""The advice itself: the table, the sentences, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from stepahead_specs.counting import counted
from stepahead_tools.break_even import (
    NOTICEABLE,
    Variant,
    break_even,
    e2el_ms,
    tpot_ms,
    wasted_share,
)
from stepahead_tools.distribution import Distribution
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP
from stepahead_tools.metrics import RunMetrics
from stepahead_tools.results import Json, rounded, trace_facts
from stepahead_tools.search import Place, Point

SCHEMA: Final = 1
_DECIMALS: Final = 6
Figure = Callable[[RunMetrics], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What was found; loops by name, the eager one first.

    Args:
        place: where.
        best: the load of highest goodput, or None where no load holds what was asked for.
        tried: every point of the search.
        load: at which the loops are compared in the rest: the best of the eager loop.
        same: every loop there.
        cpu, outputs, cancels: the scans.
    """

    place: Place
    best: Mapping[str, Point | None]
    tried: Mapping[str, Sequence[Point]]
    load: float
    same: Mapping[str, Point]
    cpu: Sequence[Variant]
    outputs: Sequence[Variant]
    cancels: Sequence[Variant]

    @property
    def loop(self) -> str | None:
        """The loop to use, or None.

        The eager one if none gets noticeably more; of others that hardly differ, the one with the
        earlier first token.
        """
        goodput = {name: point.goodput_per_s for name, point in self.best.items() if point}
        most = max(goodput.values(), default=0.0)
        close = [name for name, value in goodput.items() if value >= most * (1 - NOTICEABLE)]
        if not most:
            return None
        if EAGER.name in close:
            return EAGER.name
        return min(close, key=self._first_token_ms)

    def _first_token_ms(self, name: str) -> float:
        point = self.best[name]
        return 0.0 if point is None else _at(point, 50)


def show_advice(console: Console, advice: Advice) -> None:
    """Print the tables and the sentences."""
    console.print(_best_table(advice))
    for sentence in sentences(advice):
        console.print(sentence, highlight=False, markup=False)
    console.print(_scan_table(advice))


def sentences(advice: Advice) -> Iterator[str]:
    """Yield the advice in words: which loop, what it gains, what it costs, when it pays."""
    at = _load_words(advice.place, advice.load)
    name = advice.loop
    if name is None:
        asked = " ".join(map(str, advice.place.levels)) or "the objectives"
        yield f"No load that was tried holds {asked} under any loop; ask for less."
    else:
        yield _recommendation(advice, name)
    for loop in (OVERLAP.name, JUST_IN_TIME.name):
        costs = [
            f"{_at(advice.same[loop], percent) - _at(advice.same[EAGER.name], percent):+z.1f} ms "
            f"({_percent(_relative(advice.same, loop, percent))}) at p{percent}"
            for percent in (50, 99)
        ]
        same = Variant(label=at, value=advice.load, points=dict(advice.same))
        yield (
            f"At {at} {loop} changes mean TPOT by {_percent(same.gain(loop, tpot_ms))}, and TTFT "
            f"by {' and '.join(costs)}."
        )
    share = next(line.preparation_share for line in advice.cpu if line.value == _own(advice))
    for loop in (OVERLAP.name, JUST_IN_TIME.name):
        least = break_even(advice.cpu, loop)
        if least is None:
            yield f"{loop.capitalize()} cuts mean TPOT by less than half a percent here."
        else:
            yield (
                f"{loop.capitalize()} cuts mean TPOT by half a percent or more once preparing a "
                f"batch takes {100 * least:.1f} % of a device step; here it takes "
                f"{100 * share:.1f} %."
            )


def _own(advice: Advice) -> float:
    return advice.place.settings.cpu_scale


def _recommendation(advice: Advice, name: str) -> str:
    chosen, eager = advice.best[name], advice.best[EAGER.name]
    if chosen is None:
        raise ValueError(f"loop {name} has no best point; it cannot be recommended")
    words = (
        f"Use {name}: {chosen.goodput_per_s:.3f} requests/s meet the objectives at "
        f"{_load_words(advice.place, chosen.load)}"
    )
    if name == EAGER.name:
        return f"{words}, and no other loop gets noticeably more."
    if eager is None or not eager.goodput_per_s:
        return f"{words}; under the eager loop none do."
    gain = chosen.goodput_per_s / eager.goodput_per_s - 1
    return f"{words}, {_percent(gain)} to the eager loop at its best load."


def _load_words(place: Place, load: float) -> str:
    if place.clients:
        return counted(int(load), "client")
    return f"load {load:g} ({load * float(place.capacity_per_s):.3f} requests/s)"


def _best_table(advice: Advice) -> Table:
    clients = advice.place.clients
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("loop", no_wrap=True)
    for name in (
        "clients" if clients else "load",
        "goodput/s",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99, ms",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for name, point in advice.best.items():
        if point is None:
            table.add_row(name, "none holds", *[""] * 5)
            continue
        table.add_row(
            name,
            f"{point.load:g}",
            _spread(point, lambda run: float(run.goodput_per_s or 0), 3),
            _spread(point, _ttft(50), 1),
            _spread(point, _ttft(99), 1),
            _spread(point, _tpot(50), 2),
            _spread(point, _tpot(99), 2),
        )
    return table


def _scan_table(advice: Advice) -> Table:
    at = _load_words(advice.place, advice.load)
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        title=f"against eager at {at}",
        title_justify="left",
    )
    table.add_column("what if", no_wrap=True)
    # Two lines per heading, so that 80 columns hold the table.
    for name in (
        "prep. /\nstep", "TPOT\noverlap", "just in\ntime", "E2EL\noverlap", "just in\ntime",
        "NPU\nwasted",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for scan in (advice.cpu, advice.outputs, advice.cancels):
        for line in scan:
            table.add_row(
                line.label,
                f"{100 * line.preparation_share:.1f} %",
                *(
                    _percent(line.gain(loop, figure))
                    for figure in (tpot_ms, e2el_ms)
                    for loop in (OVERLAP.name, JUST_IN_TIME.name)
                ),
                f"{100 * line.mean(OVERLAP.name, wasted_share):.1f} %",
            )
        table.add_section()
    return table


def _spread(point: Point, figure: Figure, decimals: int) -> str:
    mean, half = point.spread(figure)
    return f"{mean:.{decimals}f}" + ("" if half is None else f"\n± {half:.{decimals}f}")


def _ttft(percent: int) -> Figure:
    return lambda run: _ms(run.ttft, percent)


def _tpot(percent: int) -> Figure:
    return lambda run: _ms(run.tpot, percent)


def _ms(figures: Distribution | None, percent: int) -> float:
    return 0.0 if figures is None else figures.at(percent) / 1e6


def _at(point: Point, percent: int) -> float:
    return point.spread(_ttft(percent))[0]


def _relative(points: Mapping[str, Point], loop: str, percent: int) -> float:
    before = _at(points[EAGER.name], percent)
    return _at(points[loop], percent) / before - 1 if before else 0.0


def _percent(change: float) -> str:
    return f"{100 * change:+z.1f} %"


# -- JSON -----------------------------------------------------------------------------------------


def advice_document(advice: Advice) -> dict[str, Json]:
    """Return the advice as a document; `result-schema.md` names its keys."""
    place = advice.place
    return {
        "schema": SCHEMA,
        "trace": trace_facts(place.trace),
        "device": place.profile.name,
        "capacity_per_s": rounded(place.capacity_per_s),
        "vary": "concurrency" if place.clients else "load",
        "seeds": place.seeds if place.poisson else 1,
        "slo": [str(level) for level in place.levels],
        "use": advice.loop,
        "best": {
            name: None if point is None else _point(point) for name, point in advice.best.items()
        },
        "tried": {name: [_point(point) for point in tried] for name, tried in advice.tried.items()},
        "compared_at": advice.load,
        "compared": {name: _point(point) for name, point in advice.same.items()},
        "break_even_share": {
            loop: _number(break_even(advice.cpu, loop))
            for loop in (OVERLAP.name, JUST_IN_TIME.name)
        },
        "cpu_scan": [_line(line) for line in advice.cpu],
        "output_scan": [_line(line) for line in advice.outputs],
        "cancel_scan": [_line(line) for line in advice.cancels],
        "sentences": list(sentences(advice)),
    }


def _point(point: Point) -> dict[str, Json]:
    figures: dict[str, Figure] = {
        "goodput": lambda run: float(run.goodput_per_s or 0),
        "ttft_p50_ms": _ttft(50),
        "ttft_p99_ms": _ttft(99),
        "tpot_p50_ms": _tpot(50),
        "tpot_p99_ms": _tpot(99),
    }
    values: dict[str, Json] = {"load": point.load, "slo_holds": point.holds}
    for name, figure in figures.items():
        mean, half = point.spread(figure)
        values[name] = _number(mean)
        values[f"{name}_interval"] = _number(half)
    values["overloaded"] = any(run.overloaded for run in point.runs)
    return values


def _line(line: Variant) -> dict[str, Json]:
    return {
        "what": line.label,
        "value": line.value,
        "preparation_share": _number(line.preparation_share),
        "tpot_change": {loop: _number(line.gain(loop, tpot_ms)) for loop in line.points},
        "e2el_change": {loop: _number(line.gain(loop, e2el_ms)) for loop in line.points},
        "wasted_npu_share": {loop: _number(line.mean(loop, wasted_share)) for loop in line.points},
    }


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, _DECIMALS)
