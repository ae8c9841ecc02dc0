"""What a whole run must hold, and the sentences for what is none."""

import re
from collections.abc import Callable

import pytest

from stepahead_models.record import RunRecord
from stepahead_tools.errors import OptionError
from stepahead_tools.metrics import measure
from stepahead_tools.service_levels import PRESETS, ServiceLevel, preset, service_levels

MS = 1_000_000


def test_a_level_names_latency_statistic_and_limit() -> None:
    """Several words, in one string or in several, and their own spelling back."""
    levels = service_levels(["ttft_p99:500 tpot_mean:30.5", "e2el_p50:9000"])
    assert levels == (
        ServiceLevel("ttft", 99, 500 * MS),
        ServiceLevel("tpot", None, 30_500_000),
        ServiceLevel("e2el", 50, 9000 * MS),
    )
    assert " ".join(map(str, levels)) == "ttft_p99:500 tpot_mean:30.5 e2el_p50:9000"
    assert service_levels(None) == ()


@pytest.mark.parametrize(
    "word", ["ttft:500", "ttft_p98:500", "ttft_p99:0", "ttft_p99:x", "ttft_p99", "cost_p99:5"]
)
def test_what_is_no_level_is_refused(word: str) -> None:
    """One sentence says what there is."""
    sentence = (
        f"--slo {word!r} is no service level; give one of ttft, tpot, itl, e2el, queue, _mean or "
        "one of p25, p50, p75, p90, p95, p99 with an underscore before it, a colon and "
        "milliseconds above 0, for example ttft_p99:500"
    )
    with pytest.raises(OptionError, match=f"^{re.escape(sentence)}$"):
        service_levels([word])


def test_presets_are_objectives_and_levels_at_once() -> None:
    """Every preset reads back; an unknown one lists all."""
    assert preset("llama3.1-8b-interactive") == (
        ["ttft:500", "tpot:30"],
        ["ttft_p99:500", "tpot_p99:30"],
    )
    for name in PRESETS:
        assert len(service_levels(preset(name)[1])) == 2
    sentence = f"--preset 'gpt-2' is not known; give one of {', '.join(PRESETS)}"
    with pytest.raises(OptionError, match=f"^{re.escape(sentence)}$"):
        preset("gpt-2")


def test_a_level_holds_by_equality_and_not_where_nothing_was_measured(
    make_record: Callable[..., RunRecord],
) -> None:
    """Two requests with a TTFT of 3 and 5 ms, and one token each, so that there is no TPOT."""
    record = make_record(
        arrivals_ns=[0, 0],
        first_tokens_ns=[3 * MS, 5 * MS],
        last_tokens_ns=[3 * MS, 5 * MS],
        ends_ns=[3 * MS, 5 * MS],
        output_tokens=[1, 1],
        outcomes=[0, 0],
    )
    metrics = measure(record)
    assert ServiceLevel("ttft", None, 4 * MS).holds(metrics)
    assert not ServiceLevel("ttft", None, 4 * MS - 1).holds(metrics)
    assert not ServiceLevel("ttft", 99, 4 * MS).holds(metrics)
    assert not ServiceLevel("tpot", 99, 9 * MS).holds(metrics)
