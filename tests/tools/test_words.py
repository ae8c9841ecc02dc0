"""Words that are read without typer mean what they mean to typer, and the rest is left to it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stepahead_tools import app as typed
from stepahead_tools.commands import COMMANDS, Command
from stepahead_tools.options import ReplayOptions
from stepahead_tools.words import UnusualWords, read_words

FLAGS = (
    "--limit", "--speed", "--seed", "--unchecked", "--prune", "--no-prune", "--loop", "--json",
    "--goodput", "--device", "--late-share", "--npu-sampling", "--host-sampling", "--order",
    "--experimental-enable-npu-sampling", "--log-format", "--l3-enabled", "--no-l3-enabled",
)  # fmt: skip
VALUES = (
    "demo", "3", "0", "-1", "2.5", "1e3", "1_0", " 7", "", "eager", "just-in-time", "Eager", "json",
    "-", "--", "x.json", "ttft:3", "true", "inf", "--help", "--trace", "priority", "٣",
)  # fmt: skip


def told_by_typer(name: str, words: list[str]) -> Any:  # noqa: ANN401 # the options of the command
    """Return the options that typer makes of the words, or None where it refuses them."""
    chosen: list[Any] = []

    def take(_command: Command, options: Any) -> int:  # noqa: ANN401 # as above
        chosen.append(options)
        return 0

    with patch.object(typed, "carry_out", take):
        CliRunner().invoke(typed.app, [name, *words])
    return chosen[0] if chosen else None


@given(
    words=st.lists(
        st.one_of(
            st.sampled_from(FLAGS + VALUES),
            st.tuples(st.sampled_from(FLAGS), st.sampled_from(VALUES)).map("=".join),
        ),
        max_size=6,
    )
)
def test_what_is_read_without_typer_is_what_typer_reads(words: list[str]) -> None:
    """Whatever the words: either both agree, or only typer is asked."""
    try:
        options = read_words(ReplayOptions, ["demo", *words])
    except UnusualWords:
        return
    assert options == told_by_typer("replay", ["demo", *words])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_without_options_is_read_alike(name: str) -> None:
    """Defaults are those of the declaration, to both."""
    words = ["file"] if name in {"compare", "replay", "advise", "check"} else []
    options = read_words(COMMANDS[name].options(), words)
    told = told_by_typer(name, words)
    assert type(options) is type(told)
    for field in fields(told):
        assert getattr(options, field.name) == getattr(told, field.name), field.name


def test_the_words_of_a_usual_replay_are_read() -> None:
    """Flags, values of each type, and a list."""
    words = "demo --limit 20 --speed=0.5 --unchecked --no-prune --json - --loop overlap"
    options = read_words(ReplayOptions, [*words.split(), "--goodput", "a:1", "--goodput", "b:2"])
    assert (options.trace, options.limit, options.speed) == ("demo", 20, 0.5)
    assert (options.unchecked, options.prune, options.json) == (True, False, Path("-"))
    assert (options.loop, options.goodput) == ("overlap", ["a:1", "b:2"])


@pytest.mark.parametrize(
    "words",
    [
        "", "demo --help", "demo more", "demo --limit", "demo --limit x", "demo --limit -3",
        "demo --limit 1 --limit 2", "demo --unchecked=1", "demo --loop jit", "demo --flag",
    ],
)  # fmt: skip
def test_what_may_mean_anything_is_left_to_typer(words: str) -> None:
    """It explains what is wrong, and with what is meant."""
    with pytest.raises(UnusualWords):
        read_words(ReplayOptions, words.split())


def test_a_replay_comes_without_what_it_does_not_need(tiny_trace: Path) -> None:
    """Each of these takes as long to import as the kernel, or half as long."""
    program = (
        "import sys\n"
        "from stepahead_tools.entry import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*{name.partition('.')[0] for name in sys.modules}, *sys.modules)\n"
    )
    arguments = ["replay", str(tiny_trace), "--device", "fast", "--json", "-", "--limit", "5"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    unneeded = {
        "typer",
        "pydantic",
        "rich",
        "structlog",
        "hypothesis",
        "stepahead_specs.invariants",
    }
    assert "stepahead_models.simulation" in loaded
    assert not loaded & (unneeded | {"transitions", "numpy.ma", "asyncio"})
