"""Advice on a tiny trace: what is searched, what is said, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepahead_models.profiles import load_profile
from stepahead_models.traces import read_trace
from stepahead_tools.break_even import Variant, break_even, cancel_scan, output_scan
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP
from stepahead_tools.metrics import RunMetrics
from stepahead_tools.options import RunOptions
from stepahead_tools.runs import measure_capacity, set_up
from stepahead_tools.search import LOADS, ROUNDS, Place, Point, best_point, try_point
from stepahead_tools.service_levels import service_levels
from stepahead_tools.settings import resolve
from stepahead_tools.testing import run

SMALL = ("--device", "fast", "--num-blocks", "400")


@pytest.fixture
def place(tiny_trace: Path) -> Place:
    """The tiny trace on the fast device; goodput asks for a TTFT of 3 ms."""
    profile = load_profile("fast")
    options = RunOptions(trace="tiny", num_blocks=400, goodput=["ttft:3"], unchecked=True)
    settings = resolve(options, profile)
    trace = read_trace(tiny_trace)
    return Place(
        trace=trace,
        profile=profile,
        settings=settings,
        capacity_per_s=measure_capacity(set_up(trace, settings, profile, None)),
        poisson=False,
        clients=False,
        seeds=3,
        levels=(),
    )


def test_the_best_load_is_the_one_of_most_goodput_among_those_that_hold(place: Place) -> None:
    """No point that was tried is better; with a level, none that holds is."""
    count: list[int] = []
    best, points = best_point(place, EAGER, lambda: count.append(1))
    assert best is not None
    assert len(count) == len(points) <= len(LOADS) + 2 * ROUNDS
    assert best.goodput_per_s == max(point.goodput_per_s for point in points)
    middle = sorted(point.runs[0].ttft.at(99) for point in points if point.runs[0].ttft)[3]
    levels = service_levels([f"ttft_p99:{middle / 1e6}"])
    limited, tried = best_point(replace(place, levels=levels), EAGER, lambda: None)
    assert limited is not None
    assert limited.holds
    assert not all(point.holds for point in tried)
    assert limited.goodput_per_s <= best.goodput_per_s


def test_nothing_is_best_where_nothing_holds(place: Place) -> None:
    """A level that no run can hold; the search goes to lower loads before it gives up."""
    nothing = replace(place, levels=service_levels(["ttft_p99:0.000001"]))
    best, points = best_point(nothing, OVERLAP, lambda: None)
    assert best is None
    assert min(point.load for point in points) < min(LOADS)


def test_clients_are_whole_and_random_loads_are_run_once_per_seed(place: Place) -> None:
    """A closed loop tries powers of two and middles; Poisson arrivals give a spread."""
    _, points = best_point(replace(place, clients=True), EAGER, lambda: None)
    assert all(point.load == int(point.load) >= 1 for point in points)
    random = try_point(replace(place, poisson=True), EAGER, 0.5)
    assert len(random.runs) == 3
    mean, half = random.spread(lambda run: float(run.duration_ns))
    assert half is not None
    assert min(run.duration_ns for run in random.runs) <= mean
    assert half > 0
    assert try_point(place, EAGER, 0.5).spread(lambda run: float(run.duration_ns))[1] is None


def test_scans_shorten_outputs_and_add_cancels(place: Place) -> None:
    """Fewer tokens, one at least; more requests that leave; the rest as recorded."""
    lines = list(output_scan(place, (EAGER, OVERLAP), 0.5, lambda: None))
    tokens = [line.points["eager"].runs[0].output_tokens for line in lines]
    assert tokens == sorted(tokens)
    assert tokens[0] < tokens[-1]
    cancels = list(cancel_scan(place, (EAGER,), 0.5, lambda: None))
    counts = [line.points["eager"].runs[0].cancelled for line in cancels]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


class Fixed(Variant):
    """A line of a scan with a known share of preparation and gain."""

    def gain(self, loop: str, figure: object) -> float:  # noqa: ARG002 # as in the class above
        """Return minus the value, as the change of TPOT."""
        return -self.value

    @property
    def preparation_share(self) -> float:
        """Return the number in the label."""
        return float(self.label)


def test_the_break_even_lies_between_two_lines_of_the_scan() -> None:
    """Straight in between; from nothing to the cheapest line; none where no gain counts."""

    def lines(*pairs: tuple[float, float]) -> list[Variant]:
        return [Fixed(label=str(share), value=gain, points={}) for share, gain in pairs]

    assert break_even(lines((0.1, 0.001), (0.2, 0.009)), "overlap") == pytest.approx(0.15)
    assert break_even(lines((0.4, 0.02)), "overlap") == pytest.approx(0.1)
    assert break_even(lines((0.4, 0.004)), "overlap") is None


def test_advise_names_a_loop_and_says_what_it_costs(tiny_trace: Path, tmp_path: Path) -> None:
    """The table, the sentences and the document tell the same."""
    target = tmp_path / "advice.json"
    asked = ("--goodput", "ttft:3", "tpot:1", "--slo", "ttft_p99:50", "e2el_mean:90")
    done = run("advise", str(tiny_trace), *SMALL, *asked, "--json", str(target))
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["slo"] == ["ttft_p99:50", "e2el_mean:90"]
    assert document["use"] in {EAGER.name, OVERLAP.name, JUST_IN_TIME.name}
    assert f"Use {document['use']}: " in words
    for sentence in document["sentences"]:
        assert sentence in words
    goodput = {name: point["goodput"] for name, point in document["best"].items()}
    assert goodput[document["use"]] >= max(goodput.values()) * 0.995
    assert "…" not in done.stdout  # 80 columns hold the tables
    again = run("advise", str(tiny_trace), *SMALL, *asked, "--json", "-")
    assert again.stdout == target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "arrivals"),
    [
        ((), "arrivals  scaled; load 1 is the eager capacity of "),
        (
            ("--poisson", "--seeds", "2"),
            "arrivals  drawn at random; load 1 is the eager capacity of ",
        ),
        (("--vary", "concurrency"), "arrivals  closed loops, whose number of clients is searched"),
    ],
)
def test_advise_says_first_what_it_searches_on(
    tiny_trace: Path, tmp_path: Path, arguments: tuple[str, ...], arrivals: str
) -> None:
    """Trace, device and lines left out: figures without them are of nothing."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{tiny_trace.read_text(encoding='utf-8')}no line\n", encoding="utf-8")
    asked = ("--goodput", "ttft:3", "--skip-bad-lines", *arguments)
    done = run("advise", str(trace), *SMALL, *asked)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("trace     trace (")
    assert arrivals in done.stdout
    assert "skipped   1 bad line;" in done.stdout
    assert "device    fast, " in done.stdout
    assert "…" not in done.stdout  # 80 columns hold the intervals too


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (),
            (
                "advise needs objectives to judge requests by; give --goodput, for example "
                "--goodput ttft:500 tpot:30, or --preset"
            ),
        ),
        (
            ("--goodput", "ttft:5", "--load", "0.5"),
            (
                "advise chooses loads and loops itself, checks and drafts no tokens, and takes no "
                "--load; leave that out, or use compare"
            ),
        ),
        (
            ("--goodput", "ttft:5", "--unchecked", "--draft-acceptance", "0.5"),
            (
                "advise chooses loads and loops itself, checks and drafts no tokens, and takes no "
                "--unchecked, --draft-acceptance; leave that out, or use compare"
            ),
        ),
        (
            ("--goodput", "ttft:5", "--seeds", "0"),
            "--seeds 0 is out of range; give 1 or more",
        ),
        (
            ("--goodput", "ttft:5", "--preset", "deepseek-r1"),
            (
                "--preset deepseek-r1 sets objectives and service levels; leave out --goodput and "
                "--slo, or give them without a preset"
            ),
        ),
        (
            ("--goodput", "ttft:5", "--limit", "1"),
            (
                "all requests of trace 'tiny' arrive at once, so there are no times to scale; add "
                "--poisson or --vary concurrency"
            ),
        ),
    ],
)
def test_what_cannot_be_advised_on_is_refused(
    tiny_trace: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """One sentence with the way out, exit code 2."""
    done = run("advise", str(tiny_trace), *SMALL, *arguments)
    assert done.exit_code == 2
    assert done.stderr.strip() == f"stepahead: {sentence}"


def test_advice_is_not_written_over_the_trace(tiny_trace: Path) -> None:
    """It is refused before anything has run, and the trace is still there."""
    before = tiny_trace.read_bytes()
    asked = "--goodput", "ttft:500", "--json", str(tiny_trace)
    done = run("advise", str(tiny_trace), *SMALL, *asked)
    assert done.exit_code == 2
    assert done.stderr == (
        f"stepahead: --json {tiny_trace} would be written over the trace; give another file\n"
    )
    assert tiny_trace.read_bytes() == before


def test_the_advice_follows_the_goodput() -> None:
    """A point's goodput is the mean over its runs, none counting as nothing."""

    class Run:
        def __init__(self, goodput: float | None) -> None:
            self.goodput_per_s = goodput

    runs: tuple[RunMetrics, ...] = (Run(2.0), Run(None))  # type: ignore[assignment] # one figure
    assert Point(load=1.0, runs=runs, holds=True).goodput_per_s == np.float64(1.0)
