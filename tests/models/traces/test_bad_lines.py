"""Lines that are no requests: where the message points, what it says, what skipping does."""

from pathlib import Path

import pytest

from stepahead_models.traces import BadLine, TraceError, UnusableTrace, read_trace

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'
TOKENS = "a whole number from 1 to 2147483647"
MS = "a number of milliseconds, at least 0 and below 2**62 ns"
IDS = "a list of whole numbers from 0 to 9223372036854775807"
BOTH = "at most one of cancel_after_ms and cancel_after_tokens"


def row(**changes: str | None) -> str:
    """A good line of our own format with some fields set to raw JSON, or left out (None)."""
    fields: dict[str, str | None] = {
        "timestamp": "1",
        "input_length": "600",
        "output_length": "5",
        **changes,
    }
    body = ", ".join(f'"{name}": {value}' for name, value in fields.items() if value is not None)
    return f"{{{body}}}"


JSON_CASES = [
    ("{broken", "(line)", "one JSON object", "{broken"),
    ("[1, 2]", "(line)", "one JSON object", "[1, 2]"),
    ('{"timestamp": NaN}', "(line)", "one JSON object", '{"timestamp": NaN}'),
    (row(output_length=None), "output_length", TOKENS, "no such field"),
    (row(input_length="0"), "input_length", TOKENS, "0"),
    (row(input_length="-3"), "input_length", TOKENS, "-3"),
    (row(output_length="2147483648"), "output_length", TOKENS, "2147483648"),
    (row(output_length="5.0"), "output_length", TOKENS, "5.0"),
    (row(output_length='"5"'), "output_length", TOKENS, '"5"'),
    (row(output_length="true"), "output_length", TOKENS, "true"),
    (row(timestamp="-0.5"), "timestamp", MS, "-0.5"),
    (row(timestamp="1e999"), "timestamp", MS, "1e999"),
    (row(timestamp="1e300"), "timestamp", MS, "1e+300"),
    (row(timestamp='"now"'), "timestamp", MS, '"now"'),
    (row(hash_ids="[1, -2]"), "hash_ids", IDS, "[1, -2]"),
    (row(hash_ids="[1, 9223372036854775808]"), "hash_ids", IDS, "[1, 9223372036854775808]"),
    (
        row(hash_ids="[1, 2, 3]"),
        "hash_ids",
        "2 ids, one for each 512 of 600 prompt tokens",
        "3 ids",
    ),
    (
        row(input_length="1200", hash_ids="[1]"),
        "hash_ids",
        "3 ids, one for each 512 of 1200 prompt tokens",
        "1 ids",
    ),
    (
        row(hash_block_size="256", hash_ids="[1, 2]"),
        "hash_block_size",
        "512 as on the lines before",
        "256",
    ),
    (row(max_tokens="4"), "output_length", "at most max_tokens (4)", "5"),
    (row(max_tokens="0"), "max_tokens", TOKENS, "0"),
    (row(request_id='""'), "request_id", "a text of at least one character", '""'),
    (
        row(request_id='"r0"'),
        "request_id",
        "an id that no earlier line uses",
        "'r0', used on line 1",
    ),
    (row(cancel_after_ms="-1"), "cancel_after_ms", MS, "-1"),
    (row(cancel_after_ms="1e300"), "cancel_after_ms", MS, "1e+300"),
    (row(cancel_after_tokens="0"), "cancel_after_tokens", TOKENS, "0"),
    (
        row(cancel_after_ms="1.5", cancel_after_tokens="2"),
        "cancel_after_tokens",
        BOTH,
        "both (1.5 and 2)",
    ),
    (
        row(priority="0.5"),
        "priority",
        "a whole number from -2147483647 to 2147483647",
        "0.5",
    ),
    (row(timestamp='"' + "x" * 99 + '"'), "timestamp", MS, '"' + "x" * 56 + "..."),
]
SECONDS = "a number of seconds, at least 0 and below 2**62 ns"
TIME = "a UTC time such as 2023-11-16 18:17:03.9799600, from 1970 on"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.98,1,1\n\n"
BURST = "Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,1,1\n\n"
CSV_CASES = [
    (AZURE, "2023-11-16 18:17:03", "(line)", "3 cells", "1: 2023-11-16 18:17:03"),
    (AZURE, "2023-11-16 25:17:03,1,1", "TIMESTAMP", TIME, "2023-11-16 25:17:03"),
    (AZURE, "2023-02-30 18:17:03,1,1", "TIMESTAMP", TIME, "2023-02-30 18:17:03"),
    (AZURE, "1969-12-31 23:59:59,1,1", "TIMESTAMP", TIME, "1969-12-31 23:59:59"),
    (AZURE, "1700000000,1,1", "TIMESTAMP", TIME, "1700000000"),
    (AZURE, "2023-11-16 18:17:04,0,1", "ContextTokens", TOKENS, "0"),
    (AZURE, "2023-11-16 18:17:04,1,-1", "GeneratedTokens", TOKENS, "-1"),
    (AZURE, "2023-11-16 18:17:04,1,", "GeneratedTokens", TOKENS, "nothing"),
    (BURST, "nan,GPT-4,1,1", "Timestamp", SECONDS, "nan"),
    (BURST, "inf,GPT-4,1,1", "Timestamp", SECONDS, "inf"),
    (BURST, "-1,GPT-4,1,1", "Timestamp", SECONDS, "-1"),
    (BURST, "1e10,GPT-4,1,1", "Timestamp", SECONDS, "1e10"),
    (BURST, "x,GPT-4,1,1", "Timestamp", SECONDS, "x"),
    (BURST, "6,GPT-4,1_0,1", "Request tokens", TOKENS, "1_0"),
    (BURST, "6,GPT-4,612,0", "Response tokens", TOKENS, "0"),
    (BURST, '6,"GPT-4,1,1', "(line)", "4 cells", "2: 6,GPT-4,1,1"),
    (BURST, "6,GPT-4,\u0663,1", "Request tokens", TOKENS, "\u0663"),
]


