"""Write a trace as JSON lines in our own columns: those of Mooncake, and what it lacks."""

import gzip
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from stepahead_models.traces.columns import Trace
from stepahead_models.traces.json_lines import MOONCAKE_HASH_BLOCK, NS_PER_MS, JsonRow

COMPRESSION_LEVEL: Final = 9


def write_jsonl(trace: Trace, path: str | Path) -> None:
    """Write a trace so that `read_trace` gives one with the same digest.

    ``timestamp`` and ``cancel_after_ms`` are in ms, a fraction only where one is needed; those from
    2**52 ns (52 days) on that have one may come back a few ns off, since JSON readers hold it as a
    float. Columns without a value are left out. The same trace gives the same bytes.

    Args:
        trace: what to write.
        path: ends in ``.gz`` or ``.zst`` for that compression; anything else is written plain.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    encoder = msgspec.json.Encoder()
    data = b"".join(encoder.encode(_row(trace, index)) + b"\n" for index in range(len(trace)))
    match path.suffix:
        case ".gz":
            data = gzip.compress(data, COMPRESSION_LEVEL, mtime=0)
        case ".zst":
            data = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(data)
        case _:
            pass
    path.write_bytes(data)


def _row(trace: Trace, index: int) -> JsonRow:
    hash_ids = trace.hash_ids_of(index).tolist()
    size = trace.hash_block_size
    cancel_ns = int(trace.cancel_after_ns[index])
    return JsonRow(
        timestamp=_milliseconds(int(trace.arrivals_ns[index])),
        input_length=int(trace.input_lengths[index]),
        output_length=int(trace.output_lengths[index]),
        request_id=trace.request_ids[index],
        max_tokens=_given(int(trace.max_tokens[index])),
        cancel_after_ms=None if cancel_ns < 0 else _milliseconds(cancel_ns),
        cancel_after_tokens=_given(int(trace.cancel_after_tokens[index])),
        priority=int(trace.priorities[index]),
        hash_block_size=size if hash_ids and size != MOONCAKE_HASH_BLOCK else None,
        hash_ids=hash_ids or None,
    )


def _milliseconds(time_ns: int) -> int | float:
    whole, rest = divmod(time_ns, NS_PER_MS)
    return whole if rest == 0 else time_ns / NS_PER_MS


def _given(value: int) -> int | None:
    return None if value < 0 else value
