"""The same bytes come out of every run, whatever Python and whatever hash seed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stepahead
import stepahead_models
import stepahead_specs
import stepahead_tools

SOURCES = os.pathsep.join(
    str(Path(str(package.__file__)).parent.parent)
    for package in (stepahead, stepahead_models, stepahead_specs, stepahead_tools)
)
PROJECT = Path(__file__).resolve().parents[2]
NEEDED = "import msgspec, numpy, rich, structlog, transitions, zstandard"


def outputs(python: str, trace: Path, folder: Path, hash_seed: str) -> dict[str, bytes]:
    """Compare both loops on a trace in a fresh process; return every file that was written."""
    folder.mkdir()
    arguments = [
        *("compare", str(trace), "--device", "fast", "--num-blocks", "400", "--rate", "200"),
        *("--noise", "5", "--seed", "3", "--goodput", "ttft:9"),
        *("--json", str(folder / "result.json"), "--journal", str(folder / "run.jsonl")),
    ]
    done = subprocess.run(
        [python, "-m", "stepahead_tools", *arguments],
        env=os.environ | {"PYTHONPATH": SOURCES, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {**written, "standard output": done.stdout.encode()}


def interpreter(version: str) -> str | None:
    """Find a Python of this version that has what stepahead needs, here or on the path."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    for python in (PROJECT / f".venv-{version}/bin/python", shutil.which(f"python{version}")):
        if python is not None and Path(python).exists():
            probe = subprocess.run([python, "-c", NEEDED], capture_output=True, check=False)
            if probe.returncode == 0:
                return str(python)
    return None


@pytest.fixture
def reference(tiny_trace: Path, tmp_path: Path) -> dict[str, bytes]:
    """What this Python writes with hash seed 0."""
    return outputs(sys.executable, tiny_trace, tmp_path / "reference", "0")


def test_two_hash_seeds_write_the_same_bytes(
    reference: dict[str, bytes], tiny_trace: Path, tmp_path: Path
) -> None:
    """Result, journals and table depend neither on time nor on the order of a set."""
    assert set(reference) == {
        "result.json",
        "run.eager.jsonl",
        "run.overlap.jsonl",
        "standard output",
    }
    assert outputs(sys.executable, tiny_trace, tmp_path / "again", "12345") == reference


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_other_versions_of_python_write_the_same_bytes(
    reference: dict[str, bytes], tiny_trace: Path, tmp_path: Path, version: str
) -> None:
    """Every interpreter here that has the dependencies agrees with this one."""
    python = interpreter(version)
    if python is None:
        pytest.skip(
            f"no Python {version} with numpy and the others; make one with python{version} "
            f"-m venv .venv-{version} and .venv-{version}/bin/pip install '.[cli]'"
        )
    assert outputs(python, tiny_trace, tmp_path / version, "7") == reference
