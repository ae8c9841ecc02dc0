"""The columns of a trace and the ways to change its arrivals."""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stepahead_models.traces import BadLine, Trace


def ints(*values: int) -> NDArray[np.int64]:
    """A column."""
    return np.array(values, dtype=np.int64)


def three() -> Trace:
    """Three requests, 10 ms apart on average; the second has no hash ids."""
    return Trace(
        request_ids=("a", "b", "c"),
        arrivals_ns=ints(0, 5_000_000, 20_000_001),
        input_lengths=ints(700, 5, 512),
        output_lengths=ints(1, 2, 3),
        max_tokens=ints(-1, 2, 9),
        cancel_after_ns=ints(70, -1, -1),
        cancel_after_tokens=ints(-1, -1, 2),
        priorities=ints(0, 1, 2),
        hash_offsets=ints(0, 2, 2, 3),
        hash_ids=ints(4, 5, 4),
        hash_block_size=512,
        name="three",
    )


CONTRADICTIONS = [
    ({"request_ids": ()}, "it holds no request"),
    ({"priorities": ints(1)}, "priorities has shape (1,) for 3 requests"),
    ({"hash_offsets": ints(0, 3)}, "hash_offsets has shape (2,) for 3 requests"),
    ({"arrivals_ns": ints(1, 2, 3)}, "arrivals_ns must start at 0 and never decrease"),
    ({"arrivals_ns": ints(0, 2, 1)}, "arrivals_ns must start at 0 and never decrease"),
    ({"request_ids": ("a", "b", "a")}, "request_ids must be unique"),
    ({"output_lengths": ints(1, 0, 3)}, "input_lengths and output_lengths must be at least 1"),
    ({"max_tokens": ints(-1, 1, 9)}, "max_tokens must be -1 or at least the output length"),
    (
        {"cancel_after_ns": ints(70, -1, 0)},
        "a request has both cancel_after_ns and cancel_after_tokens",
    ),
    ({"hash_offsets": ints(0, 2, 1, 3)}, "hash_offsets must rise from 0 to the number of hash_ids"),
    ({"hash_offsets": ints(0, 1, 2, 2)}, "hash_offsets must rise from 0 to the number of hash_ids"),
    (
        {"hash_block_size": 0},
        "hash_ids must be at least 0 and need a hash_block_size of at least 1",
    ),
    (
        {"hash_block_size": 100},
        "request a has 2 hash_ids for 700 prompt tokens in blocks of 100",
    ),
    (
        {"arrivals_ns": ints(0, 5, 2**62 + 1)},
        "arrivals_ns and cancel_after_ns must be at most 2**62 ns (146 years)",
    ),
    (
        {"cancel_after_ns": ints(2**63 - 1, -1, -1)},
        "arrivals_ns and cancel_after_ns must be at most 2**62 ns (146 years)",
    ),
]


@pytest.mark.parametrize(("changes", "problem"), CONTRADICTIONS)
def test_contradicting_columns_are_refused(changes: dict[str, object], problem: str) -> None:
    """A generator of traces learns at once which column is wrong."""
    with pytest.raises(ValueError, match=r"^trace 'three': ") as caught:
        replace(three(), **changes)  # type: ignore[arg-type] # wrong on purpose, one field at a time
    assert str(caught.value) == f"trace 'three': {problem}"


def test_columns_cannot_be_written() -> None:
    """A trace may be shared between runs, so nobody may change it."""
    trace = three()
    with pytest.raises(ValueError, match="read-only"):
        trace.arrivals_ns[1] = 7
    with pytest.raises(ValueError, match="read-only"):
        trace.hash_ids_of(0)[0] = 7


def test_digest_follows_the_columns_and_nothing_else() -> None:
    """Names of the trace and skipped lines leave it; any number or request id changes it."""
    trace = three()
    same = replace(trace, name="other", format_name="x", bad_lines=(BadLine(1, "f", "e", "g"),))
    others = [
        replace(trace, request_ids=("a", "bc", "")),
        replace(trace, hash_ids=ints(4, 5, 6)),
        replace(trace, priorities=ints(0, 1, 3)),
        replace(trace, hash_offsets=ints(0, 1, 1, 2), hash_ids=ints(4, 5), hash_block_size=512),
        trace.speed(2),
        trace.limit(2),
        trace,
    ]
    assert same.digest == trace.digest
    assert len({other.digest for other in others}) == len(others)


