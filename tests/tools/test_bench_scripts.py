"""The scripts that print tables end in one sentence where they lack what they need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import hit_rate, loops_table, tiers_table
from bench.scripts import finish
from stepahead_models.traces import bundled_trace
from stepahead_tools.version import described

OURS = f"traces in {bundled_trace().parent}"


@pytest.mark.parametrize(
    ("main", "words", "sentence"),
    [
        *(
            (
                main,
                words,
                f"none.jsonl: no such file or directory; check the path, or take one of the {OURS}",
            )
            for main, words in (
                (hit_rate.main, ["none.jsonl"]),
                (tiers_table.main, ["none.jsonl"]),
                (bench.main, ["replay", "--trace", "none.jsonl"]),
            )
        ),
        (
            hit_rate.main,
            [str(bundled_trace()), "--block-size", "100"],
            (
                "stepahead: --block-size 100 is not usable: trace 'mooncake_conversation_head' has "
                "hash ids for 512 tokens, which a block size of 100 cannot share; use a divisor or "
                "a multiple of 512"
            ),
        ),
        (
            hit_rate.main,
            ["none.jsonl", "--requests", "0"],
            "error: argument --requests: 0 is out of range; give 1 or more",
        ),
        (
            tiers_table.main,
            ["none.jsonl", "--load", "0"],
            "error: argument --load: 0 is out of range; give a number above 0",
        ),
        (
            tiers_table.main,
            [str(bundled_trace()), "--requests", "1"],
            (
                "stepahead: the first 1 requests of trace 'mooncake_conversation_head' arrive at "
                "once, so there are no times to scale; take more with --requests"
            ),
        ),
        (
            loops_table.main,
            ["none"],
            f"stepahead: none is no folder; give one with {', '.join(loops_table.TRACES.values())}",
        ),
        (
            loops_table.main,
            ["--write"],
            (
                "stepahead: --write needs all workloads; missing: Azure code "
                "(azure_llm_2023_code.csv.zst), cancel mix (own_cancel_mix.jsonl.zst)"
            ),
        ),
        (
            bench.main,
            ["lives", "--compiled", sys.executable],
            (
                f"stepahead: --compiled {sys.executable} has {described()}; `make compiled` makes "
                "one that has the compiled build"
            ),
        ),
    ],
)
def test_a_script_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main: Callable[[], None],
    words: list[str],
    sentence: str,
) -> None:
    """What, where and the way out, with the exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["script", *words])
    with pytest.raises(SystemExit) as ended:
        finish(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(sentence)


def _mistaken() -> None:
    raise ZeroDivisionError


def test_a_mistake_of_a_script_keeps_its_traceback() -> None:
    """It is what helps whoever mends it."""
    with pytest.raises(ZeroDivisionError):
        finish(_mistaken)


def test_the_tables_of_the_loops_need_no_folder_for_what_ships(tmp_path: Path) -> None:
    """Three of the five workloads; a file in the folder goes before the one of the package."""
    assert set(loops_table.found(None)) == {
        "Mooncake conversation",
        "Azure conversation",
        "ServeGen",
    }
    whole = tmp_path / loops_table.TRACES["ServeGen"]
    whole.touch()
    paths = loops_table.found(tmp_path)
    assert paths["ServeGen"] == whole
    assert all(path.exists() for path in paths.values())
    assert {row["trace"] for row in loops_table.keys(paths)} == set(paths)
