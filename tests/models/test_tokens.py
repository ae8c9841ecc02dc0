"""Prompts and sampled tokens as functions of history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead_models.tokens import (
    HistoryHash,
    Prompts,
    checksum_words,
    mix64,
    mix64_int,
    reference_tokens,
)
from stepahead_models.traces import Trace, block_keys

WORDS = st.integers(min_value=0, max_value=(1 << 64) - 1)


def _trace(lengths: list[int], hash_ids: list[list[int]], size: int) -> Trace:
    count = len(lengths)
    never = np.full(count, -1, dtype=np.int64)
    return Trace(
        request_ids=tuple(f"r{index}" for index in range(count)),
        arrivals_ns=np.zeros(count, dtype=np.int64),
        input_lengths=np.array(lengths),
        output_lengths=np.ones(count, dtype=np.int64),
        max_tokens=never,
        cancel_after_ns=never,
        cancel_after_tokens=never,
        priorities=np.zeros(count, dtype=np.int64),
        hash_offsets=np.cumsum([0, *map(len, hash_ids)]),
        hash_ids=np.array([entry for ids in hash_ids for entry in ids], dtype=np.int64),
        hash_block_size=size,
    )


def _prompts(trace: Trace) -> Prompts:
    return Prompts(
        request_ids=trace.request_ids,
        lengths=trace.input_lengths,
        vocab_size=1000,
        hash_offsets=trace.hash_offsets,
        hash_ids=trace.hash_ids,
        hash_block_size=trace.hash_block_size,
    )


@given(st.lists(WORDS, min_size=1))
def test_words_mix_alike_in_arrays_and_alone(words: list[int]) -> None:
    """The oracle mixes Python integers, the executor arrays; they must agree bit by bit."""
    mixed = mix64(np.array(words, dtype=np.uint64))
    assert mixed.tolist() == [mix64_int(word) for word in words]


@given(st.lists(WORDS, min_size=1), st.sampled_from([None, 0, 5, 9]))
def test_sampled_tokens_stay_in_the_vocabulary_and_are_never_eos(
    states: list[int], eos: int | None
) -> None:
    """Only the trace decides where EOS comes."""
    tokens = HistoryHash(vocab_size=10, eos_token_id=eos).sample(np.array(states, dtype=np.uint64))
    assert tokens.min() >= 0
    assert tokens.max() < 10
    assert eos not in tokens.tolist()


@pytest.mark.parametrize(("start", "stop"), [(0, 20), (3, 5), (7, 9), (8, 16), (15, 20), (18, 20)])
def test_a_part_of_a_prompt_is_a_slice_of_the_whole(start: int, stop: int) -> None:
    """Chunks of a prompt see the same tokens as the prompt in one piece, also past its hash ids."""
    prompts = _prompts(_trace([20, 20], [[4, 5, 6], [4, 5]], 8))
    for index in range(2):
        part = prompts.tokens(index, start, stop)
        assert part.tolist() == prompts.tokens(index)[start:stop].tolist()


def test_equal_hash_ids_are_equal_content_and_a_partial_block_is_its_own() -> None:
    """Prompts agree on shared whole blocks; a partial block agrees with its like only."""
    prompts = _prompts(_trace([20, 18, 20, 24], [[4, 5, 6], [4, 5, 6], [4, 5, 6], [4, 5, 6]], 8))
    first, shorter, same, longer = (prompts.tokens(index) for index in range(4))
    assert first.tolist() == same.tolist()
    assert first[:16].tolist() == shorter[:16].tolist() == longer[:16].tolist()
    assert first[16:18].tolist() != shorter[16:18].tolist()
    assert first[16:20].tolist() != longer[16:20].tolist()


@given(st.data())
def test_equal_block_keys_mean_equal_tokens(data: st.DataObject) -> None:
    """What the kernel is told to share is what the prompts really share."""
    size, block = 8, data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    ids = [
        [7 * depth + data.draw(st.integers(0, 1)) for depth in range(-(-length // size))]
        for length in lengths
    ]
    trace = _trace(lengths, ids, size)
    prompts, keys = _prompts(trace), block_keys(trace, block)
    content: dict[int, list[int]] = {}
    for index in range(len(lengths)):
        tokens = prompts.tokens(index)
        for depth, key in enumerate(keys.keys_of(index).tolist()):
            prefix = tokens[: (depth + 1) * block].tolist()
            assert content.setdefault(key, prefix) == prefix


def test_reference_tokens_depend_on_seed_prompt_and_eos_only_at_its_place() -> None:
    """The oracle is a function of seed and history; EOS replaces one token and changes the rest."""
    prompts = _prompts(_trace([5, 5], [[], []], 0))
    model = HistoryHash(vocab_size=1000, eos_token_id=7)
    tokens = reference_tokens(model, prompts, 0, 6)
    assert tokens.tolist() == reference_tokens(model, prompts, 0, 6).tolist()
    other_seed = HistoryHash(seed=1, vocab_size=1000, eos_token_id=7)
    assert tokens.tolist() != reference_tokens(other_seed, prompts, 0, 6).tolist()
    assert tokens.tolist() != reference_tokens(model, prompts, 1, 6).tolist()
    with_eos = reference_tokens(model, prompts, 0, 6, eos_at=4)
    assert with_eos[:3].tolist() == tokens[:3].tolist()
    assert with_eos[3] == 7
    assert with_eos[4:].tolist() != tokens[4:].tolist()


def test_checksums_see_token_and_place() -> None:
    """Swapping two tokens changes the sum of their words."""
    words = checksum_words(np.array([3, 4]), np.array([0, 1]))
    swapped = checksum_words(np.array([4, 3]), np.array([0, 1]))
    assert words.sum(dtype=np.uint64) != swapped.sum(dtype=np.uint64)
    assert len({*words.tolist(), *swapped.tolist()}) == 4
