"""Bytes of a trace file, decompressed, and which layout they are in.

Both are told from the content: a file name proves nothing. Knows no meaning of any column.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Final, assert_never

import msgspec
import zstandard

from stepahead_models.traces.problems import UnknownTraceFormat, UnusableTrace

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: Written before UTF-8 text by some editors and exports; it says nothing.
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# A few lines suffice to see the columns, also when the first ones are bad and will be skipped.
SAMPLE_LINES_MAX: Final = 20
#: What msgspec raises for a line that is no JSON of the type, or that nests too deep.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
JSON_NEEDS: Final = ("timestamp", "input_length", "output_length")


class Layout(Enum):
    """How the lines of a file are to be read. Values are what messages call them."""

    MILLISECOND_LINES = "mooncake, servegen or stepahead JSON lines"
    BAILIAN_LINES = "bailian JSON lines"
    AZURE_CSV = "azure CSV"
    BURSTGPT_CSV = "burstgpt CSV"


# Most special first: Bailian lines have the Mooncake columns too, but count in seconds.
NEEDED_COLUMNS: Final[dict[Layout, tuple[str, ...]]] = {
    Layout.BAILIAN_LINES: ("chat_id", "parent_chat_id", *JSON_NEEDS),
    Layout.MILLISECOND_LINES: JSON_NEEDS,
    Layout.AZURE_CSV: ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    Layout.BURSTGPT_CSV: ("Timestamp", "Request tokens", "Response tokens"),
}


def read_content(path: Path) -> bytes:
    """Read a file whole and undo gzip or Zstandard, whichever its first bytes announce.

    A byte order mark before the text is left out.

    Raises:
        OSError: the file cannot be read.
        UnusableTrace: the compressed data is damaged or cut off.
    """
    data = path.read_bytes()
    kind = "gzip" if data.startswith(GZIP_MAGIC) else "Zstandard"
    try:
        if data.startswith(GZIP_MAGIC):
            data = gzip.decompress(data)
        elif data.startswith(ZSTD_MAGIC):
            data = b"".join(_zstd_frames(data))
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise UnusableTrace(
            str(path),
            expected=f"whole {kind} data",
            found=f"damaged or cut off data ({error})",
            remedy="fetch the file again",
        ) from error
    return data.removeprefix(BYTE_ORDER_MARK)


def _zstd_frames(data: bytes) -> Iterator[bytes]:
    # The streaming reader takes a cut file for a short one; only the frame object tells.
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(data)
        if not frame.eof:
            raise EOFError("the last frame has no end")
        data = frame.unused_data


def numbered_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Iterate over the lines that are not blank, each with its number from 1 and its end."""
    for number, line in enumerate(BytesIO(data), 1):
        if line.strip():
            yield number, line


def detect_layout(file: str, data: bytes) -> Layout:
    """Tell the layout from the columns of the first lines.

    Raises:
        UnusableTrace: there is no line at all.
        UnknownTraceFormat: no layout has its columns there; the message lists what was tried.
    """
    lines = _first_lines(data)
    if not lines:
        raise UnusableTrace(
            file, expected="at least one request", found="an empty file", remedy="check the path"
        )
    columns, is_json = _columns_seen(lines)
    for layout, needed in NEEDED_COLUMNS.items():
        if _is_json(layout) == is_json and set(needed) <= set(columns):
            return layout
    tried = [f"{layout.value} ({', '.join(needed)})" for layout, needed in NEEDED_COLUMNS.items()]
    raise UnknownTraceFormat(file, columns, tried)


def _first_lines(data: bytes) -> list[bytes]:
    lines: list[bytes] = []
    start = 0
    while start < len(data) and len(lines) < SAMPLE_LINES_MAX:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if line := data[start:end].strip():
            lines.append(line)
        start = end + 1
    return lines


def _columns_seen(lines: list[bytes]) -> tuple[list[str], bool]:
    """Columns in order of appearance, and whether they come from JSON objects."""
    seen: dict[str, None] = {}
    objects = 0
    for line in lines:
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except UNREADABLE:
            continue
        objects += 1
        seen.update(dict.fromkeys(fields))
    if objects:
        return list(seen), True
    header = csv_cells(lines[0])
    return (header if len(header) > 1 else []), False


def csv_cells(line: bytes) -> list[str]:
    """Split one CSV line into stripped cells; a record never spans lines.

    So a quote that is not closed spoils its own line only, as does what the csv module refuses (a
    carriage return, a cell of 128 KiB): then the line is one cell. A byte that is no UTF-8 spoils
    its own cell only: it becomes a surrogate, which no number contains.
    """
    text = line.decode("utf-8", "surrogateescape").strip()
    try:
        cells = text.split(",") if '"' not in text else next(csv.reader([text]))
    except csv.Error:
        cells = [text]
    return [cell.strip() for cell in cells]


def _is_json(layout: Layout) -> bool:
    match layout:
        case Layout.MILLISECOND_LINES | Layout.BAILIAN_LINES:
            return True
        case Layout.AZURE_CSV | Layout.BURSTGPT_CSV:
            return False
        case _:
            assert_never(layout)
