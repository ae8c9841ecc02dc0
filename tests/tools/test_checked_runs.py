"""What is said where a run breaks or a file was cut: what, where, and how to see it again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepahead_specs.mutants import MUSEUM
from stepahead_tools.testing import run

HISTORY = """\
{"fact": "opened", "format": 1, "scheduler": "mine 1.0", "limits": {"num_blocks": 4, \
"block_size": 2, "max_concurrency": 2, "max_num_batched_tokens": 8, "max_tokens_per_row": 8, \
"max_model_len": 8, "lookahead": 1}}
{"fact": "submitted", "request": 0, "name": "a", "prompt": [11, 12], "max_tokens": 2}
{"fact": "drained"}
"""
BROKEN = """\
BROKEN at line 3 (everything had the time to end):
INV-15 (every request ends) at step 2: request 0 has not ended
"""


def test_a_broken_history_is_told_shortly_and_its_page_on_request(tmp_path: Path) -> None:
    """The rule, the line, the event and the commands; the long page is for whoever wants it."""
    path = tmp_path / "my history.jsonl"
    path.write_text(HISTORY, encoding="utf-8")
    waiver = "an idle device gets work=it may rest"
    done = run("check", str(path), "--waive", waiver)
    assert done.exit_code == 1
    assert done.stderr == f"stepahead: {path}:3: breaks INV-15\n"
    more = f"--waive '{waiver}'"
    assert done.stdout == (
        f"{BROKEN}\n"
        f"The lines up to there are enough: head -n 3 '{path}' > short.jsonl; "
        f"stepahead check short.jsonl {more}\n"
        f"What was checked, and what was not: stepahead check '{path}' {more} --page\n"
    )
    page = run("check", str(path), "--page")
    assert (page.exit_code, page.stderr) == (done.exit_code, done.stderr)
    assert page.stdout.startswith(f"Conformance of mine 1.0\n{BROKEN}\nSearched:\n")
    assert "Rules not checked:" in page.stdout


def test_a_checked_run_that_breaks_says_shortly_what_and_where(
    tiny_trace: Path, tmp_path: Path
) -> None:
    """Twenty blocks are one mistake; the journal ends with the event and is no whole run."""
    journal = tmp_path / "run.jsonl"
    arguments = ["replay", str(tiny_trace), "--device", "fast", "--loop", "overlap", "--check"]
    with MUSEUM["blocks-are-free-as-soon-as-a-request-ends"].alive():
        plain = run(*arguments)
        kept = run(*arguments, "--journal", str(journal))
        again = run("replay", str(journal))
    assert (plain.exit_code, kept.exit_code, again.exit_code) == (1, 1, 1)
    where, *rules, way_out = plain.stderr.splitlines()[-5:]
    number = where.removeprefix("stepahead: event ").partition(",")[0]
    assert where.endswith(" ns, breaks a rule")
    for rule in rules:
        assert rule.startswith("INV-3 (what a batch may touch has no other owner) at step ")
    assert re.search(r"; and \d+ more$", rules[-1])
    assert way_out == "add --journal FILE to keep the events up to there"
    assert kept.stderr.splitlines()[-1] == (
        f"{journal} has the events up to there; stepahead replay {journal}"
    )
    assert again.stdout.startswith(f"{number} events replayed: same commands, same digests.\n")
    assert again.stderr == (
        f"stepahead: run.jsonl is incomplete: it holds {number} events and no end mark; the run "
        "broke there, or the file was cut\n"
    )


@pytest.mark.parametrize("torn", [False, True])
def test_a_journal_that_was_cut_is_named(
    tiny_trace: Path,
    tmp_path: Path,
    torn: bool,  # noqa: FBT001
) -> None:
    """Its events agree, and yet it is no pass."""
    path = tmp_path / "run.jsonl"
    options = ["--device", "fast", "--limit", "3", "--journal", str(path)]
    assert run("replay", str(tiny_trace), *options).exit_code == 0
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1])[: -1 if torn else None])
    done = run("replay", str(path))
    assert done.exit_code == 1
    left_out = " The file ends in the middle of a line, which was left out." if torn else ""
    events = len(lines) - 2 - torn
    assert done.stdout.startswith(
        f"{events} events replayed: same commands, same digests.{left_out}\nchained digest  "
    )
    assert f"it holds {events} events and no end mark" in done.stderr
