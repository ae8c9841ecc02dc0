"""`stepahead explore` as a user meets it."""

from pathlib import Path

import pytest

from stepahead.requests import Stay
from stepahead.state import State
from stepahead_tools.testing import run


def test_a_complete_exploration_says_so() -> None:
    """Bounds, sizes, and what holds within them; exit code 0."""
    done = run("explore", "--requests", "1", "--blocks", "2", "--tokens", "2", "--probe")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "1 requests; 2 blocks; 2 tokens; lookahead 1; prompts 1"
    assert lines[1].startswith("states 22, steps 48, edges 39, depth 7, ")
    assert lines[2] == (
        "complete: all invariants hold on every step, every state drains, and CPU and NPU alone "
        "bring every run to its end"
    )


def test_an_unfinished_exploration_is_no_success() -> None:
    """Exit code 1, and what to do."""
    done = run("explore", "--states-max", "10")
    assert done.exit_code == 1
    assert "not complete: stopped at 15 states, depth 3" in done.stdout
    assert done.stderr == (
        "stepahead: the search is not complete, which is no pass; lower the bounds, or raise "
        "--states-max or --seconds-max\n"
    )


def test_a_violation_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 1, the shortest run in words, and as a journal that `replay` takes."""
    vacate = State.vacate

    def no_fence(state: State, stay: Stay, _fence: int) -> None:
        vacate(state, stay, 0)

    monkeypatch.setattr(State, "vacate", no_fence)
    path = tmp_path / "run.jsonl"
    done = run("explore", "--journal", str(path))
    assert done.exit_code == 1
    assert "violated after 3 events:" in done.stdout
    assert done.stderr == "stepahead: the kernel violates what is printed above\n"
    replayed = run("replay", str(path))
    assert replayed.exit_code == 0, replayed.stderr
    assert "3 events replayed" in replayed.stdout


def test_bounds_without_anything_in_them_are_refused() -> None:
    """Exit code 2, which option, and what it may be."""
    done = run("explore", "--blocks", "0")
    assert done.exit_code == 2
    assert done.stderr == "stepahead: --blocks is 0; give at least 1\n"


def test_a_list_of_something_else_than_numbers_is_refused() -> None:
    """Exit code 2, which option, and what it may be."""
    done = run("explore", "--prompts", "1,two")
    assert done.exit_code == 2
    assert done.stderr == (
        "stepahead: --prompts is '1,two'; give whole numbers, separated by commas\n"
    )


def test_every_bound_can_be_set_from_the_command_line() -> None:
    """Options reach the exploration under their own names."""
    done = run(
        "explore",
        *("--requests", "1", "--blocks", "3", "--tokens", "2", "--prompts", "2,1", "--rows", "1"),
        *("--priorities", "1,0", "--lookahead", "2", "--block-size", "2", "--budget", "4"),
        *("--row-tokens", "1", "--prefill-first", "--caching", "--prune"),
        *("--refusals", "--failures", "--pauses", "--seconds-max", "60"),
    )
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "1 requests; 3 blocks; 2 tokens; lookahead 2; prompts 2; priorities (1, 0); block size 2; "
        "rows 1; budget 4; row tokens 1; prefill first; caching; prune; refusals; failures; pauses"
    )


def test_drafts_are_explored_without_lookahead_only() -> None:
    """Every number of accepted drafts, or exit code 2 and the way out."""
    done = run("explore", "--drafts", "2", "--lookahead", "0")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("; drafts 2")
    done = run("explore", "--drafts", "2")
    assert done.exit_code == 2
    assert done.stderr == (
        "stepahead: num_speculative_tokens=2 is not usable; give 0 with lookahead above 0, or "
        "lookahead=0 to speculate\n"
    )
