"""The compiled build does what its sources do, byte for byte.

`make test-compiled` runs this where the compiled build is installed; the sources of this project
are the oracle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepahead
import stepahead_models
from stepahead_models.build import is_compiled
from stepahead_models.traces import bundled_trace

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = [PROJECT / folder for folder in ("kernel", "models", "specs", "tools")]
DATA = bundled_trace().parent
LOOPS = ("eager", "overlap", "just-in-time")
SMALL = ("--limit", "150", "--num-blocks", "4000")
LOADS = {
    "mooncake": (*LOOPS, "demo", "--device", "fast", *SMALL, "--speed", "2"),
    "unchecked": (*LOOPS, "demo", "--device", "fast", "--unchecked", "--speed", "2"),
    "azure, paced, with noise": (
        *LOOPS, str(DATA / "azure_conversation_head.csv.zst"), "--limit", "100", "--rate", "9",
        "--noise", "5",
    ),
    "servegen, a closed loop": (
        *LOOPS, str(DATA / "servegen_m-large_head.jsonl.zst"), "--limit", "150", "--concurrency",
        "32",
    ),
    "the host tier": (
        "eager", "overlap", "demo", "--device", "fast", *SMALL,
        "--experimental-kv-offload-host-memory-gb", "1", "--experimental-kv-offload-write-back",
    ),
    "the remote store": (
        "eager", "demo", "--device", "fast", *SMALL, "--experimental-kv-offload-host-memory-gb",
        "1", "--l3-enabled", "--remote-miss", "20", "--remote-failure", "5",
    ),
    "drafts": (
        "eager", str(DATA / "servegen_m-large_head.jsonl.zst"), "--limit", "100",
        "--experimental-speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}',
    ),
    "cancels": (*LOOPS, "cancels", "--device", "fast", "--num-blocks", "400"),
    "checked after each step": (
        *LOOPS, "cancels", "--device", "fast", "--num-blocks", "60", "--check",
    ),
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not is_compiled(), reason="this is the pure build; `make test-compiled` checks the compiled one"
)


def started(arguments: list[str], *, pure: bool) -> bytes:
    """Run Python on the compiled or on the pure build, and return what it printed."""
    path = {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))} if pure else {}
    left = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments], env=left | path, capture_output=True, check=False, cwd=DATA
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    """Return what was written to a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def cancels(tmp_path: Path) -> Path:
    """Return a trace whose clients leave after a time, or after some tokens."""
    leaving: list[dict[str, object]] = [{}, {"cancel_after_ms": 40}, {"cancel_after_tokens": 5}]
    lines = [
        {
            "timestamp": 3 * number,
            "input_length": 30 + 37 * number % 200,
            "output_length": 3 + 11 * number % 60,
            **leaving[number % 3],
        }
        for number in range(60)
    ]
    path = tmp_path / "cancels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_the_two_builds_are_what_they_are_said_to_be() -> None:
    """Else the other tests would compare a build with itself."""
    told = [started(["-m", "stepahead_tools", "--version"], pure=pure) for pure in (False, True)]
    assert [line.split(b"(")[1] for line in told] == [b"compiled)\n", b"pure Python)\n"]


@pytest.mark.parametrize("package", [stepahead, stepahead_models])
def test_the_compiled_build_was_made_of_these_sources(package: object) -> None:
    """An older one would be compared with what it never was; `make compiled` makes a new one."""
    installed = Path(str(getattr(package, "__file__", ""))).parent
    (root,) = (root for root in SOURCES if (root / installed.name).is_dir())
    theirs = {path.relative_to(installed): path.read_bytes() for path in installed.rglob("*.py")}
    mine = root / installed.name
    assert theirs == {path.relative_to(mine): path.read_bytes() for path in mine.rglob("*.py")}


@pytest.mark.parametrize("load", LOADS)
def test_results_and_journals_are_the_same_bytes(load: str, cancels: Path, tmp_path: Path) -> None:
    """All loops, prefix hits, tiers, drafts, cancels, noise; checked and not."""
    loops = [word for word in LOADS[load] if word in LOOPS]
    rest = LOADS[load][len(loops) :]
    arguments = [str(cancels) if word == "cancels" else word for word in rest]
    for loop in loops:
        outputs: list[object] = []
        for pure in (False, True):
            folder = tmp_path / f"{loop} {pure}"
            folder.mkdir()
            written = (
                "--json",
                str(folder / "result.json"),
                "--journal",
                str(folder / "run.jsonl"),
            )
            words = ["-m", "stepahead_tools", "replay", *arguments, "--loop", loop, *written]
            told = started(words, pure=pure)
            outputs.append((told.replace(str(folder).encode(), b""), files(folder)))
        assert outputs[0] == outputs[1]


def test_small_runs_are_the_same_with_and_without_stretches(tmp_path: Path) -> None:
    """Random workloads in little memory, each as steps and in stretches, with journals."""
    outputs: list[object] = []
    for pure in (False, True):
        folder = tmp_path / str(pure)
        folder.mkdir()
        told = started(
            [str(Path(__file__).with_name("small_runs.py")), "4", str(folder)], pure=pure
        )
        outputs.append((told, files(folder)))
    assert outputs[0] == outputs[1]
