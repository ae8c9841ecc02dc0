"""A history is read strictly: a wrong line is a wrong file, a wrong fact is a wrong engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepahead_specs.conformance.checker import check_history
from stepahead_specs.conformance.history import HistoryError

OPENED: dict[str, Any] = {
    "fact": "opened",
    "format": 1,
    "scheduler": "mine",
    "limits": {
        "num_blocks": 4,
        "block_size": 2,
        "max_concurrency": 2,
        "max_num_batched_tokens": 8,
        "max_tokens_per_row": 8,
        "max_model_len": 8,
        "lookahead": 1,
    },
}
SUBMITTED: dict[str, Any] = {
    "fact": "submitted",
    "request": 0,
    "name": "a",
    "prompt": [11, 12],
    "max_tokens": 2,
}
ROW: dict[str, Any] = {"request": 0, "position": 0, "count": 2, "samples": True, "blocks": [0]}
GOOD: list[dict[str, Any]] = [
    SUBMITTED,
    {"fact": "prepared", "batch": 1, "rows": [ROW]},
    {"fact": "dispatched", "batch": 1, "inputs": [[11, 12]]},
    {"fact": "prepared", "batch": 2, "rows": [ROW | {"position": 2, "count": 1, "blocks": [0, 1]}]},
    {"fact": "completed", "batch": 1, "tokens": [7], "emitted": [[0, 7]]},
    {"fact": "dispatched", "batch": 2, "inputs": [[7]]},
    {
        "fact": "completed",
        "batch": 2,
        "tokens": [8],
        "emitted": [[0, 8]],
        "finished": [[0, "length"]],
    },
    {"fact": "drained"},
]


def written(tmp_path: Path, *lines: object) -> Path:
    """Write a history of these lines."""
    path = tmp_path / "h.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def changed(line: int, **change: Any) -> list[dict[str, Any]]:  # noqa: ANN401 # any field
    """Return the good history up to ``line``, whose fields are changed."""
    facts: list[dict[str, Any]] = [dict(fact) for fact in GOOD[: line - 1]]
    facts[line - 2] |= change
    return facts


def test_a_history_in_which_nothing_is_wrong_passes(tmp_path: Path) -> None:
    """Two batches with one ahead, written by hand."""
    checked = check_history(written(tmp_path, OPENED, *GOOD))
    assert checked.violations == ()
    assert checked.line is None
    assert dict(checked.facts) == {
        "submitted": 1,
        "prepared": 2,
        "dispatched": 2,
        "completed": 2,
        "drained": 1,
    }


WRONG_FACTS: list[tuple[int, dict[str, Any], str]] = [
    (
        3,
        {"rows": [ROW | {"blocks": []}]},
        "the row of request 0 in batch 1 needs 1 block and has 0 [INV-21]",
    ),
    (
        3,
        {"rows": [ROW | {"blocks": [4]}]},
        "the row of request 0 in batch 1 names block 4, and there is none [INV-2]",
    ),
    (
        3,
        {"state": {"free": [1, 2, 3], "held": {"0": [-1]}}},
        "request 0 holds block -1, and there is none",
    ),
    (
        3,
        {"state": {"free": [1, 2, 3, 4], "held": {"0": [0]}}},
        "block 4 may be handed out, and there is none",
    ),
    (
        4,
        {"inputs": [[11, 13]]},
        (
            "row 0 of batch 1 (request 0) is given 13 for position 1, the prompt has 12 there "
            "[INV-7]"
        ),
    ),
    (
        4,
        {"inputs": [[11]]},
        "row 0 of batch 1 (request 0) has 2 positions and 1 input [INV-7]",
    ),
    (4, {"inputs": []}, "batch 1 has 1 row and 0 inputs [INV-7]"),
    (5, {"batch": 1}, "batch 1 is prepared a second time [INV-25]"),
    (6, {"batch": 2}, "batch 2 comes back and was prepared, not dispatched [INV-25]"),
    (6, {"batch": 9}, "batch 9 comes back and was never prepared [INV-25]"),
    (6, {"tokens": [None]}, "batch 1 has tokens (None,) for other rows [INV-26]"),
    (6, {"emitted": []}, "output 0 of request 0 from batch 1 is lost"),
    (
        6,
        {"emitted": [[0, 9]]},
        "batch 1 emits 9 as output 0 of request 0, batch 1 sampled 7",
    ),
    (
        7,
        {"inputs": [[8]]},
        "row 0 of batch 2 (request 0) is given 8 for position 2, batch 1 sampled 7",
    ),
    (
        8,
        {"finished": []},
        "after output 1 from batch 2 request 0 is live, it should be ended by length",
    ),
]


@pytest.mark.parametrize(("line", "change", "sentence"), WRONG_FACTS)
def test_a_wrong_fact_is_named_with_its_line(
    tmp_path: Path, line: int, change: dict[str, Any], sentence: str
) -> None:
    """The first line that breaks a rule is found, and the sentence says what is wrong with it."""
    checked = check_history(written(tmp_path, OPENED, *changed(line, **change)))
    assert checked.line == line
    assert sentence in {violation.sentence for violation in checked.violations}


def test_a_request_without_an_end_is_found_where_everything_had_time(tmp_path: Path) -> None:
    """Without a drained line nothing is said about ends; with one, every request must have one."""
    assert check_history(written(tmp_path, OPENED, SUBMITTED)).violations == ()
    checked = check_history(written(tmp_path, OPENED, SUBMITTED, {"fact": "drained"}))
    assert [violation.sentence for violation in checked.violations] == ["request 0 has not ended"]


def test_a_waived_rule_is_not_checked_and_its_reason_is_printed(tmp_path: Path) -> None:
    """A waiver is no pass: the page lists it."""
    path = written(tmp_path, OPENED, SUBMITTED, {"fact": "drained"})
    checked = check_history(path, {"every_request_ends": "it was killed"})
    assert checked.violations == ()
    assert "INV-15 every request ends: waived by the adapter: it was killed" in checked.page()


NO_HISTORIES: list[tuple[list[dict[str, Any]], str]] = [
    (
        [SUBMITTED],
        "1: the first line must open a history: Invalid value 'submitted' - at `$.fact`",
    ),
    ([], "1: the first line must open a history: Input data was truncated"),
    (
        [OPENED | {"format": 2}],
        "1: history format 2 is not known; write format 1",
    ),
    (
        [OPENED, SUBMITTED | {"promt": []}],
        "2: not a fact of a history: Object contains unknown field `promt`",
    ),
    (
        [OPENED, SUBMITTED | {"prompt": ["a"]}],
        "2: not a fact of a history: Expected `int`, got `str` - at `$.prompt[0]`",
    ),
    (
        [OPENED, {"fact": "slept"}],
        "2: not a fact of a history: Invalid value 'slept' - at `$.fact`",
    ),
    (
        [OPENED, *GOOD[:4], GOOD[4], {"fact": "dispatched", "batch": 2}],
        (
            "7: it is told which tokens go into the device (`inputs` of a dispatch) in one "
            "place and not in another; tell it always or never"
        ),
    ),
]


@pytest.mark.parametrize(("lines", "sentence"), NO_HISTORIES)
def test_a_file_that_is_no_history_is_refused(
    tmp_path: Path, lines: list[object], sentence: str
) -> None:
    """The sentence names file, line and field; nothing is said about the engine."""
    path = written(tmp_path, *lines)
    with pytest.raises(HistoryError) as caught:
        check_history(path)
    assert str(caught.value) == f"{path}:{sentence}"


SPECULATING: dict[str, Any] = OPENED | {
    "limits": OPENED["limits"] | {"lookahead": 0, "num_speculative_tokens": 2}
}
GUESSED: list[dict[str, Any]] = [
    SUBMITTED | {"max_tokens": 6},
    {"fact": "prepared", "batch": 1, "rows": [ROW]},
    {"fact": "dispatched", "batch": 1, "inputs": [[11, 12]]},
    {"fact": "completed", "batch": 1, "tokens": [7], "emitted": [[0, 7]]},
    {
        "fact": "prepared",
        "batch": 2,
        "rows": [ROW | {"position": 2, "count": 3, "blocks": [0, 1, 2], "drafts": 2}],
    },
    {"fact": "dispatched", "batch": 2, "inputs": [[7]]},
    {"fact": "completed", "batch": 2, "tokens": [[8, 9]], "emitted": [[0, 8], [0, 9]]},
    {
        "fact": "prepared",
        "batch": 3,
        "rows": [ROW | {"position": 4, "count": 3, "blocks": [0, 1, 3, 2], "drafts": 2}],
    },
    {"fact": "dispatched", "batch": 3, "inputs": [[9]]},
    {
        "fact": "completed",
        "batch": 3,
        "tokens": [[1, 2, 3]],
        "emitted": [[0, 1], [0, 2], [0, 3]],
        "finished": [[0, "length"]],
    },
    {"fact": "drained"},
]


def test_a_history_with_drafts_passes(tmp_path: Path) -> None:
    """One of two drafts is right, then both; the block of the rejected one is another's again."""
    assert check_history(written(tmp_path, SPECULATING, *GUESSED)).violations == ()


