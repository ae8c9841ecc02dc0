"""How the requests of a trace end."""

from pathlib import Path

import pytest

from stepahead_models.traces import Trace, plan_requests, read_trace

LIMITED = (
    b'{"timestamp": 0, "input_length": 100, "output_length": 7, "max_tokens": 9}\n'
    b'{"timestamp": 0, "input_length": 100, "output_length": 9, "max_tokens": 9}\n'
    b'{"timestamp": 0, "input_length": 100, "output_length": 7}\n'
    b'{"timestamp": 0, "input_length": 995, "output_length": 7}\n'
    b'{"timestamp": 0, "input_length": 1200, "output_length": 50}\n'
)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Two requests with a limit of their own, three without."""
    path = tmp_path / "limited.jsonl"
    path.write_bytes(LIMITED)
    return read_trace(path)


def test_eos_mode_hides_the_end_behind_a_limit(trace: Trace) -> None:
    """An own limit is used as it is; else the room left, the cap, and the output, decide."""
    plan = plan_requests(trace, "eos", max_model_len=1000)
    assert plan.max_tokens.tolist() == [9, 9, 900, 7, 50]
    # The second one reached its own limit, so no EOS was sampled.
    assert plan.eos_at.tolist() == [7, -1, 7, 7, 50]
    assert plan.ends == "eos"


def test_default_limit_is_capped(trace: Trace) -> None:
    """A client that states no limit is not taken to allow the whole context."""
    assert plan_requests(trace, "eos", 100_000).max_tokens.tolist() == [9, 9, 4096, 4096, 4096]
    assert plan_requests(trace, "eos", 100_000, 20).max_tokens.tolist() == [9, 9, 20, 20, 50]


def test_length_mode_tells_the_end_ahead(trace: Trace) -> None:
    """The limit is the recorded output, also where the trace has a larger one."""
    plan = plan_requests(trace, "length", max_model_len=1000)
    assert plan.max_tokens.tolist() == [7, 9, 7, 7, 50]
    assert plan.eos_at.tolist() == [-1] * 5


def test_each_mode_gives_the_recorded_number_of_tokens(trace: Trace) -> None:
    """Whichever comes first, EOS or the limit, is the recorded output."""
    for ends in ("eos", "length"):
        plan = plan_requests(trace, ends, max_model_len=1000)
        produced = [
            limit if eos < 0 else min(eos, limit)
            for limit, eos in zip(plan.max_tokens.tolist(), plan.eos_at.tolist(), strict=True)
        ]
        assert produced == trace.output_lengths.tolist()


def test_impossible_limits_are_refused(trace: Trace) -> None:
    """Full text."""
    with pytest.raises(ValueError, match=r"^max_model_len") as caught:
        plan_requests(trace, "eos", max_model_len=0)
    assert str(caught.value) == (
        "max_model_len and default_output_cap must be at least 1 token, not 0 and 4096"
    )
