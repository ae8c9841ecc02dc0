"""The gate: every check that a change must pass, in one command.

    python tools/check.py                   everything
    python tools/check.py --no-tests        everything but the test suite
    python tools/check.py --only mypy ruff  the named steps

CI and pre-commit call this file too, so that a check cannot mean two things. It runs each step to
its end, shows the output of those that fail, prints a table of step, result and seconds, and exits
with 1 where a step failed. It needs what `pip install -e '.[dev]'` installs, and no network.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
PYTHON: Final = sys.executable
BIN: Final = Path(PYTHON).parent
LINES_SHOWN_MAX: Final = 80
SOURCES: Final = ("kernel", "models", "specs", "tests", "tools")

# In the order of cost, so that a slip shows early. `wheel` is a function: its result has a name
# that only the build knows.
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "ruff": (PYTHON, "-m", "ruff", "check", *SOURCES),
    "format": (PYTHON, "-m", "ruff", "format", "--check", *SOURCES),
    "tidy": (PYTHON, str(PROJECT / "tools" / "tidy.py")),
    "news": (PYTHON, "-m", "towncrier", "build", "--draft", "--version", "next"),
    "imports": (str(BIN / "lint-imports"), "--no-cache"),
    "mypy": (PYTHON, "-m", "mypy"),
    "pyright": (PYTHON, "-m", "pyright", "--pythonpath", PYTHON),
    "wheel": (),
    "tests": (PYTHON, "-m", "pytest"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one step ended; ``seconds`` is wall time."""

    step: str
    passed: bool
    seconds: float
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen steps, print the table, and return the exit status."""
    steps = _chosen_steps(arguments)
    results: list[Result] = []
    for number, step in enumerate(steps, start=1):
        _show_progress(f"[{number}/{len(steps)}] {step} ...")
        result = run_step(step)
        _show_progress("")
        results.append(result)
        if not result.passed:
            print(f"---- {step} ----\n{_shortened(result.output)}\n", flush=True)
    print(table(results), flush=True)
    return 0 if all(result.passed for result in results) else 1


def run_step(step: str) -> Result:
    """Run one step of `COMMANDS` and time it.

    The test suite writes straight to the terminal, since it reports its own progress.
    """
    start = time.monotonic()
    if step == "wheel":
        status, output = _check_wheel()
    else:
        status, output = _run(COMMANDS[step], streamed=step == "tests")
    seconds = time.monotonic() - start
    return Result(step=step, passed=status == 0, seconds=seconds, output=output)


def table(results: Sequence[Result]) -> str:
    """Format results as the lines ``step result seconds``, and a last line that sums them up."""
    lines = [f"{'step':<10}{'result':<10}{'seconds':>8}"]
    for result in results:
        word = "ok" if result.passed else "FAILED"
        lines.append(f"{result.step:<10}{word:<10}{result.seconds:>8.1f}")
    failed = [result.step for result in results if not result.passed]
    last = f"failed: {', '.join(failed)}" if failed else "every step passed"
    return "\n".join([*lines, last])


def _shortened(output: str) -> str:
    """Cut what a failed step printed to its first lines: the rest repeats them, or hides them."""
    lines = output.rstrip().splitlines()
    if len(lines) > LINES_SHOWN_MAX:
        left_out = len(lines) - LINES_SHOWN_MAX
        lines[LINES_SHOWN_MAX:] = [f"... {left_out} more lines; run the step by hand to see them"]
    return "\n".join(lines)


def _chosen_steps(arguments: Sequence[str] | None) -> list[str]:
    parser = argparse.ArgumentParser(prog="tools/check.py", description="Run the gate.")
    parser.add_argument("--no-tests", action="store_true", help="leave the test suite out")
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), help="run these steps only")
    chosen = parser.parse_args(arguments)
    steps: list[str] = chosen.only or list(COMMANDS)
    return [step for step in steps if not (chosen.no_tests and step == "tests")]


def _run(command: Sequence[str], *, streamed: bool = False) -> tuple[int, str]:
    """Run a command in the project; return its exit status and, unless streamed, its output."""
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    output = None if streamed else subprocess.PIPE
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=environment,
            stdout=output,
            stderr=None if streamed else subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed; run: {PYTHON} -m pip install -e '.[dev]'"
    text = done.stdout or ""
    if "No module named" in text:
        text += f"\nis the gate installed? run: {PYTHON} -m pip install -e '.[dev]'"
    return done.returncode, text


def _check_wheel() -> tuple[int, str]:
    """Build the wheel from the installed backend and check what it would put into site-packages."""
    with tempfile.TemporaryDirectory() as folder:
        build = ("pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
        status, output = _run((PYTHON, "-m", *build))
        if status == 0:
            status, output = _run((PYTHON, "-m", "check_wheel_contents", folder))
    return status, output


def _show_progress(text: str) -> None:
    """Keep one line of progress on a terminal; say nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
