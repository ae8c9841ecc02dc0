"""Keys of prompt blocks: what is shared, what is not, and that they are dense."""

from collections.abc import Sequence

import numpy as np
import pytest

from stepahead_models.traces import BlockKeys, Trace, block_keys


def prompts(size: int, *requests: tuple[int, Sequence[int]]) -> Trace:
    """A trace of (input length, hash ids), all arriving at once."""
    count = len(requests)
    none = np.full(count, -1, dtype=np.int64)
    return Trace(
        request_ids=tuple(f"r{index}" for index in range(count)),
        arrivals_ns=np.zeros(count, dtype=np.int64),
        input_lengths=np.array([length for length, _ in requests], dtype=np.int64),
        output_lengths=np.ones(count, dtype=np.int64),
        max_tokens=none,
        cancel_after_ns=none,
        cancel_after_tokens=none,
        priorities=none + 1,
        hash_offsets=np.cumsum([0, *(len(ids) for _, ids in requests)]).astype(np.int64),
        hash_ids=np.array([value for _, ids in requests for value in ids], dtype=np.int64),
        hash_block_size=size,
        name="prompts",
    )


def all_keys(keys: BlockKeys) -> list[list[int]]:
    """Keys of every request."""
    return [keys.keys_of(index).tolist() for index in range(keys.offsets.size - 1)]


def test_only_blocks_wholly_inside_the_prompt_have_keys() -> None:
    """A hash block of 8 in blocks of 2; the last block of 13 tokens is not full."""
    keys = block_keys(prompts(8, (13, [5, 6])), 2)
    assert all_keys(keys) == [[0, 1, 2, 3, 4, 5]]
    assert (keys.key_count, keys.block_count_of(0)) == (6, 6)


def test_equal_hash_ids_share_every_block_and_other_ids_none() -> None:
    """Ids far apart become dense keys."""
    keys = block_keys(prompts(4, (8, [7, 2**62]), (8, [7, 9]), (4, [7])), 2)
    first, second, third = all_keys(keys)
    assert first[:2] == second[:2] == third
    assert not set(first[2:]) & set(second[2:])
    assert sorted({*first, *second}) == list(range(keys.key_count)) == list(range(6))


def test_partial_tail_is_shared_only_at_the_same_token_count() -> None:
    """One id for 8, 5 and 5 tokens: the two of 5 are the same content, the 8 is not known to be."""
    whole, tail, same = all_keys(block_keys(prompts(8, (8, [3]), (5, [3]), (5, [3])), 2))
    assert tail == same
    assert (len(whole), len(tail)) == (4, 2)
    assert not set(whole) & set(tail)


def test_tail_without_an_id_has_no_keys() -> None:
    """Content that the trace does not identify is never shared."""
    assert all_keys(block_keys(prompts(4, (7, [1])), 2)) == [[0, 1]]


def test_id_behind_another_prefix_is_another_block() -> None:
    """Ids of the content alone must not make a cache hit across prefixes."""
    first, second, third = all_keys(
        block_keys(prompts(2, (4, [1, 3]), (4, [2, 3]), (4, [3, 3])), 2)
    )
    assert len({first[1], second[1], third[0], third[1]}) == 4


def test_larger_blocks_join_hash_ids_and_keep_the_prefix() -> None:
    """Two ids of 2 tokens make a block of 4; an odd or partial one at the end makes none."""
    trace = prompts(2, (7, [0, 1, 2, 3]), (8, [0, 1, 2, 4]), (4, [0, 5]), (2, [0]))
    first, second, third, fourth = all_keys(block_keys(trace, 4))
    assert (len(first), len(second), len(third), len(fourth)) == (1, 2, 1, 0)
    assert first[0] == second[0]
    assert third[0] not in second
    assert block_keys(trace, 4).key_count == 3


def test_requests_without_hash_ids_have_no_keys() -> None:
    """Neither alone nor among others."""
    keys = block_keys(prompts(0, (64, []), (64, [])), 16)
    assert (keys.key_count, all_keys(keys)) == (0, [[], []])
    assert all_keys(block_keys(prompts(2, (2, [1]), (64, []), (2, [1])), 1)) == [[0, 1], [], [0, 1]]


def test_groups_can_be_compared_without_expanding_them() -> None:
    """The first keys agree exactly as far as the prompts do."""
    keys = block_keys(prompts(4, (8, [1, 2]), (8, [1, 3])), 2)
    assert keys.group_blocks == 2
    assert keys.group_offsets.tolist() == [0, 2, 4]
    first = keys.group_first_keys
    assert (first[0] == first[2], first[1] == first[3]) == (True, False)


@pytest.mark.parametrize("block_size", [24, 1000])
def test_block_size_that_cannot_share_is_refused(block_size: int) -> None:
    """Full text: which sizes would do."""
    with pytest.raises(ValueError, match=r"^trace") as caught:
        block_keys(prompts(512, (600, [1, 2])), block_size)
    assert str(caught.value) == (
        f"trace 'prompts' has hash ids for 512 tokens, which a block size of {block_size} cannot "
        "share; use a divisor or a multiple of 512"
    )


def test_block_size_below_one_is_refused() -> None:
    """Full text."""
    with pytest.raises(ValueError, match=r"^block_size must be at least 1 token, not 0$"):
        block_keys(prompts(512, (600, [1, 2])), 0)
