"""The how-to page of the kit is true: its commands run and print what it shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
PAGE = (PROJECT / "specs" / "conformance.md").read_text(encoding="utf-8")
PROGRAMS = {
    "pytest": (sys.executable, "-m", "pytest"),
    "stepahead": (sys.executable, "-m", "stepahead_tools"),
}


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def shown(folder: Path, command: str) -> tuple[int, str]:
    """Run one command of the page; return its exit code and what it prints."""
    program, *arguments = shlex.split(command.removeprefix("$ "))
    done = subprocess.run(
        [*PROGRAMS[program], *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    """In the order of the page: a failure, a pass, a kept failure, two broken histories."""
    commands = [command.strip() for command in blocks("console")]
    (tmp_path / "history.jsonl").write_text(blocks("json")[0], encoding="utf-8")
    failing, passing, kept, history, again = (shown(tmp_path, command) for command in commands)
    assert [code for code, _ in (failing, passing, kept, history, again)] == [1, 0, 1, 1, 1]
    words, rules, broken = blocks("text")
    for line in (words + rules).splitlines():
        assert line in failing[1]
    assert " ".join(broken.split()) in " ".join(history[1].split())
    assert "complete within the bounds named below, sampled beyond them" in passing[1]
    assert "BROKEN at line" in again[1]
    assert (tmp_path / "failing.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "ERROR: --stepahead-adapter=nothing is not MODULE:FACTORY"),
        (
            "no_such_module:Adapter",
            "ERROR: --stepahead-adapter=no_such_module:Adapter: No module named 'no_such_module'",
        ),
    ],
)
def test_an_adapter_that_is_not_there_is_named(tmp_path: Path, name: str, sentence: str) -> None:
    """The plugin refuses before anything is collected."""
    code, printed = shown(
        tmp_path, f"pytest -p stepahead_specs.conformance.plugin --stepahead-adapter {name}"
    )
    assert code == pytest.ExitCode.USAGE_ERROR
    assert sentence in printed


def test_the_kit_runs_beside_other_tests_where_a_path_is_given(tmp_path: Path) -> None:
    """With a path, the tests there are run too; without the option, the plugin adds nothing."""
    (tmp_path / "test_mine.py").write_text("def test_mine() -> None:\n    pass\n")
    plugin = "pytest -q -p stepahead_specs.conformance.plugin"
    adapter = "--stepahead-adapter stepahead_specs.conformance.examples.planted:EarlyFreeAdapter"
    assert "1 passed" in shown(tmp_path, f"{plugin} test_mine.py")[1]
    assert "2 failed, 1 passed, 1 skipped" in shown(tmp_path, f"{plugin} {adapter} test_mine.py")[1]


@pytest.mark.parametrize(
    ("waiver", "sentence"),
    [
        (
            "every request ends",
            "stepahead: --waive 'every request ends' gives no reason; write RULE=REASON",
        ),
        (
            "every one ends=why",
            (
                "stepahead: --waive 'every one ends' is no rule; use a name from the page, "
                "without its INV number"
            ),
        ),
    ],
)
def test_a_waiver_needs_a_rule_and_a_reason(tmp_path: Path, waiver: str, sentence: str) -> None:
    """A waiver that waives nothing is refused with exit code 2."""
    code, printed = shown(tmp_path, f"stepahead check h.jsonl --waive {shlex.quote(waiver)}")
    assert (code, printed.strip()) == (2, sentence)


def test_a_search_that_is_cut_short_is_not_called_complete(tmp_path: Path) -> None:
    """Five runs are no proof, and the page does not claim one."""
    code, printed = shown(
        tmp_path,
        "pytest -q -p stepahead_specs.conformance.plugin --stepahead-runs 5 "
        "--stepahead-examples 1 --stepahead-adapter "
        "stepahead_specs.conformance.examples.small_adapter:SmallAdapter",
    )
    assert code == 0
    assert "Nothing was found, but not everything was run." in printed
    assert printed.count("not complete: stopped after 5 runs") == 2
