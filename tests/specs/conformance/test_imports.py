"""What judges somebody else's scheduler does not know ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
CONTRACT = PROJECT / "specs" / "conformance-imports.toml"


def test_a_history_is_checked_without_the_kernel() -> None:
    """Neither the checker, the plugin, the examples nor the rules reach the kernel."""
    pytest.importorskip("importlinter", reason="import-linter comes with the extra [test]")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", CONTRACT],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_checker_runs_where_the_kernel_cannot_be_imported(tmp_path: Path) -> None:
    """A Python in which importing stepahead fails still checks a history."""
    (tmp_path / "stepahead").mkdir()
    (tmp_path / "stepahead" / "__init__.py").write_text("raise ImportError('the kernel')\n")
    history = tmp_path / "h.jsonl"
    history.write_text(
        '{"fact":"opened","format":1,"limits":{"num_blocks":2,"block_size":1,"max_concurrency":1,'
        '"max_num_batched_tokens":8,"max_tokens_per_row":8,"max_model_len":8,"lookahead":0}}\n'
        '{"fact":"submitted","request":0,"name":"a","prompt":[1],"max_tokens":1}\n'
        '{"fact":"drained"}\n',
        encoding="utf-8",
    )
    code = (
        "import sys; from pathlib import Path; "
        "from stepahead_specs.conformance.checker import check_history; "
        "print(check_history(Path(sys.argv[1])).violations[0])"
    )
    paths = os.pathsep.join(map(str, (tmp_path, PROJECT / "specs")))
    done = subprocess.run(
        [sys.executable, "-c", code, history],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ("INV-15 (every request ends) at step 2: request 0 has not ended\n"), (
        done.stderr
    )
