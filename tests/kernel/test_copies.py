"""A copy of the kernel, taken anywhere, goes on as the original does and leaves it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead import Kernel
from stepahead.columns import COLUMNS, Columns
from stepahead.commands import Command
from stepahead_specs.bench import Bench
from stepahead_specs.runs import walked, wandered


def said(commands: Sequence[Command]) -> str:
    """Return commands as text, arrays in full."""
    with np.printoptions(threshold=10**6):
        return repr(commands)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("run", [walked, partial(wandered, steps=20)], ids=["plain", "tiers"])
def test_a_copy_taken_anywhere_goes_on_as_the_original(
    run: Callable[[int], Bench], seed: int
) -> None:
    """Two kernels take turns: one takes the event, the other one gets its copy from before.

    So every event is taken by a restored kernel, after the copied one has gone on already.
    """
    bench = run(seed)
    first, second = Kernel(bench.config), Kernel(bench.config)
    for event, commands in bench.journal:
        saved, before = first.snapshot(), first.digest()
        counted = first.counters.values()
        assert said(first.step(event)) == said(commands)
        after, counts = first.digest(), first.counters.values()
        second.restore(saved)
        assert (second.digest(), second.counters.values()) == (before, counted)
        assert second.audit().problems == ()
        assert said(second.step(event)) == said(commands)
        assert (second.digest(), second.counters.values()) == (after, counts)
        assert first.digest() == after
        second.restore(saved)
        assert second.digest() == before, "a snapshot is good for more than one restore"
        second.restore(first.snapshot())
        first, second = second, first


@given(
    seats=st.integers(1, 4),
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90)), max_size=12),
)
def test_sampled_tokens_stay_when_a_longer_output_is_seated(
    seats: int, moves: list[tuple[int, int]]
) -> None:
    """The room for outputs grows, never shrinks, and is of integers; what stands there stays."""
    columns = Columns(seats, 2)
    columns.free_seats.clear()
    expected: dict[int, list[int]] = {seat: [] for seat in range(seats)}
    for seat, outputs in ((seat % seats, outputs) for seat, outputs in moves):
        width = columns.tokens.shape[1]
        columns.widen(outputs)
        assert columns.tokens.shape == (seats, columns.tokens.shape[1])
        assert columns.tokens.shape[1] >= max(width, outputs)
        assert columns.tokens.shape[1] <= max(2 * width, outputs)
        assert columns.tokens.dtype == np.int64
        if outputs <= width:
            assert columns.tokens.shape[1] == width
        expected[seat] = [outputs * 1000 + n for n in range(outputs)]
        columns.tokens[seat, :outputs] = expected[seat]
        columns.prompt[seat] = 5
        columns.known[seat] = 5 + outputs
        for other, tokens in expected.items():
            sampled = columns.sampled(other)
            assert sampled.tolist() == tokens
            sampled[:] = -1
            assert columns.sampled(other).tolist() == tokens


def test_every_column_is_a_row_of_its_own_and_starts_empty() -> None:
    """A fact of one seat is neither another fact nor another seat's; seats are taken in order."""
    columns = Columns(3, 5)
    assert columns.table.shape == (3, 5)
    assert columns.tokens.shape[0] == 3
    assert [columns.free_seats.pop() for _ in range(3)] == [0, 1, 2]
    for array in (columns.arena, columns.table, columns.tokens):
        assert array.dtype == np.int64
        assert not array.any()
    for number, name in enumerate(COLUMNS, start=1):
        getattr(columns, name)[1] = number
    assert columns.arena[:, 1].tolist() == list(range(1, len(COLUMNS) + 1))
    assert not columns.arena[:, [0, 2]].any()
    columns.blocks[1] = 3
    columns.table[1] = (7, 8, 9, 4, 4)
    assert columns.held(1).tolist() == [7, 8, 9]
