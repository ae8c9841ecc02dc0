"""Token times, stored as ranges of emissions."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepahead.arrays import EMPTY
from stepahead.commands import EmitTokens
from stepahead_models.emissions import Emissions
from stepahead_models.tokens import checksum_words


@st.composite
def _runs(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Return commands as (handles, steps)."""
    subsets = st.lists(st.integers(1, 6), min_size=1, max_size=6, unique=True)
    return draw(st.lists(st.tuples(subsets, st.integers(1, 3)), min_size=1, max_size=20))


@given(_runs(), st.integers(0, 3))
def test_ranges_hold_every_token_and_every_gap(
    runs: list[tuple[list[int], int]], flush_every: int
) -> None:
    """Rebuilt from ranges, each request has its tokens at their times, however buffered."""
    emissions = Emissions()
    emissions.make_room(6)
    expected: dict[int, list[int]] = {}
    checksums: Counter[int] = Counter()
    clock = 0
    for number, (handles, steps) in enumerate(runs):
        offsets = np.array([len(expected.get(handle, [])) for handle in handles])
        tokens = np.arange(steps * len(handles)).reshape(steps, len(handles)) * 7 + number
        times = [clock + 10 * (step + 1) + number for step in range(steps)]
        clock = times[-1]
        command = EmitTokens(
            batch_id=number + 1, handles=np.array(handles), offsets=offsets, tokens=tokens
        )
        emissions.add(command, np.array(times[:-1], dtype=np.int64), times[-1])
        words = checksum_words(tokens, offsets + np.arange(steps)[:, None])
        for place, handle in enumerate(handles):
            expected.setdefault(handle, []).extend(times)
            checksums[handle] += int(words[:, place].sum(dtype=np.uint64))
        if flush_every and number % flush_every == 0:
            emissions.flush()
    segments = emissions.segments()
    found: dict[int, list[int]] = {}
    for handle, first, last in segments.T.tolist():
        found.setdefault(handle, []).extend(emissions.times[first : last + 1])
    assert {handle: sorted(times) for handle, times in found.items()} == expected
    for handle, times in expected.items():
        ends = emissions.out(np.array([emissions.first[handle], emissions.last[handle]]))
        assert ends.tolist() == [times[0], times[-1]]
        assert int(emissions.checksums[handle]) == checksums[handle] % (1 << 64)


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_step_with_drafts_is_one_emission_of_several_tokens(
    steps: list[list[int]],
    flush: bool,  # noqa: FBT001
) -> None:
    """Three requests; checksums are those of the same tokens one by one, times those of steps."""
    together, apart = Emissions(), Emissions()
    handles = np.arange(1, 4)
    for emissions in (together, apart):
        emissions.make_room(3)
    offsets = np.zeros(3, dtype=np.int64)
    for number, given_counts in enumerate(steps):
        counts = np.array(given_counts)
        tokens = np.arange(15).reshape(5, 3) * 7 + number
        command = EmitTokens(
            batch_id=number + 1, handles=handles, offsets=offsets, tokens=tokens, counts=counts
        )
        together.add(command, EMPTY, 10 * number)
        for place in range(3):
            for step in range(given_counts[place]):
                one = EmitTokens(
                    batch_id=number + 1,
                    handles=handles[place : place + 1],
                    offsets=offsets[place : place + 1] + step,
                    tokens=tokens[step : step + 1, place : place + 1],
                )
                apart.add(one, EMPTY, 10 * number)
        offsets = offsets + counts
        if flush:
            together.flush()
    segments = together.segments()
    apart.flush()
    assert together.checksums.tolist() == apart.checksums.tolist()
    assert together.extra[1:4].tolist() == (offsets - len(steps)).tolist()
    assert segments.tolist() == [[1, 2, 3], [0] * 3, [len(steps) - 1] * 3]
    assert together.times.tolist() == [10 * number for number in range(len(steps))]


def test_a_request_without_tokens_has_no_time() -> None:
    """-1 stands for what did not happen, also when nothing was ever emitted."""
    emissions = Emissions()
    emissions.make_room(2)
    assert emissions.segments().shape == (3, 0)
    assert emissions.out(emissions.first[:1]).tolist() == [-1]
