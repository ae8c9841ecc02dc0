"""What becomes of an error: one sentence and an exit code, or a traceback of ours."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stepahead_tools.failures import NOT_USABLE, failure

PROJECT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_numbers_beyond_the_clock_are_no_bug_of_ours() -> None:
    """Each number may be in range and their product is not."""
    assert failure(OverflowError("int too big to convert")) == (
        (
            "stepahead: a time or a size went beyond 64 bits; lower what was asked for (int too "
            "big to convert)"
        ),
        NOT_USABLE,
    )


def test_an_error_that_nobody_foresaw_keeps_its_traceback() -> None:
    """It is a bug of ours, and the traceback is what helps."""
    assert failure(ZeroDivisionError()) is None


def brought() -> dict[str, set[str]]:
    """Return the extras that bring each module, of those for users."""
    extras: dict[str, set[str]] = {}
    for extra in ("cli", "check"):
        for requirement in DECLARED["optional-dependencies"][extra]:
            extras.setdefault(requirement.partition(">=")[0], set()).add(extra)
    return extras


@pytest.mark.parametrize(("name", "extras"), brought().items())
def test_each_module_of_an_extra_is_told_with_its_extra(name: str, extras: set[str]) -> None:
    """A traceback does not say what to install."""
    told = failure(ModuleNotFoundError(f"No module named {name!r}", name=f"{name}.core"))
    begin = f"stepahead: {name} is not installed; install stepahead"
    assert told in {(f"{begin}[{extra}], whose extra brings it", NOT_USABLE) for extra in extras}


def test_a_missing_module_that_no_extra_brings_keeps_its_traceback() -> None:
    """A module of ours that is missing is a bug of ours."""
    assert failure(ModuleNotFoundError("No module named 'x'", name="stepahead_tools.x")) is None


def test_the_command_says_what_to_install_where_its_extra_is_missing() -> None:
    """`pip install stepahead` brings the command without what it needs."""
    module, _, function = DECLARED["scripts"]["stepahead"].partition(":")
    program = f"import sys; sys.modules['msgspec'] = None; import {module} as m; m.{function}()"
    done = subprocess.run(
        [sys.executable, "-c", program, "replay", "demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == (
        "stepahead: msgspec is not installed; install stepahead[cli], whose extra brings it\n"
    )
    assert done.returncode == NOT_USABLE
