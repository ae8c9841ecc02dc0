"""A tiny trace with every kind of end, a record of what a test states, configurations."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepahead_models.record import RunRecord, Waste
from stepahead_tools.testing import Result, run

PER_REQUEST = (
    "arrivals_ns",
    "first_dispatches_ns",
    "first_tokens_ns",
    "last_tokens_ns",
    "ends_ns",
    "output_tokens",
    "extra_tokens",
    "outcomes",
)


@pytest.fixture
def tiny_trace(tmp_path: Path) -> Path:
    """Write 24 requests: most stop, some end by length, two leave, one can never fit."""
    path = tmp_path / "tiny.jsonl"
    lines: list[dict[str, object]] = []
    for number in range(24):
        lines.append(
            {
                "request_id": f"q{number}",
                "timestamp": 7 * number,
                "input_length": 20 + 37 * number % 90,
                "output_length": 3 + number % 11,
                "max_tokens": 3 + number % 11 + (0 if number % 5 == 0 else 20),
            }
        )
    lines[7]["cancel_after_ms"] = 1
    lines[9]["cancel_after_tokens"] = 4
    lines[13]["input_length"] = 100_000
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def make_record() -> Callable[..., RunRecord]:
    """Return a function that makes a record from the given columns; everything else is empty."""

    def make(**given: Any) -> RunRecord:  # noqa: ANN401 # fields of a record, by name
        columns: dict[str, Any] = {}
        counts: dict[str, int] = {}
        count = max((len(given[name]) for name in PER_REQUEST if name in given), default=0)
        for field in fields(RunRecord):
            kind = str(field.type)
            if field.name in given:
                value: object = given[field.name]
                columns[field.name] = np.array(given[field.name]) if kind == "Ints" else value
            elif kind in {"Ints", "Words"}:
                size = count if field.name in PER_REQUEST or kind == "Words" else 0
                columns[field.name] = np.zeros(size, dtype=np.uint64 if kind == "Words" else int)
            else:
                plain: dict[str, object] = {"int": 0, "str": "", "Waste": Waste()}
                columns[field.name] = plain.get(kind, counts)
        return RunRecord(**columns)

    return make


@pytest.fixture
def checked() -> Callable[..., Result]:
    """Return a function that checks a configuration of replay without running anything."""

    def check(*arguments: str) -> Result:
        return run("replay", "demo", *arguments, "--print-config")

    return check


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a configuration and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "engine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def device(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a device with a model of another kind."""
    packaged = Path(__file__).parents[2] / "models/stepahead_models/data/profiles/fast.toml"

    def write(kind: str) -> Path:
        path = tmp_path / f"{kind}.toml"
        text = packaged.read_text(encoding="utf-8")
        path.write_text(text.replace('"text-generation"', f'"{kind}"'), encoding="utf-8")
        return path

    return write
