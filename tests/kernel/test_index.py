"""The key index against a dictionary, over keys that spread far wider than its pages."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from stepahead.index import UNKNOWN, KeyIndex

# Neighbours within a page, at its edges, and pages far apart.
KEYS = st.sampled_from(
    [(page << 9) + place for page in (0, 1, 2, 3, 50, 1 << 20) for place in (0, 1, 255, 510, 511)]
)
SOME = st.lists(KEYS, unique=True, max_size=8)


class IndexMachine(RuleBasedStateMachine):
    """Keys are put, found, dropped; a dictionary does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.index = KeyIndex(110)
        self.index.make_room((1 << 29) + 511)
        self.plain: dict[int, int] = {}

    @rule(keys=SOME, first=st.integers(0, 99))
    def put(self, keys: list[int], first: int) -> None:
        """Distinct keys lead to their blocks from now on, which have no other."""
        blocks = range(first, first + len(keys))
        self.plain = {key: block for key, block in self.plain.items() if block not in blocks}
        self.index.put(np.array(keys, dtype=np.int64), np.array(blocks, dtype=np.int64))
        self.plain.update(zip(keys, blocks, strict=True))

    @rule(blocks=st.lists(st.integers(0, 109), max_size=50))
    def drop(self, blocks: list[int]) -> None:
        """A block that has no key any more is not found by it."""
        self.index.key[blocks] = UNKNOWN
        self.plain = {key: block for key, block in self.plain.items() if block not in blocks}

    @rule(keys=SOME)
    def find(self, keys: list[int]) -> None:
        """What was put last is found, and nothing else."""
        found = self.index.find(np.array(keys, dtype=np.int64))
        expected = [self.plain.get(key, UNKNOWN) for key in keys]
        assert found.tolist() == expected
        prefix = [*takewhile(lambda block: block != UNKNOWN, expected)]
        assert self.index.prefix(np.array(keys, dtype=np.int64)).tolist() == prefix

    @invariant()
    def agrees(self) -> None:
        """Both know the same."""
        keys, blocks = self.index.known()
        assert keys.tolist() == sorted(self.plain)
        assert dict(zip(keys.tolist(), blocks.tolist(), strict=True)) == self.plain
        assert self.index.find(np.array([UNKNOWN])).tolist() == [UNKNOWN]


def test_the_index_agrees_with_a_dictionary_whatever_is_asked_of_it() -> None:
    """Put, find and drop, in any sequence."""
    run_state_machine_as_test(IndexMachine)


def test_its_memory_follows_the_known_keys_not_the_largest_one() -> None:
    """A million contents that come and go need no more cells than the thousand known at a time."""
    index = KeyIndex(1000)
    blocks = np.arange(1000)
    sizes: set[int] = set()
    for first in range(0, 1_000_000, 1000):
        keys = np.arange(first, first + 1000)
        index.make_room(first + 999)
        index.put(keys, blocks)
        sizes.add(index.size)
        index.key[blocks] = UNKNOWN
    assert max(sizes) <= 8 * 1024


def test_a_page_that_is_taken_back_may_be_one_that_is_wanted() -> None:
    """Room for a new page comes from an empty one, even if the same call writes to that one."""
    index = KeyIndex(10_000)
    index.make_room(10_000)
    for first in range(0, 8192, 512):
        keys = np.arange(first, first + 600)
        index.put(keys, keys)
        assert index.find(keys).tolist() == keys.tolist()
        index.key[keys] = UNKNOWN


@pytest.mark.parametrize("known", [0, 1, 63, 64, 65, 256, 257, 999, 1000])
def test_a_prefix_is_found_whole_however_long_it_is(known: int) -> None:
    """The first keys are looked up first, and more of them where all those are known."""
    index, keys = KeyIndex(1000), np.arange(1000)
    index.make_room(999)
    index.put(keys, keys[::-1])
    index.key[keys[::-1][known : known + 1]] = UNKNOWN
    assert index.prefix(keys).tolist() == keys[::-1][:known].tolist()


def test_room_grows_page_by_page_and_keeps_what_is_known() -> None:
    """Every key below it may be asked for, the last one too, and so may -1."""
    index = KeyIndex(40)
    known: dict[int, int] = {}
    for page in range(40):
        key = 512 * page + page
        index.make_room(key)
        assert key < index.room <= 2 * key + 2048
        index.put(np.array([key]), np.array([page]))
        known[key] = page
        assert index.find(np.array(list(known))).tolist() == list(known.values())
        others = np.array([-1, index.room - 1, key - 1])
        assert index.find(others).tolist() == [UNKNOWN] * 3
    before = index.room
    index.make_room(0)
    assert index.room == before
