"""Reading whole files: formats, compression, times, order."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import zstandard

from stepahead_models.traces import (
    UnknownTraceFormat,
    UnusableTrace,
    block_keys,
    bundled_trace,
    demo_trace,
    read_trace,
)
from stepahead_models.traces.content import detect_layout, read_content
from stepahead_models.traces.json_lines import PIECE_LINES, read_json_lines, read_plain_lines
from stepahead_models.traces.problems import BadLines

DATA = Path(__file__).parents[1] / "data"
# file, format, requests, span in ns, hash block, first and last input length
SAMPLES = [
    ("mooncake.jsonl", "mooncake", 8, 3_000_000_000, 512, 6758, 2012),
    ("servegen.jsonl", "servegen", 8, 11_628_000, 0, 232, 320),
    ("bailian.jsonl", "bailian", 6, 2_702_000_000, 16, 459, 432),
    ("stepahead.jsonl", "stepahead", 8, 11_692_225_000, 512, 2634, 1877),
    ("azure_2023.csv", "azure-2023", 7, 698_571_000, 0, 4808, 6985),
    ("azure_2024.csv", "azure-2024", 4, 2_250_000_000, 0, 100, 400),
    ("burstgpt.csv", "burstgpt", 23, 1_444_000_000_000, 0, 472, 601),
]
MOONCAKE_ROWS = (
    b'{"timestamp": 5, "input_length": 3, "output_length": 1, "hash_ids": [1]}\n'
    b'{"timestamp": 2, "input_length": 4, "output_length": 1, "hash_ids": [2]}\n'
    b'{"timestamp": 5, "input_length": 5, "output_length": 1, "hash_ids": [3]}\n'
    b'{"timestamp": 2, "input_length": 6, "output_length": 1, "hash_ids": []}\n'
)


def written(folder: Path, content: bytes, name: str = "some.file") -> Path:
    """Put the content into a file and return its path."""
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("file", "format_name", "count", "span_ns", "hash_block", "first", "last"), SAMPLES
)
def test_each_format_is_known_by_its_content(  # noqa: PLR0913, PLR0917 - one row of the table
    file: str,
    format_name: str,
    count: int,
    span_ns: int,
    hash_block: int,
    first: int,
    last: int,
    tmp_path: Path,
) -> None:
    """The name says nothing; the content gives format, time unit and hash block size."""
    trace = read_trace(written(tmp_path, (DATA / file).read_bytes()), skip_bad_lines=True)
    assert (trace.format_name, len(trace)) == (format_name, count)
    assert (trace.span_ns, trace.hash_block_size) == (span_ns, hash_block)
    assert (trace.input_lengths[0], trace.input_lengths[-1]) == (first, last)


def test_compression_is_known_by_its_content_and_leaves_the_digest_alone(tmp_path: Path) -> None:
    """Plain, gzip and Zstandard, one frame or two, are the same trace under misleading names."""
    zstd = zstandard.ZstdCompressor()
    middle = MOONCAKE_ROWS.index(b"\n") + 1
    copies = {
        "plain.zst": MOONCAKE_ROWS,
        "zipped.jsonl": gzip.compress(MOONCAKE_ROWS),
        "one-frame.gz": zstd.compress(MOONCAKE_ROWS),
        "two-frames": zstd.compress(MOONCAKE_ROWS[:middle]) + zstd.compress(MOONCAKE_ROWS[middle:]),
    }
    traces = [read_trace(written(tmp_path, data, name)) for name, data in copies.items()]
    assert len({trace.digest for trace in traces}) == 1
    assert [trace.name for trace in traces] == ["plain", "zipped", "one-frame", "two-frames"]


def test_unsorted_lines_are_sorted_by_arrival_and_keep_line_order_within_an_instant(
    tmp_path: Path,
) -> None:
    """Names follow the lines, columns and hash ids follow the arrival."""
    trace = read_trace(written(tmp_path, MOONCAKE_ROWS))
    assert trace.request_ids == ("r1", "r3", "r0", "r2")
    assert trace.arrivals_ns.tolist() == [0, 0, 3_000_000, 3_000_000]
    assert trace.input_lengths.tolist() == [4, 6, 3, 5]
    assert [trace.hash_ids_of(index).tolist() for index in range(4)] == [[2], [], [1], [3]]


def test_ties_keep_line_order_however_many_there_are(tmp_path: Path) -> None:
    """Few rows would be in order under an unstable sort, too."""
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 1}}\n'
    content = "".join(line.format(-index % 3, index + 1) for index in range(300))
    trace = read_trace(written(tmp_path, content.encode()))
    expected = [index + 1 for tick in range(3) for index in range(300) if -index % 3 == tick]
    assert trace.input_lengths.tolist() == expected


def test_own_columns_come_through_with_units_in_ns() -> None:
    """Limits, cancels and names are kept; what a line does not give is -1."""
    trace = read_trace(DATA / "stepahead.jsonl")
    by_id = {name: index for index, name in enumerate(trace.request_ids)}
    rows = [by_id[name] for name in ("r0", "r4", "r12")]
    assert trace.max_tokens[rows].tolist() == [512, 256, 512]
    assert trace.cancel_after_ns[rows].tolist() == [17_880_211_000, -1, -1]
    assert trace.cancel_after_tokens[rows].tolist() == [-1, -1, 66]
    assert trace.arrivals_ns[rows].tolist() == [0, 600_720_000, 2_785_347_000]


def test_azure_times_are_exact_with_any_offset_and_fraction() -> None:
    """Seven digits, six, none, an offset of two hours and a Z all land on their ns."""
    assert read_trace(DATA / "azure_2023.csv").arrivals_ns.tolist()[:4] == [
        0,
        52_000_000,
        98_189_000,
        140_684_000,
    ]
    assert read_trace(DATA / "azure_2024.csv").arrivals_ns.tolist() == [
        0,
        750_000_000,
        750_001_000,
        2_250_000_000,
    ]


def test_csv_columns_may_stand_anywhere_and_be_quoted(tmp_path: Path) -> None:
    """The header decides; a byte order mark, CRLF, quotes and further columns do not disturb."""
    content = (
        b'\xef\xbb\xbf"Response tokens",Timestamp,"Model","Request tokens"\r\n'
        b'7,1.5,"a, b",70\r\n\r\n'
        b'8,2.000000001,"x",80\r\n'
    )
    trace = read_trace(written(tmp_path, content))
    assert trace.output_lengths.tolist() == [7, 8]
    assert trace.input_lengths.tolist() == [70, 80]
    assert trace.arrivals_ns.tolist() == [0, 500_000_001]


def test_caller_may_overrule_the_hash_block_size(tmp_path: Path) -> None:
    """A Mooncake file with other blocks can be read once the caller says how long they are."""
    row = b'{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1, 2, 3]}'
    path = written(tmp_path, row)
    assert read_trace(path, hash_block_size=4).hash_block_size == 4
    with pytest.raises(ValueError, match=r"^hash_block_size must be at least 1 token, not 0$"):
        read_trace(path, hash_block_size=0)


def test_bundled_trace_is_the_head_of_the_mooncake_conversation() -> None:
    """It reads without a flag, is small, and has the prefix reuse of its source."""
    path = bundled_trace()
    trace = read_trace(path)
    assert path.stat().st_size < 300_000
    assert (trace.format_name, len(trace), trace.span_ns) == ("mooncake", 1000, 330_000_000_000)
    assert (trace.hash_ids.size, np.unique(trace.hash_ids).size) == (27_305, 21_514)
    keys = block_keys(trace, 16)
    assert keys.offsets[-1] == int((trace.input_lengths // 16).sum())


def test_the_demo_is_the_head_of_the_azure_conversation() -> None:
    """It reads without a flag, is small, and its prompts are of a length that one card serves."""
    path = demo_trace()
    trace = read_trace(path)
    assert path.stat().st_size < 300_000
    assert (trace.format_name, len(trace), trace.span_ns) == ("azure-2023", 1000, 216_027_393_000)
    assert (int(trace.input_lengths.sum()), int(trace.input_lengths.max())) == (1_014_189, 4_145)
    assert int(trace.output_lengths.sum()) == 247_262


@pytest.mark.parametrize(
    ("content", "columns", "found"),
    [
        (
            b'{"schema": "x", "timestamp": 1}\n{"request": {}}\n',
            ("schema", "timestamp", "request"),
            "columns schema, timestamp, request",
        ),
        (b"time,tokens\n1,2\n", ("time", "tokens"), "columns time, tokens"),
        (b"\x00\x01PAR1", (), "neither JSON lines nor a CSV header"),
    ],
)
def test_unknown_format_lists_columns_seen_and_formats_tried(
    content: bytes, columns: tuple[str, ...], found: str, tmp_path: Path
) -> None:
    """The message is enough to see which column is missing."""
    path = written(tmp_path, content)
    with pytest.raises(UnknownTraceFormat) as caught:
        read_trace(path)
    assert caught.value.columns == columns
    assert str(caught.value) == (
        f"{path}: expected a known trace format, found {found}; formats tried: "
        "bailian JSON lines (chat_id, parent_chat_id, timestamp, input_length, output_length); "
        "mooncake, servegen or stepahead JSON lines (timestamp, input_length, output_length); "
        "azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens); "
        "burstgpt CSV (Timestamp, Request tokens, Response tokens)"
    )


@pytest.mark.parametrize("path", [bundled_trace(), DATA / "servegen.jsonl", DATA / "bailian.jsonl"])
def test_plain_lines_read_at_once_are_those_read_one_by_one(path: Path) -> None:
    """The bundled trace has several pieces of them."""
    data = read_content(path)
    assert path != bundled_trace() or data.count(b"\n") > 2 * PIECE_LINES
    layout = detect_layout("some.file", data)
    one_by_one = read_json_lines(data, layout, BadLines("some.file", skip=False), None)
    traces = [
        found.in_order_of_arrival("t", ())
        for found in (read_plain_lines(data, layout, None), one_by_one)
    ]
    assert traces[0].digest == traces[1].digest
    assert traces[0].format_name == traces[1].format_name


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_file_is_refused(content: bytes, tmp_path: Path) -> None:
    """No line at all is no trace."""
    path = written(tmp_path, content)
    with pytest.raises(UnusableTrace) as caught:
        read_trace(path)
    assert str(caught.value) == (
        f"{path}: expected at least one request, found an empty file; check the path"
    )


def test_header_without_requests_is_refused(tmp_path: Path) -> None:
    """A table of no rows is no trace."""
    path = written(tmp_path, b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(UnusableTrace) as caught:
        read_trace(path)
    assert str(caught.value) == (
        f"{path}: expected at least one request, found none below the header; check the path"
    )


@pytest.mark.parametrize(
    ("kind", "compressed"),
    [
        ("gzip", gzip.compress(MOONCAKE_ROWS)),
        ("Zstandard", zstandard.ZstdCompressor().compress(MOONCAKE_ROWS)),
    ],
)
def test_cut_off_compression_is_refused_and_not_read_as_a_shorter_trace(
    kind: str, compressed: bytes, tmp_path: Path
) -> None:
    """A download that stopped early must not pass for a small trace."""
    path = written(tmp_path, compressed[:-4])
    with pytest.raises(UnusableTrace) as caught:
        read_trace(path)
    assert caught.value.expected == f"whole {kind} data"
    assert caught.value.found.startswith("damaged or cut off data (")
    assert str(caught.value).endswith("; fetch the file again")
