"""The gate's own code: what it finds untidy, how it reports, and how it searches in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import check
import tidy

PROJECT = Path(__file__).resolve().parent.parent


def findings(project: Path, name: str, text: str) -> list[str]:
    """Put one file into an empty project and return what the tidy check says about it."""
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return [str(finding) for finding in tidy.tidy(project)]


# In two halves, or this file would be untidy itself.
@pytest.mark.parametrize(("head", "tail"), [("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK")])
def test_a_leftover_marker_is_a_problem(tmp_path: Path, head: str, tail: str) -> None:
    """Each of the four words is reported with its file and line."""
    assert findings(tmp_path, "kernel/a/b.py", f"'''A.'''\n# {head}{tail}: later\n") == [
        "kernel/a/b.py:2: problem: a left-over marker; do it or drop it"
    ]


@pytest.mark.parametrize(
    "line", ["--index{}-url x", "https://pypi{}.org/simple", "https://files.pythonhosted{}.org/x"]
)
def test_the_address_of_a_registry_is_a_problem(tmp_path: Path, line: str) -> None:
    """CI scripts are read too: where packages come from is the user's setting."""
    assert findings(tmp_path, ".ci/run", line.format("")) == [
        ".ci/run:1: problem: the address of a registry; leave it to the user's package settings"
    ]


@pytest.mark.parametrize("path", [".{}./shared/traces", "/{}root/x", "see /{}work/x"])
def test_a_path_of_one_machine_is_a_problem(tmp_path: Path, path: str) -> None:
    """A file beside the clone, or in somebody's home, is not there for the next reader."""
    assert findings(tmp_path, "README.md", path.format("")) == [
        "README.md:1: problem: a path that exists on one machine; the project must stand alone"
    ]


@pytest.mark.parametrize("line", ["gains 5{}%.", "| 5{}% |", "{{gain:+.1{}%}}"])
def test_a_percent_sign_that_touches_its_number_is_a_problem(tmp_path: Path, line: str) -> None:
    """One way everywhere; remainders, formats and addresses are no percentages."""
    says = "a percent sign without a space before it; the tables and the prose have one"
    assert findings(tmp_path, "specs/page.md", line.format("")) == [
        f"specs/page.md:1: problem: {says}"
    ]
    assert findings(tmp_path, "specs/page.md", "5 %, x%5, '%5d' % 3, a%20b, {gain:.1f} %") == []


def test_a_file_name_that_says_nothing_is_a_problem(tmp_path: Path) -> None:
    """Files are nouns of the domain."""
    says = "the name _utils says nothing; name the file for what it holds"
    assert findings(tmp_path, "models/m/_utils.py", "") == [
        f"models/m/_utils.py:1: problem: {says}"
    ]


@pytest.mark.parametrize(
    ("lines", "kind"), [(300, None), (301, "note"), (600, "note"), (601, "problem")]
)
def test_a_long_module_is_noted_and_a_module_twice_too_long_is_a_problem(
    tmp_path: Path, lines: int, kind: str | None
) -> None:
    """The limit itself is allowed, and so is twice the limit, with a note."""
    expected = [f"specs/s/long.py:1: {kind}: the module has {lines} lines, the limit is 300"]
    assert findings(tmp_path, "specs/s/long.py", "x = 1\n" * lines) == (expected if kind else [])


def test_the_length_of_a_function_leaves_its_docstring_out(tmp_path: Path) -> None:
    """Fifty lines of code pass under any docstring; fifty-one are noted."""
    docstring = '    """Claim.\n\n' + "    More.\n" * 40 + '    """\n'
    function = "def f():\n" + docstring + "    x = 1\n" * 49
    assert findings(tmp_path, "tools/t/code.py", function) == []
    assert findings(tmp_path, "tools/t/code.py", function + "    x = 1\n") == [
        "tools/t/code.py:1: note: f has 51 lines, the limit is 50"
    ]