@pytest.mark.parametrize(
    ("line", "change", "text"),
    [
        (8, {"tokens": [[8, 9, 1, 2]]}, "batch 2 has tokens ((8, 9, 1, 2),) for other drafts"),
        (
            8,
            {
                "state": {
                    "free": [3],
                    "held": {"0": [0, 1, 2]},
                    "counts": {"0": {"known": 5, "scheduled": 5, "settled": 5}},
                }
            },
            "request 0 has 5 settled positions, and its 5 known tokens can have 4",
        ),
        (8, {"emitted": [[0, 8]]}, "output 2 of request 0 from batch 2 is lost"),
        (
            9,
            {"rows": [ROW | {"position": 5, "count": 1, "blocks": [0, 1, 2]}]},
            "the row of request 0 in batch 3 starts at 5, the one before ended at 4",
        ),
        (
            9,
            {"rows": [ROW | {"position": 4, "count": 4, "blocks": [0, 1, 2, 3], "drafts": 3}]},
            (
                "the row of request 0 in batch 3 reads 1 known tokens from 4 on and has 3 drafts, "
                "2 may be"
            ),
        ),
    ],
)
def test_a_wrong_fact_about_drafts_is_named(
    tmp_path: Path, line: int, change: dict[str, Any], text: str
) -> None:
    """A scheduler that goes on behind rejected positions, or loses a token, is found out."""
    facts = [dict(fact) for fact in GUESSED[: line - 1]]
    facts[line - 2] |= change
    checked = check_history(written(tmp_path, SPECULATING, *facts))
    assert checked.line == line
    assert any(text in violation.sentence for violation in checked.violations)
