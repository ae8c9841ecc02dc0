"""Read JSON lines: Mooncake, ServeGen, our own columns (milliseconds) and Bailian (seconds).

The four share their columns, so one strict row type reads them all and the columns that are in
use give the format its name. Columns that are not listed here are ignored.

Sources: Mooncake `FAST25-release/traces` (ms, 512 tokens per hash id), Qwen-Bailian usage traces
(s, 16 tokens per hash id), ServeGen output as JSON lines (ms, no hash ids).
"""

import re
import struct
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import islice
from typing import Annotated, Final

import msgspec

from stepahead_models.traces.columns import ARRIVAL_NS_MAX, NONE_GIVEN
from stepahead_models.traces.content import UNREADABLE, Layout, numbered_lines
from stepahead_models.traces.problems import BadLines
from stepahead_models.traces.requests import TOKENS_EXPECTED, TOKENS_MAX, FoundRequests

NS_PER_MS: Final = 10**6
NS_PER_S: Final = 10**9
MOONCAKE_HASH_BLOCK: Final = 512
BAILIAN_HASH_BLOCK: Final = 16
HASH_ID_MAX: Final = 2**63 - 1

TokenCount = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Duration = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]
HashId = Annotated[int, msgspec.Meta(ge=0, le=HASH_ID_MAX)]


class JsonRow(msgspec.Struct, gc=False, omit_defaults=True):
    """One line; defaults mean "not given". Also what our own writer emits."""

    timestamp: Duration
    input_length: TokenCount
    output_length: TokenCount
    request_id: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    max_tokens: TokenCount | None = None
    cancel_after_ms: Duration | None = None
    cancel_after_tokens: TokenCount | None = None
    priority: Annotated[int, msgspec.Meta(ge=-TOKENS_MAX, le=TOKENS_MAX)] = 0
    hash_block_size: TokenCount | None = None
    hash_ids: list[HashId] | None = None


EXPECTED: Final = {
    "input_length": TOKENS_EXPECTED,
    "output_length": TOKENS_EXPECTED,
    "request_id": "a text of at least one character",
    "max_tokens": TOKENS_EXPECTED,
    "cancel_after_ms": "a number of milliseconds, at least 0 and below 2**62 ns",
    "cancel_after_tokens": TOKENS_EXPECTED,
    "priority": f"a whole number from {-TOKENS_MAX} to {TOKENS_MAX}",
    "hash_block_size": TOKENS_EXPECTED,
    "hash_ids": f"a list of whole numbers from 0 to {HASH_ID_MAX}",
}
#: What `read_plain_lines` raises for lines that have to be read one by one.
NOT_PLAIN: Final = (ValueError, OverflowError, *UNREADABLE)
PIECE_LINES: Final = 256
FIELD_IN_MESSAGE: Final = re.compile(r"`\$\.(\w+)|required field `(\w+)`")


def read_plain_lines(data: bytes, layout: Layout, hash_block_size: int | None) -> FoundRequests:
    """Read lines that have times, lengths and hash ids and no other of our columns.

    Most files are like that, and take half as long in this way as one line after the other. Checked
    are the types; of the rest the trace is a judge that names no line.

    Raises:
        Exception: one of `NOT_PLAIN`; a line has more, or something in it is wrong.
    """
    bailian = layout is Layout.BAILIAN_LINES
    unit_ns = NS_PER_S if bailian else NS_PER_MS
    found = FoundRequests(format_name="bailian" if bailian else "servegen")
    decode = msgspec.json.Decoder(JsonRow).decode
    lines = BytesIO(data)
    # In pieces: a long trace as objects would take several times the memory of its columns.
    while rows := [*map(decode, islice(lines, PIECE_LINES))]:
        if not all(map(_is_plain, rows)):
            raise ValueError("some line has other columns")
        found.times_ns += [to_ns(row.timestamp, unit_ns) for row in rows]
        found.input_lengths += [row.input_length for row in rows]
        found.output_lengths += [row.output_length for row in rows]
        ids = [row.hash_ids or [] for row in rows]
        found.hash_counts += map(len, ids)
        flat: list[int] = []
        for some in ids:
            flat += some
        found.hash_ids.frombytes(struct.pack(f"{len(flat)}q", *flat))
    if max(found.times_ns) > ARRIVAL_NS_MAX // 2:
        raise ValueError("a time may be too late")
    if found.hash_ids:
        found.hash_block_size = hash_block_size or _default_block(layout)
        found.format_name = "bailian" if bailian else "mooncake"
    return found


