"""Read a request trace from a file, whatever its format and compression."""

from contextlib import suppress
from pathlib import Path
from typing import assert_never

from stepahead_models.traces.columns import Trace
from stepahead_models.traces.content import Layout, detect_layout, read_content
from stepahead_models.traces.csv_tables import read_csv_table
from stepahead_models.traces.json_lines import NOT_PLAIN, read_json_lines, read_plain_lines
from stepahead_models.traces.problems import BadLines, UnusableTrace


def read_trace(
    path: str | Path, *, skip_bad_lines: bool = False, hash_block_size: int | None = None
) -> Trace:
    """Read a trace; format and compression are told from the content, never from the name.

    Formats: Mooncake, ServeGen and our own JSON lines (``timestamp`` in ms), Bailian JSON lines
    (``timestamp`` in s), Azure 2023 and 2024 CSV (UTC times), BurstGPT CSV (s). Plain, gzip, or
    Zstandard. Requests are sorted by arrival, those of one instant stay in line order, and the
    first one arrives at 0.

    Args:
        path: the file; its name up to the first dot becomes the name of the trace.
        skip_bad_lines: leave bad lines out and list them in ``Trace.bad_lines``.
        hash_block_size: prompt tokens per hash id, for a file that departs from its format
            (512, for Bailian 16).

    Raises:
        OSError: the file cannot be read.
        ValueError: ``hash_block_size`` is below 1.
        TraceError: the first bad line (unless they are skipped), or the file as a whole is
            damaged, empty (`UnusableTrace`) or in no known format (`UnknownTraceFormat`).
    """
    if hash_block_size is not None and hash_block_size < 1:
        raise ValueError(f"hash_block_size must be at least 1 token, not {hash_block_size}")
    file = str(path)
    path = Path(path)
    data = read_content(path)
    layout = detect_layout(file, data)
    name = path.name.split(".", 1)[0] or path.name
    bad = BadLines(file, skip=skip_bad_lines)
    match layout:
        case Layout.MILLISECOND_LINES | Layout.BAILIAN_LINES:
            with suppress(*NOT_PLAIN):
                plain = read_plain_lines(data, layout, hash_block_size)
                return plain.in_order_of_arrival(name, ())
            found = read_json_lines(data, layout, bad, hash_block_size)
        case Layout.AZURE_CSV | Layout.BURSTGPT_CSV:
            found = read_csv_table(data, layout, bad)
        case _:
            assert_never(layout)
    if not found.times_ns:
        skipped = len(bad.skipped)
        raise UnusableTrace(
            file,
            expected="at least one request",
            found=f"none ({skipped} bad lines skipped)" if skipped else "none below the header",
            remedy=f"the first bad one: {bad.skipped[0]}" if skipped else "check the path",
        )
    return found.in_order_of_arrival(name, tuple(bad.skipped))