def test_digest_is_that_of_little_endian_columns_on_every_machine() -> None:
    """The definition, spelled out: version, sizes, names with lengths, then 64-bit integers."""
    columns = [
        [0, 5_000_000, 20_000_001],
        [700, 5, 512],
        [1, 2, 3],
        [-1, 2, 9],
        [70, -1, -1],
        [-1, -1, 2],
        [0, 1, 2],
        [0, 2, 2, 3],
        [4, 5, 4],
    ]
    names = b"".join(struct.pack("<q", 1) + name for name in (b"a", b"b", b"c"))
    numbers = b"".join(struct.pack(f"<{len(column)}q", *column) for column in columns)
    canonical = b"stepahead trace columns 1\n3 512\n" + names + numbers
    assert three().digest == hashlib.sha256(canonical).hexdigest()


def test_limit_keeps_the_first_arrivals_whole() -> None:
    """Also their hash ids, and no block size where no id is left."""
    short = three().limit(2)
    assert (short.request_ids, short.hash_ids.tolist()) == (("a", "b"), [4, 5])
    assert short.hash_offsets.tolist() == [0, 2, 2]
    assert three().limit(99).digest == three().digest
    without_ids = replace(three(), hash_offsets=ints(0, 0, 0, 1), hash_ids=ints(4)).limit(2)
    assert without_ids.hash_block_size == 0


def test_speed_divides_arrivals_and_leaves_patience() -> None:
    """Each arrival is rounded to a whole ns on its own."""
    fast = three().speed(2)
    assert fast.arrivals_ns.tolist() == [0, 2_500_000, 10_000_000]
    assert fast.cancel_after_ns.tolist() == [70, -1, -1]
    assert three().speed(3).arrivals_ns.tolist() == [0, 1_666_667, 6_666_667]
    assert three().speed(0.5).arrivals_ns.tolist() == [0, 10_000_000, 40_000_002]


def test_poisson_has_its_rate_its_seed_and_the_old_order() -> None:
    """The mean gap is that of the rate; the same seed gives the same arrivals."""
    long = three().repeat(3_000)
    paced = long.poisson(50.0, seed=7)
    assert paced.request_ids == long.request_ids
    assert paced.arrivals_ns[0] == 0
    assert paced.span_ns / (len(paced) - 1) == pytest.approx(20_000_000, rel=0.05)
    assert paced.digest == long.poisson(50.0, seed=7).digest
    assert paced.digest != long.poisson(50.0, seed=8).digest


def test_repeat_shifts_each_pass_by_span_and_mean_gap() -> None:
    """Ids are told apart by the pass; prompts are the same, so later passes may hit a cache."""
    twice = three().repeat(2)
    period = 20_000_001 + 10_000_000
    assert twice.request_ids == ("a#0", "b#0", "c#0", "a#1", "b#1", "c#1")
    assert twice.arrivals_ns.tolist() == [
        0,
        5_000_000,
        20_000_001,
        period,
        period + 5_000_000,
        period + 20_000_001,
    ]
    assert twice.hash_offsets.tolist() == [0, 2, 2, 3, 5, 5, 6]
    assert twice.hash_ids.tolist() == [4, 5, 4, 4, 5, 4]
    assert twice.max_tokens.tolist() == [-1, 2, 9, -1, 2, 9]
    assert three().repeat(1).digest == three().digest


def test_repeat_with_new_prompts_shares_nothing_between_passes() -> None:
    """Within a pass the sharing is that of the trace."""
    twice = three().repeat(2, new_prompts=True)
    assert twice.hash_ids.tolist() == [4, 5, 4, 10, 11, 10]


def test_repr_names_the_trace_and_its_size() -> None:
    """The columns themselves would fill the screen."""
    assert repr(three()) == "<Trace 'three' (columns), 3 requests>"


def test_wrong_parameters_say_what_is_allowed() -> None:
    """Full text of each refusal."""
    trace = three()
    refusals: list[tuple[Callable[[], Trace], str]] = [
        (lambda: trace.limit(0), "a trace can be limited to 1 request or more, not to 0"),
        (lambda: trace.speed(0), "speed must be a positive number, not 0"),
        (lambda: trace.speed(float("nan")), "speed must be a positive number, not nan"),
        (
            lambda: trace.speed(1e-15),
            "speed 1e-15 moves the last arrival beyond 2**62 ns (146 years)",
        ),
        (
            lambda: trace.poisson(-1, 0),
            "rate must be a positive number of requests/s, not -1",
        ),
        (
            lambda: trace.poisson(1e-12, 0),
            "rate 1e-12/s moves the last arrival beyond 2**62 ns (146 years)",
        ),
        (lambda: trace.repeat(0), "a trace can be played 1 time or more, not 0"),
        (
            lambda: replace(trace, arrivals_ns=ints(0, 0, 2**61)).repeat(3),
            "3 passes move arrivals or hash ids beyond 2**62",
        ),
    ]
    for call, sentence in refusals:
        with pytest.raises(ValueError, match=r"^\S") as caught:
            call()
        assert str(caught.value) == sentence
