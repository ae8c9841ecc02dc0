"""Simulated KV memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepahead_models.memory import KvMemory


@given(
    size=st.integers(1, 5),
    position=st.integers(0, 12),
    count=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_a_run_lands_where_reads_through_the_table_find_it(
    size: int, position: int, count: int, seed: int
) -> None:
    """Whatever the alignment, position p is at place p % size of block p // size of the table."""
    slots = -(-(position + count) // size)
    memory = KvMemory(slots + 3, size)
    table = np.random.default_rng(seed).permutation(slots + 3)[:slots]
    words = np.arange(1, count + 1, dtype=np.uint64)
    memory.write_run(table, position, words)
    places = np.arange(position, position + count)
    assert memory.read(table[places // size], places % size).tolist() == words.tolist()
    everywhere = memory.read(
        np.repeat(np.arange(slots + 3), size), np.tile(np.arange(size), slots + 3)
    )
    assert np.count_nonzero(everywhere) == count


def test_single_words_and_block_ends_are_those_that_were_written() -> None:
    """One word per row, written and read back, and the last word of each block."""
    memory = KvMemory(3, 2)
    memory.write(np.array([2, 0]), np.array([1, 0]), np.array([5, 6], dtype=np.uint64))
    assert memory.read_one(2, 1) == 5
    assert memory.read_one(0, 0) == 6
    assert memory.ends(np.array([2, 0])).tolist() == [5, 0]
