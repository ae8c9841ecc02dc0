"""Random traces: written and read again, transformed, and keyed against the plain definition."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepahead_models.traces import Trace, block_keys, read_trace, write_jsonl

TIMES = st.integers(0, 10**13) | st.integers(0, 10**7).map(lambda ms: ms * 10**6)
TOKENS = st.integers(1, 60) | st.integers(1, 2**31 - 1)


def ints(values: list[int]) -> NDArray[np.int64]:
    """A column."""
    return np.array(values, dtype=np.int64)


@st.composite
def traces(draw: st.DrawFn, hash_blocks: tuple[int, ...] = (512, 16, 4)) -> Trace:
    """Any trace: ragged hash ids from a small pool, limits, cancels of both kinds, ties."""
    count = draw(st.integers(1, 8))
    arrivals = sorted(draw(st.lists(TIMES, min_size=count - 1, max_size=count - 1)))
    size = draw(st.sampled_from(hash_blocks))
    inputs = [draw(st.integers(1, 6 * size)) for _ in range(count)]
    outputs = [draw(TOKENS) for _ in range(count)]
    ids: list[list[int]] = []
    for length in inputs:
        needed = draw(st.sampled_from([0, length // size, -(-length // size)]))
        ids.append([draw(st.integers(0, 3) | st.integers(0, 2**63 - 1)) for _ in range(needed)])
    cancel_kinds = [draw(st.sampled_from(["none", "time", "tokens"])) for _ in range(count)]
    names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
    return Trace(
        request_ids=tuple(draw(st.lists(names, min_size=count, max_size=count, unique=True))),
        arrivals_ns=ints([0, *arrivals]),
        input_lengths=ints(inputs),
        output_lengths=ints(outputs),
        max_tokens=ints([draw(st.just(-1) | st.integers(out, 2**31 - 1)) for out in outputs]),
        cancel_after_ns=ints([draw(TIMES) if kind == "time" else -1 for kind in cancel_kinds]),
        cancel_after_tokens=ints(
            [draw(TOKENS) if kind == "tokens" else -1 for kind in cancel_kinds]
        ),
        priorities=ints([draw(st.integers(-3, 3)) for _ in range(count)]),
        hash_offsets=np.cumsum([0, *map(len, ids)]).astype(np.int64),
        hash_ids=ints([value for row in ids for value in row]),
        hash_block_size=size,
    )


@given(trace=traces(), suffix=st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.zst"]))
def test_written_trace_reads_back_with_the_same_digest(trace: Trace, suffix: str) -> None:
    """In every compression, every ns and every id survives."""
    with TemporaryDirectory() as folder:
        path = Path(folder, f"again{suffix}")
        write_jsonl(trace, path)
        again = read_trace(path)
    assert again.digest == trace.digest
    assert (again.name, again.format_name, again.bad_lines) == ("again", "stepahead", ())


@given(traces())
def test_suffix_chooses_the_compression_and_the_bytes_repeat(trace: Trace) -> None:
    """The three files hold the same lines, and writing again gives the same file."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("t.jsonl", "t.gz", "t.zst", "t2.gz", "t2.zst")]
        for path in paths:
            write_jsonl(trace, path)
        plain, gzipped, zstd, *again = [path.read_bytes() for path in paths]
    assert plain.count(b"\n") == len(trace)
    assert gzip.decompress(gzipped) == plain
    assert zstandard.ZstdDecompressor().decompress(zstd) == plain
    assert again == [gzipped, zstd]
    # Two writes within one second prove nothing about the time that a gzip header may hold.
    assert gzipped[4:8] == bytes(4)


@given(trace=traces(), factor=st.floats(1e-3, 1e3), times=st.integers(2, 4))
def test_changed_arrivals_are_consistent_and_change_nothing_else(
    trace: Trace, factor: float, times: int
) -> None:
    """The constructor checks the columns; lengths, ids and hash ids stay where they were."""
    for other in (trace.speed(factor), trace.poisson(factor, 1), trace.repeat(times)):
        part = other.limit(len(trace))
        assert part.input_lengths.tolist() == trace.input_lengths.tolist()
        assert part.hash_ids.tolist() == trace.hash_ids.tolist()
        assert part.hash_block_size == trace.hash_block_size
    repeated = trace.repeat(times)
    assert len(repeated) == times * len(trace)
    last = repeated.hash_ids_of(len(repeated) - 1)
    assert last.tolist() == trace.hash_ids_of(len(trace) - 1).tolist()


@given(trace=traces(hash_blocks=(4, 8)), block_size=st.sampled_from([1, 2, 4, 8, 16]))
def test_keys_are_equal_exactly_where_prefixes_are(trace: Trace, block_size: int) -> None:
    """The definition, spelled out: a block is its whole prefix of (id, tokens) and its place."""
    size = trace.hash_block_size
    if trace.hash_ids.size and size % block_size and block_size % size:
        return
    keys = block_keys(trace, block_size)
    key_of: dict[object, int] = {}
    for index in range(len(trace)):
        ids = trace.hash_ids_of(index).tolist()
        length = int(trace.input_lengths[index])
        covered = min(length, len(ids) * size)
        chain = [(value, min(size, length - at * size)) for at, value in enumerate(ids)]
        found = keys.keys_of(index).tolist()
        assert len(found) == covered // block_size == keys.block_count_of(index)
        for block, key in enumerate(found):
            end = (block + 1) * block_size
            content = (tuple(chain[: -(-end // size)]), end)
            assert key_of.setdefault(content, key) == key
    assert sorted(key_of.values()) == list(range(keys.key_count))