def test_what_tools_leave_behind_is_not_tidied(tmp_path: Path) -> None:
    """Caches and hidden folders inside the sources are skipped; data files are not text."""
    marker = "TO" + "DO"
    assert findings(tmp_path, "kernel/k/.cache/note.txt", marker) == []
    assert findings(tmp_path, "kernel/k/__pycache__/note.txt", marker) == []
    assert findings(tmp_path, "models/m/trace.jsonl", marker) == []


def test_the_gate_prints_one_line_per_step_and_names_what_failed() -> None:
    """The table holds step, result and seconds."""
    results = [
        check.Result(step="ruff", passed=True, seconds=0.04, output=""),
        check.Result(step="mypy", passed=False, seconds=12.31, output="boom"),
    ]
    assert check.table(results).splitlines() == [
        "step      result     seconds",
        "ruff      ok             0.0",
        "mypy      FAILED        12.3",
        "failed: mypy",
    ]


def test_the_gate_fails_when_a_step_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, the output of the failed step is shown, the later steps still run."""
    monkeypatch.setitem(check.COMMANDS, "ruff", (sys.executable, "-c", "exit('not today')"))
    monkeypatch.setitem(check.COMMANDS, "format", (sys.executable, "-c", "print('quiet')"))
    assert check.main(["--only", "ruff", "format"]) == 1
    printed = capsys.readouterr().out
    assert "---- ruff ----\nnot today\n" in printed
    assert "quiet" not in printed
    assert printed.endswith("failed: ruff\n")


def test_the_gate_passes_when_every_step_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 0 and the last line says so."""
    monkeypatch.setitem(check.COMMANDS, "ruff", (sys.executable, "-c", ""))
    assert check.main(["--only", "ruff"]) == 0
    assert capsys.readouterr().out.endswith("every step passed\n")


def test_a_missing_tool_is_a_failure_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tool that is not there can never count as a step that passed."""
    monkeypatch.setitem(check.COMMANDS, "imports", ("no-such-tool",))
    result = check.run_step("imports")
    assert not result.passed
    assert result.output == (
        f"no-such-tool is not installed; run: {sys.executable} -m pip install -e '.[dev]'"
    )


def profile_setting(profile: str, setting: str) -> object:
    """Read one setting of a Hypothesis profile, which has no usable type there."""
    value: object = getattr(settings.get_profile(profile), setting)
    return value


def test_the_profiles_say_for_themselves_whether_they_are_random() -> None:
    """Only ``ci`` repeats its examples; ``nightly`` runs a hundred times as many as ``dev``."""
    names = ("dev", "ci", "nightly")
    assert [profile_setting(name, "derandomize") for name in names] == [False, True, False]
    assert [profile_setting(name, "max_examples") for name in names] == [50, 100, 5_000]


@pytest.mark.parametrize(
    ("ci", "options", "expected"),
    [
        ("", (), "profile dev, random"),
        ("true", (), "profile ci, derandomized"),
        ("true", ("--hypothesis-profile=dev",), "profile dev, random"),
        (
            "true",
            ("--hypothesis-profile=nightly", "--hypothesis-seed=7"),
            "profile nightly, random, repeat with --hypothesis-seed=7",
        ),
    ],
)
def test_the_header_says_which_search_runs(
    ci: str, options: tuple[str, ...], expected: str
) -> None:
    """CI chooses its profile when nobody else does, and never derandomizes another one."""
    assert f"hypothesis search: {expected}" in header_of_a_run(ci, options)


def test_every_nightly_run_has_a_seed_of_its_own_and_prints_it() -> None:
    """Two nights draw different examples, and each can be repeated from its log."""
    first, second = (header_of_a_run("true", ("--hypothesis-profile=nightly",)) for _ in range(2))
    assert "profile nightly, random, repeat with --hypothesis-seed=" in first
    assert first != second


def header_of_a_run(ci: str, options: tuple[str, ...]) -> str:
    """Start pytest on this file, run nothing, and return the line about Hypothesis."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *options, __file__],
        cwd=PROJECT,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=True,
    )
    return next(line for line in done.stdout.splitlines() if line.startswith("hypothesis search"))
