"""What a comparison checks of its runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepahead_models.profiles import load_profile
from stepahead_models.record import Outcome, RunRecord
from stepahead_models.traces import read_trace
from stepahead_tools.agreement import disagreements
from stepahead_tools.loops import EAGER, OVERLAP
from stepahead_tools.options import CompareOptions
from stepahead_tools.runs import Scene, run_loop, set_up
from stepahead_tools.settings import resolve


@pytest.fixture
def scene(tiny_trace: Path) -> Scene:
    """The tiny trace on the fast device."""
    profile = load_profile("fast")
    settings = resolve(CompareOptions(trace=str(tiny_trace), num_blocks=400), profile)
    return set_up(read_trace(tiny_trace), settings, profile, None)


@pytest.fixture
def records(scene: Scene) -> dict[str, RunRecord]:
    """Both loops."""
    return {loop.name: run_loop(scene, loop) for loop in (EAGER, OVERLAP)}


def test_sound_runs_agree(scene: Scene, records: dict[str, RunRecord]) -> None:
    """Both loops complete, cancel and refuse the same requests of the tiny trace."""
    assert list(disagreements(scene, records)) == []
    outcomes = records["eager"].outcomes.tolist()
    assert {Outcome.STOP, Outcome.LENGTH, Outcome.CANCELLED, Outcome.REFUSED} <= set(outcomes)


def test_another_token_is_found(scene: Scene, records: dict[str, RunRecord]) -> None:
    """A changed checksum of a completed request is a different output."""
    checksums = records["overlap"].checksums.copy()
    checksums[2] += np.uint64(1)
    records["overlap"] = replace(records["overlap"], checksums=checksums)
    assert list(disagreements(scene, records)) == [
        "request 'q2' completed with different tokens in the eager and the overlap loop"
    ]


def test_many_differences_are_counted(scene: Scene, records: dict[str, RunRecord]) -> None:
    """Three are named, the others counted."""
    outputs = records["overlap"].output_tokens + 1
    records["overlap"] = replace(records["overlap"], output_tokens=outputs)
    found = list(disagreements(scene, records))
    completed = int((records["eager"].outcomes <= Outcome.LENGTH).sum())
    assert f"so did {completed - 3} more requests" in found
    assert "request 'q0' completed with different tokens in the eager and the overlap loop" in found


def test_a_refusal_in_one_loop_only_is_found(scene: Scene, records: dict[str, RunRecord]) -> None:
    """Whether a request can be served does not depend on the loop."""
    outcomes = records["overlap"].outcomes.copy()
    outcomes[13] = Outcome.ERRORED
    records["overlap"] = replace(records["overlap"], outcomes=outcomes)
    assert list(disagreements(scene, records)) == [
        "request 'q13' was refused in only one of the eager and the overlap loop"
    ]


def test_a_cancelled_output_must_be_a_prefix(scene: Scene, records: dict[str, RunRecord]) -> None:
    """The reference knows what a cancelled request would have got."""
    request = int(np.flatnonzero(records["eager"].outcomes == Outcome.CANCELLED)[-1])
    checksums = records["eager"].checksums.copy()
    checksums[request] += np.uint64(1)
    records["eager"] = replace(records["eager"], checksums=checksums)
    count = int(records["eager"].output_tokens[request])
    assert list(disagreements(scene, records)) == [
        (
            f"the {count} tokens that request 'q{request}' got in the eager loop before it was "
            "cancelled are no prefix of its reference"
        )
    ]


def test_leaked_blocks_are_found(scene: Scene, records: dict[str, RunRecord]) -> None:
    """Blocks that are neither free nor cached after the end are lost."""
    records["overlap"] = replace(records["overlap"], leaked_blocks=3)
    assert list(disagreements(scene, records)) == ["the overlap loop leaked 3 KV blocks"]