def _default_block(layout: Layout) -> int:
    return BAILIAN_HASH_BLOCK if layout is Layout.BAILIAN_LINES else MOONCAKE_HASH_BLOCK


def _is_plain(row: JsonRow) -> bool:
    return row.request_id is None and row.hash_block_size is None and not _has_own_columns(row)


def read_json_lines(
    data: bytes, layout: Layout, bad: BadLines, hash_block_size: int | None
) -> FoundRequests:
    """Read all lines; bad ones go to ``bad``.

    Args:
        data: the decompressed file.
        layout: tells seconds from milliseconds.
        bad: raises at the first bad line, or collects them.
        hash_block_size: tokens per hash id, if the caller knows better than file and format.

    Raises:
        TraceError: a bad line, unless ``bad`` skips them.
    """
    bailian = layout is Layout.BAILIAN_LINES
    unit_ns = NS_PER_S if bailian else NS_PER_MS
    checks = _RowChecks(bad, unit_ns, hash_block_size)
    checks.default_block = _default_block(layout)
    found = FoundRequests(format_name="stepahead")
    own_columns = False
    # Row by row: a long trace as objects would take several times the memory of its columns.
    for number, row in _decoded(numbered_lines(data), bad, unit_ns):
        if checks.accepts(number, row):
            own_columns = own_columns or _has_own_columns(row)
            _take(found, row, unit_ns)
    found.request_ids = list(checks.line_of)
    found.hash_block_size = checks.hash_block_size or checks.default_block
    if bailian:
        found.format_name = "bailian"
    elif not own_columns and not checks.named:
        found.format_name = "mooncake" if found.hash_ids else "servegen"
    return found


def _take(found: FoundRequests, row: JsonRow, unit_ns: int) -> None:
    found.times_ns.append(to_ns(row.timestamp, unit_ns))
    found.input_lengths.append(row.input_length)
    found.output_lengths.append(row.output_length)
    found.priorities.append(row.priority)
    found.max_tokens.append(_given(row.max_tokens))
    found.cancel_after_tokens.append(_given(row.cancel_after_tokens))
    patience = row.cancel_after_ms
    found.cancel_after_ns.append(NONE_GIVEN if patience is None else to_ns(patience, NS_PER_MS))
    ids = row.hash_ids or []
    found.hash_ids.fromlist(ids)
    found.hash_counts.append(len(ids))


def to_ns(value: float, unit_ns: int) -> int:
    """Turn a time of at least 0 into whole ns: exact for integers, else rounded (half to even).

    The whole part is multiplied as an integer, so that a float loses nothing beyond its own
    precision: below 2**52 ns (52 days) the nearest ns is always found.
    """
    if isinstance(value, int):
        return value * unit_ns
    whole = int(value)
    return whole * unit_ns + round((value - whole) * unit_ns)


def _given(value: int | None) -> int:
    return NONE_GIVEN if value is None else value


def _has_own_columns(row: JsonRow) -> bool:
    return (
        row.max_tokens is not None
        or row.cancel_after_ms is not None
        or row.cancel_after_tokens is not None
        or row.priority != 0
    )


def _decoded(
    lines: Iterable[tuple[int, bytes]], bad: BadLines, unit_ns: int
) -> Iterator[tuple[int, JsonRow]]:
    decode = msgspec.json.Decoder(JsonRow).decode
    for number, line in lines:
        try:
            row = decode(line)
        except UNREADABLE as error:
            _report(number, line, error, bad, unit_ns)
        else:
            yield number, row