def caught_at(path: Path, content: str | bytes) -> TraceError:
    """Read that content and hand back the error."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return caught.value


@pytest.mark.parametrize(("line", "field", "expected", "found"), JSON_CASES)
def test_bad_json_line_is_located_and_explained(
    line: str, field: str, expected: str, found: str, tmp_path: Path
) -> None:
    """File, line (blank ones count), field, expectation, finding and the way out."""
    path = tmp_path / "t.jsonl"
    error = caught_at(path, f"{GOOD}\n\n{line}\n")
    assert str(error) == (
        f"{path}, line 3, field {field}: expected {expected}, found {found}; "
        "correct the line, or leave it out with skip_bad_lines (--skip-bad-lines)"
    )
    assert (error.file, error.line, error.field) == (str(path), 3, field)
    assert (error.expected, error.found) == (expected, found)


@pytest.mark.parametrize(("head", "line", "field", "expected", "found"), CSV_CASES)
def test_bad_csv_line_is_located_and_explained(  # noqa: PLR0913, PLR0917 - one row of the table
    head: str, line: str, field: str, expected: str, found: str, tmp_path: Path
) -> None:
    """The header and blank lines count."""
    path = tmp_path / "t.csv"
    error = caught_at(path, f"{head}{line}\n")
    assert str(error) == (
        f"{path}, line 4, field {field}: expected {expected}, found {found}; "
        "correct the line, or leave it out with skip_bad_lines (--skip-bad-lines)"
    )


@pytest.mark.parametrize(
    "lines",
    [
        f"{row()} {row()}",
        row().replace(",", ",\n", 1),
        f"{row()} {row()}".replace(",", ",\n", 1),
    ],
)
def test_a_row_is_a_line_and_a_line_is_a_row(tmp_path: Path, lines: str) -> None:
    """Not two on one, nor one on two, nor both, which makes as many rows as lines."""
    error = caught_at(tmp_path / "t", f"{GOOD}\n{lines}\n")
    assert (error.line, error.field, error.expected) == (2, "(line)", "one JSON object")


def test_bailian_times_are_asked_for_in_seconds(tmp_path: Path) -> None:
    """The unit in the message is that of the format."""
    bailian = row(chat_id="1", parent_chat_id="-1")
    error = caught_at(tmp_path / "t", f"{bailian}\n{bailian.replace('1', '-1', 1)}\n")
    assert (error.line, error.field, error.expected) == (2, "timestamp", SECONDS)


def test_bytes_that_are_no_text_are_shown_escaped(tmp_path: Path) -> None:
    """A damaged line is reported like any other bad line, in both kinds of file."""
    error = caught_at(tmp_path / "t", GOOD.encode() + b'\n{"timestamp": "\xff"}')
    assert (error.line, error.field, error.found) == (2, "timestamp", '"\\xff"')
    error = caught_at(tmp_path / "t", BURST.encode() + b"6,GPT-4,\xff,1")
    assert (error.line, error.field, error.found) == (4, "Request tokens", "\\xff")


def test_what_a_terminal_would_obey_is_shown_escaped(tmp_path: Path) -> None:
    """Control characters of a file reach no terminal, whether a line or the file is at fault."""
    error = caught_at(tmp_path / "t", f"{GOOD}\n\x1b[2J\x00\n")
    assert error.found == "\\x1b[2J\\x00"
    path = tmp_path / "binary"
    path.write_bytes(b"\x1b[2J,\xff\xfe")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.found == "columns \\x1b[2J, \\udcff\\udcfe"


@pytest.mark.parametrize("value", ['"' + "x" * 200_000 + '"', '"a"\rb'])
def test_a_cell_that_the_csv_module_refuses_spoils_its_line_only(
    tmp_path: Path, value: str
) -> None:
    """It is reported as a line, not raised as an error of the module."""
    error = caught_at(tmp_path / "t", f"{BURST}6,{value},1,1\n")
    assert (error.line, error.field) == (4, "(line)")


def test_nesting_without_end_spoils_its_line_only(tmp_path: Path) -> None:
    """Also in a column that nobody reads."""
    deep = row(other="[" * 100_000 + "]" * 100_000)
    error = caught_at(tmp_path / "t", f"{GOOD}\n{deep}\n")
    assert (error.line, error.field) == (2, "(line)")


@pytest.mark.parametrize("text", [GOOD, BURST])
def test_a_byte_order_mark_says_nothing(tmp_path: Path, text: str) -> None:
    """Exports of spreadsheets begin with one; the first line counts."""
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    plain = tmp_path / "plain"
    plain.write_text(text, encoding="utf-8")
    assert read_trace(path).digest == read_trace(plain).digest


def test_skipping_keeps_the_good_lines_and_reports_every_bad_one(tmp_path: Path) -> None:
    """What was skipped is told, in line order, and names follow the requests that stayed."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"junk\n{GOOD}\n{row(input_length='0')}\n{row()}\n", encoding="utf-8")
    trace = read_trace(path, skip_bad_lines=True)
    assert trace.request_ids == ("r0", "r1")
    assert trace.bad_lines == (
        BadLine(1, "(line)", "one JSON object", "junk"),
        BadLine(3, "input_length", TOKENS, "0"),
    )
    assert str(trace.bad_lines[1]) == f"line 3, field input_length: expected {TOKENS}, found 0"


def test_second_use_of_an_id_is_skipped_and_the_first_one_stays(tmp_path: Path) -> None:
    """Of two requests with one name the earlier line wins."""
    path = tmp_path / "t.jsonl"
    lines = [row(request_id='"a"', timestamp="9"), row(request_id='"a"'), row(request_id='"b"')]
    path.write_text("\n".join(lines), encoding="utf-8")
    trace = read_trace(path, skip_bad_lines=True)
    assert trace.request_ids == ("b", "a")
    assert trace.arrivals_ns.tolist() == [0, 8_000_000]
    assert [bad.line for bad in trace.bad_lines] == [2]


def test_skipping_everything_is_refused(tmp_path: Path) -> None:
    """A file of bad lines is no trace; the first problem is quoted."""
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([row(input_length="0")] * 2), encoding="utf-8")
    with pytest.raises(UnusableTrace) as caught:
        read_trace(path, skip_bad_lines=True)
    assert str(caught.value) == (
        f"{path}: expected at least one request, found none (2 bad lines skipped); the first bad "
        f"one: line 1, field input_length: expected {TOKENS}, found 0"
    )
    assert (caught.value.line, caught.value.field) == (None, None)
