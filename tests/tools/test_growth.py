"""What the cost of a step and of a replay grows with, by counting; and that the benchmarks run.

Nothing here looks at a clock: counted are events, calls of functions, and blocks of memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import fields
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from bench import replays, steps
from stepahead import Kernel, KernelConfig
from stepahead_models.closed_form import ClosedForm
from stepahead_models.examples import plain_workload, roofline_device
from stepahead_models.record import RunRecord
from stepahead_models.simulation import Simulation

TOOLS = Path(steps.__file__).parents[1]


def _calls(rows: int) -> int:
    """Count the functions called, Python's own and NumPy's, in ten decode steps."""
    kernel, count = steps.decoding(rows), 0

    def see(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal count
        count += what in {"call", "c_call"}

    sys.setprofile(see)
    try:
        # Blocks have 16 tokens: from here on no row needs one, whatever the number of rows.
        for batch_id in range(steps.WARM_STEPS + 1, steps.WARM_STEPS + 5):
            steps.decode_step(kernel, batch_id, rows)
    finally:
        sys.setprofile(None)
    return count


def test_a_decode_step_calls_as_many_functions_whatever_the_number_of_rows() -> None:
    """A loop over rows anywhere in the step would show as calls per row."""
    assert _calls(8) == _calls(64) == _calls(256)


def test_a_million_steps_would_need_no_more_memory_than_a_hundred() -> None:
    """What a decode step allocates is given back; sampled tokens have their place beforehand."""
    kernel = steps.decoding(32)
    numbers = iter(range(steps.WARM_STEPS + 1, 1000))

    def held_after(count: int) -> int:
        for _ in range(count):
            steps.decode_step(kernel, next(numbers), 32)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = held_after(32)
        assert held_after(128) <= first + 1024
    finally:
        tracemalloc.stop()


def _run(requests: int, tokens: int, lookahead: int) -> RunRecord:
    load = plain_workload(
        [32] * requests,
        arrivals_ns=[number * 10**12 for number in range(requests)],
        max_tokens=[tokens] * requests,
    )
    config = KernelConfig(
        num_blocks=4096, max_model_len=4096, lookahead=lookahead, eos_token_id=None
    )
    model = ClosedForm(vocab_size=1000)
    return Simulation(Kernel(config), load, roofline_device(), model).run()


def _events(requests: int, tokens: int, lookahead: int) -> int:
    return _run(requests, tokens, lookahead).events


def _bytes(record: RunRecord) -> int:
    columns = [getattr(record, field.name) for field in fields(record)]
    return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_record_holds_three_times_per_device_step_and_nothing_else(lookahead: int) -> None:
    """Begin, end, and when its tokens were out; all else is kept per run of like steps."""
    few, many = _run(3, 100, lookahead), _run(3, 1000, lookahead)
    assert many.steps - few.steps == 3 * 900
    assert _bytes(many) - _bytes(few) == 3 * 8 * (many.steps - few.steps)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_replay_grows_with_requests_and_not_with_their_tokens(lookahead: int) -> None:
    """Ten times the tokens are longer stretches; twice the requests are twice the events."""
    few = _events(5, 100, lookahead)
    assert _events(5, 1000, lookahead) == few
    assert _events(10, 100, lookahead) == 2 * few


def test_a_repeated_trace_has_later_arrivals_and_content_of_its_own(tmp_path: Path) -> None:
    """A longer trace for the benchmark is the short one again, after itself."""
    lines = [
        {"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [0]},
        {"timestamp": 100, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]},
    ]
    source = tmp_path / "short.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    longer = replays.repeated(source, 3, tmp_path / "long.jsonl")
    written = [json.loads(line) for line in longer.read_text(encoding="utf-8").splitlines()]
    assert written == [*lines, {**lines[0], "timestamp": 150, "hash_ids": [2]}]


def test_the_benchmarks_run_and_write_their_figures(tmp_path: Path) -> None:
    """Without a peer that is said, and the figures of the kernel alone are written."""
    target = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "steps", "lives", "--pairs", "1", "--json", str(target)],
        cwd=TOOLS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(target.read_text(encoding="utf-8"))
    assert [row["rows"] for row in figures["steps"]] == [8, 64, 256, 1024]
    assert len(figures["lives"]) == 3
    assert figures["machine"]["numpy"] == np.__version__