def _report(number: int, line: bytes, error: Exception, bad: BadLines, unit_ns: int) -> None:
    named = FIELD_IN_MESSAGE.search(str(error))
    try:
        raw = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        raw = None
    if named is None or raw is None:
        text = line.decode("utf-8", "backslashreplace").strip()
        bad.report(number, "(line)", "one JSON object", text)
        return
    field = named[1] or named[2]
    expected = _time_expected(unit_ns) if field == "timestamp" else EXPECTED[field]
    found = (
        bytes(raw[field]).decode("utf-8", "backslashreplace") if field in raw else "no such field"
    )
    bad.report(number, field, expected, found)


def _time_expected(unit_ns: int) -> str:
    unit = "seconds" if unit_ns == NS_PER_S else "milliseconds"
    return f"a number of {unit}, at least 0 and below 2**62 ns"


class _RowChecks:
    """What one field's type cannot say: limits between fields and between lines."""

    def __init__(self, bad: BadLines, unit_ns: int, hash_block_size: int | None) -> None:
        self.bad = bad
        self.unit_ns = unit_ns
        self.forced_block = hash_block_size
        self.hash_block_size = hash_block_size
        self.default_block = MOONCAKE_HASH_BLOCK
        self.line_of: dict[str, int] = {}
        self.named = False

    def accepts(self, number: int, row: JsonRow) -> bool:
        """Say whether the row may stay; if not, its problem has been reported."""
        problem = self._times(row) or self._lengths(row) or self._hash_ids(row)
        if problem is None:
            problem = self._request_id(number, row)
        if problem is not None:
            self.bad.report(number, *problem)
        return problem is None

    def _request_id(self, number: int, row: JsonRow) -> tuple[str, str, str] | None:
        if row.request_id is None:
            row.request_id = f"r{len(self.line_of)}"
        else:
            self.named = True
        first = self.line_of.setdefault(row.request_id, number)
        if first != number:
            found = f"{row.request_id!r}, used on line {first}"
            return "request_id", "an id that no earlier line uses", found
        return None

    def _times(self, row: JsonRow) -> tuple[str, str, str] | None:
        if row.timestamp * self.unit_ns >= ARRIVAL_NS_MAX:
            return "timestamp", _time_expected(self.unit_ns), str(row.timestamp)
        if row.cancel_after_ms is not None:
            if row.cancel_after_ms * NS_PER_MS >= ARRIVAL_NS_MAX:
                return "cancel_after_ms", EXPECTED["cancel_after_ms"], str(row.cancel_after_ms)
            if row.cancel_after_tokens is not None:
                return (
                    "cancel_after_tokens",
                    "at most one of cancel_after_ms and cancel_after_tokens",
                    f"both ({row.cancel_after_ms} and {row.cancel_after_tokens})",
                )
        return None

    def _lengths(self, row: JsonRow) -> tuple[str, str, str] | None:
        if row.max_tokens is not None and row.output_length > row.max_tokens:
            expected = f"at most max_tokens ({row.max_tokens})"
            return "output_length", expected, str(row.output_length)
        return None

    def _hash_ids(self, row: JsonRow) -> tuple[str, str, str] | None:
        if not row.hash_ids:
            return None
        size = self.forced_block or row.hash_block_size or self.default_block
        if self.hash_block_size not in (None, size):
            expected = f"{self.hash_block_size} as on the lines before"
            return "hash_block_size", expected, str(size)
        whole, rest = divmod(row.input_length, size)
        count = len(row.hash_ids)
        if count not in (whole, whole + (rest > 0)):
            expected = (
                f"{whole + (rest > 0)} ids, one for each {size} of {row.input_length} prompt tokens"
            )
            return "hash_ids", expected, f"{count} ids"
        self.hash_block_size = size
        return None
