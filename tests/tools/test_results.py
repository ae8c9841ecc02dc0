"""The JSON result: shape, numbers and changes."""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from stepahead_models.profiles import load_profile
from stepahead_models.traces import read_trace
from stepahead_tools import results
from stepahead_tools.loops import EAGER, OVERLAP
from stepahead_tools.metrics import RunMetrics, measure
from stepahead_tools.options import CompareOptions
from stepahead_tools.results import delta, encode, milliseconds, result, rounded, seconds
from stepahead_tools.runs import Scene, run_loop, set_up
from stepahead_tools.settings import resolve

SCHEMA_PAGE = Path(results.__file__).with_name("result-schema.md")


@pytest.fixture
def document(tiny_trace: Path) -> dict[str, results.Json]:
    """The result of both loops on the tiny trace."""
    profile = load_profile("fast")
    settings = resolve(CompareOptions(trace="tiny", num_blocks=400, goodput=["e2el:9"]), profile)
    scene: Scene = set_up(read_trace(tiny_trace), settings, profile, None)
    metrics: dict[str, RunMetrics] = {
        loop.name: measure(run_loop(scene, loop), objectives=settings.objectives)
        for loop in (EAGER, OVERLAP)
    }
    return result(scene, (EAGER, OVERLAP), metrics)


def test_a_document_survives_a_round_trip(document: dict[str, results.Json]) -> None:
    """It is plain JSON, ends in a line feed, and holds no NaN."""
    text = encode(document)
    assert text.endswith("}\n")
    assert json.loads(text) == document


def test_the_page_on_the_schema_names_every_key(document: dict[str, results.Json]) -> None:
    """A key that appears in a result is documented beside the code."""
    page = SCHEMA_PAGE.read_text(encoding="utf-8")

    def keys(node: results.Json) -> set[str]:
        if not isinstance(node, Mapping):
            return set()
        own: set[str] = set() if set(node) <= {"eager", "overlap"} else set(node)
        return own.union(*(keys(value) for value in node.values()))

    statistics = {"mean", *(f"p{percent}" for percent in (25, 50, 75, 90, 95, 99))}
    for key in sorted(keys({**document, "delta": {}}) - statistics):
        assert f"`{key}`" in page, key


def test_nothing_in_a_result_tells_where_or_when_it_was_made(
    document: dict[str, results.Json], tmp_path: Path
) -> None:
    """No path, no date."""
    text = encode(document)
    assert str(tmp_path) not in text
    assert "/" not in text


def test_numbers_are_rounded_once() -> None:
    """Fractions to six decimals half to even; nanoseconds exactly."""
    assert rounded(Fraction(1, 3)) == 0.333333
    assert rounded(Fraction(5, 10**7)) == 0.0
    assert rounded(Fraction(15, 10**7)) == 0.000002
    assert rounded(None) is None
    assert (milliseconds(1_234_567), seconds(1_234_567_891)) == (1.234567, 1.234567891)


def test_changes_are_relative_and_absent_where_there_is_none() -> None:
    """From 2 to 3 is +0.5; from 0, or from or to nothing, there is no relative change."""
    before: dict[str, results.Json] = dict.fromkeys(results.COMPARED)
    after: dict[str, results.Json] = dict.fromkeys(results.COMPARED)
    before |= {"requests_per_s": 2.0, "hidden_cpu_s": 0.0}
    after |= {"requests_per_s": 3.0, "hidden_cpu_s": 1.0}
    before["ttft_ms"] = dict.fromkeys(_statistics(), 8.0)
    after["ttft_ms"] = dict.fromkeys(_statistics(), 6.0)
    after["tpot_ms"] = dict.fromkeys(_statistics(), 6.0)
    found = delta(before, after)
    assert found["requests_per_s"] == 0.5
    assert found["hidden_cpu_s"] is None
    assert found["ttft_ms.p99"] == -0.25
    assert found["tpot_ms.mean"] is None
    assert found["goodput"] is None


def _statistics() -> list[str]:
    return ["mean", "p25", "p50", "p75", "p90", "p95", "p99"]
