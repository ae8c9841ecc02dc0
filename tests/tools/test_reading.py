"""What a command line means: the options that words stand for, help, and mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stepahead_tools.advise_options import FIXED, AdviseOptions
from stepahead_tools.command_line import read, spread_objectives
from stepahead_tools.commands import COMMANDS
from stepahead_tools.engine_options import LoopChoice, VersionChoice
from stepahead_tools.names import meant
from stepahead_tools.options import CompareOptions, ReplayOptions
from stepahead_tools.testing import run

#: Options that take no number.
GIVEN = {
    "enable_overlap_scheduling": (),
    "check": (),
    "unchecked": (),
    "print_config": (),
    "journal": ("run.jsonl",),
    "config": ("engine.toml",),
}

# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_not_given_is_the_default_of_its_declaration(name: str) -> None:
    """Those of every command."""
    needed: dict[str, dict[str, Any]] = {"check": {"history": Path("x")}}
    words = ["x"] if name in {"compare", "replay", "advise", "check"} else []
    given = needed.get(name, {"trace": "x"} if words else {})
    assert read([name, *words]) == (COMMANDS[name], COMMANDS[name].options()(**given))


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("--limit 20 --speed=0.5", {"limit": 20, "speed": 0.5}),
        ("--seed 1 --seed -2", {"seed": -2}),
        ("--unchecked --json -", {"unchecked": True, "json": Path("-")}),
        ("--prune", {"prune": True}),
        ("--prune --no-prune", {"prune": False}),
        ("--host-sampling", {"npu_sampling": False}),
        ("--experimental-enable-npu-sampling", {"npu_sampling": True}),
        ("--experimental-spec-config {}", {"experimental_speculative_config": "{}"}),
        ("--loop just-in-time", {"loop": LoopChoice.JUST_IN_TIME}),
        ("--product-version=2026.5.0b1", {"product_version": VersionChoice.V2026_5_B1}),
        ("--goodput ttft:1 tpot:2 --seed 3", {"goodput": ["ttft:1", "tpot:2"], "seed": 3}),
        ("--goodput ttft:1 --goodput=e2el:2", {"goodput": ["ttft:1", "e2el:2"]}),
    ],
)
def test_words_stand_for_options(words: str, chosen: dict[str, Any]) -> None:
    """The trace may stand before, behind or between them."""
    expected = ReplayOptions(trace="demo", **chosen)
    for place in (words.split(), ["demo"]), (["demo"], words.split()):
        _, options = read(["replay", *place[0], *place[1]])
        assert options == expected


def test_a_name_that_looks_like_a_flag_follows_two_dashes() -> None:
    """As everywhere."""
    _, options = read(["replay", "--seed", "3", "--", "--trace"])
    assert options == ReplayOptions(trace="--trace", seed=3)


def test_nothing_need_follow_two_dashes() -> None:
    """They say that no option does."""
    _, options = read(["replay", "demo", "--seed", "3", "--"])
    assert options == ReplayOptions(trace="demo", seed=3)


def test_names_of_mutants_may_stand_on_both_sides_of_an_option() -> None:
    """There may be any number of them."""
    _, options = read(["mutants", "a", "--seed", "3", "b"])
    assert (options.names, options.seed) == (["a", "b"], 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("replay", "the following arguments are required: TRACE"),
        ("replay demo more", "more is one word too many; usage: stepahead replay [OPTIONS] TRACE"),
        ("replay demo -", "- is one word too many; usage: stepahead replay [OPTIONS] TRACE"),
        (
            "replay x -- --limit",
            "--limit is one word too many; usage: stepahead replay [OPTIONS] TRACE",
        ),
        ("compatibility x", "x is one word too many; usage: stepahead compatibility [OPTIONS]"),
        ("replay demo --lim 3", "--lim is no option of replay; did you mean --limit?"),
        ("replay demo --loops=eager", "--loops=eager is no option of replay; did you mean --loop?"),
        ("replay demo -x", "-x is no option of replay; see stepahead replay --help"),
        ("replay demo --limit", "--limit expected one argument"),
        ("replay demo --limit 1.5", "--limit 1.5 is no whole number"),
        ("replay demo --speed --seed 3", "--speed expected one argument"),
        ("replay demo --speed fast", "--speed fast is no number"),
        ("replay demo --check=1", "--check ignored explicit argument '1'"),
        ("--foo", "unrecognized arguments: --foo"),
        ("foo", f"foo is no command; give one of {', '.join(COMMANDS)}"),
        (
            "replya demo",
            f"replya is no command; give one of {', '.join(COMMANDS)}; did you mean replay?",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence(words: str, sentence: str) -> None:
    """Exit code 2, and nothing on standard output."""
    done = run(*words.split())
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"stepahead: {sentence}\n")


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
    assert "stepahead_models.simulation" in loaded
    assert not loaded & {"hypothesis", "stepahead_specs.invariants", "transitions", "numpy.ma"}


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options"), [("compare", CompareOptions), ("replay", ReplayOptions)]
)
def test_help_explains_every_option_and_the_units_of_time(command: str, options: type) -> None:
    """Each field of the options is a parameter with a sentence, whole in 80 columns."""
    done = run(command, "--help")
    words = " ".join(done.stdout.split())
    for field in fields(options):
        if field.name != "trace":
            assert f"--{field.name.replace('_', '-')}" in words
    assert "Arrival times in a trace are ms" in words
    for group in ("Arguments", "Scheduling", "KV cache tiers", "Output"):
        assert f"\n{group}:\n" in done.stdout


def test_the_help_of_advise_lists_what_it_takes() -> None:
    """An option that a command refuses is not offered by it; all others are."""
    done = run("advise", "--help")
    listed = set(re.findall(r"--[a-z0-9-]+", done.stdout.partition("Arguments:")[2]))
    for field in fields(AdviseOptions):
        flag = f"--{field.name.replace('_', '-')}"
        if field.name != "trace":
            assert (flag in listed) == (field.name not in FIXED), flag
    for name in FIXED:
        flag = f"--{name.replace('_', '-')}"
        refused = run("advise", "demo", flag, *GIVEN.get(name, ("3",)))
        assert refused.exit_code == 2
        assert f"takes no {flag};" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("replay", "demo", "--loop", "jit"),
            (
                "--loop jit is no choice; give one of eager, overlap, just-in-time; did you mean "
                "just-in-time?"
            ),
        ),
        (
            ("replay", "demo", "--loop", "lazy"),
            "--loop lazy is no choice; give one of eager, overlap, just-in-time",
        ),
        (
            ("compare", "demo", "--loops", "eager,JIT"),
            (
                "--loops names 'jit', which is no loop; give some of eager, overlap, just-in-time, "
                "separated by commas; did you mean just-in-time?"
            ),
        ),
        (
            ("advise", "demo", "--vary", "clients"),
            "--vary clients is no choice; give one of load, concurrency",
        ),
    ],
)
def test_a_name_that_is_none_is_refused_with_those_there_are(
    arguments: tuple[str, ...], sentence: str
) -> None:
    """And with the one that was meant, where that can be told."""
    done = run(*arguments)
    assert (done.exit_code, done.stderr) == (2, f"stepahead: {sentence}\n")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("jit", "just-in-time"),
        ("just", "just-in-time"),
        ("Over", "overlap"),
        ("overlp", "overlap"),
        ("e", "eager"),
        ("o", None),
        ("", None),
        ("j", "just-in-time"),
        ("x", None),
    ],
)
def test_a_name_is_guessed_from_its_beginning_its_letters_or_its_initials(
    word: str, found: str | None
) -> None:
    """One that could begin two of them is not guessed at."""
    assert meant(word, ("eager", "overlap", "other", "just-in-time")) == found


def test_the_list_of_commands_says_whole_sentences() -> None:
    """A sentence that ends in dots tells a newcomer nothing."""
    done = run("--help")
    listed = done.stdout.partition("Commands:\n")[2].splitlines()
    assert len(listed) == len(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_objectives_may_follow_one_option() -> None:
    """``--goodput ttft:1 tpot:2`` is what serving benchmarks take; a trace may follow it."""
    given = ["compare", "--goodput", "ttft:1", "tpot:2", "demo", "--seed", "1"]
    expected = ["compare", "--goodput", "ttft:1", "--goodput", "tpot:2", "demo", "--seed", "1"]
    assert spread_objectives(given) == expected


def test_help_is_wrapped_to_the_terminal_by_paragraphs() -> None:
    """Not as in the source; no name is cut at a hyphen."""
    done = run("compare", "--help", columns=60)
    paragraph = "\nReplay a trace under several loops and compare them.\n\nPrints one table with"
    assert paragraph in done.stdout
    assert not re.search(r"--[a-z0-9-]+-\n", done.stdout)


def test_help_comes_without_being_asked_for_where_nothing_is_asked_for() -> None:
    """On standard error, since nothing was done."""
    done = run()
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == run("--help").stdout
