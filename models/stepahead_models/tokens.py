"""Token models: what a model would say next, without a model.

`HistoryHash` makes every sampled token a function of the whole history as it was read from
simulated KV memory, so that one wrong fill, one stale block or one lost token changes every later
token of the request. `reference_tokens` computes the same tokens one request at a time, from the
prompt alone: it knows no batch, block or kernel.

The state of a sequence after position ``p`` is one 64-bit word, the sum of the contributions of
all its tokens up to ``p``. A sum of mixed words, and not a chained hash, because a whole prompt
chunk is then one cumulative sum. It does not resist an adversary, and need not.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

_MASK: Final = (1 << 64) - 1
# Multipliers and shifts of the MurmurHash3 64-bit finaliser (public domain, A. Appleby).
_FIRST: Final = 0xFF51AFD7ED558CCD
_SECOND: Final = 0xC4CEB9FE1A85EC53
_FIRST_WORD: Final = np.uint64(_FIRST)
_SECOND_WORD: Final = np.uint64(_SECOND)
_SHIFT: Final = np.uint64(33)
_HALF: Final = np.uint64(32)
# Odd constants without structure: digits of the golden ratio, of pi and of e.
_TOKEN_FACTOR: Final = 0x9E3779B97F4A7C15
_PLACE_FACTOR: Final = 0x243F6A8885A308D3
_KEY_FACTOR: Final = 0xB7E151628AED2A6B


def mix64(words: Words) -> Words:
    """Mix every word in place, each bit of the input into each bit of the output, and return it."""
    words ^= words >> _SHIFT
    words *= _FIRST_WORD
    words ^= words >> _SHIFT
    words *= _SECOND_WORD
    words ^= words >> _SHIFT
    return words


def mix64_int(word: int) -> int:
    """Mix one word given as a Python integer; equal to `mix64` on one element."""
    word &= _MASK
    word ^= word >> 33
    word = word * _FIRST & _MASK
    word ^= word >> 33
    word = word * _SECOND & _MASK
    return word ^ word >> 33


def checksum_words(tokens: Ints, offsets: Ints) -> Words:
    """Return one word per output token; their sum over a request does not depend on order in time.

    Args:
        tokens: token ids, any shape.
        offsets: output positions counted from 0, a shape that broadcasts to that of ``tokens``.
    """
    words = tokens.view(np.uint64) * np.uint64(_TOKEN_FACTOR)
    words += offsets.view(np.uint64) * np.uint64(_PLACE_FACTOR) + np.uint64(_KEY_FACTOR)
    return mix64(words)


class HistoryHash:
    """The history-hash token model.

    Args:
        seed: any integer; another seed gives other tokens.
        vocab_size: token ids are below it; at least 2.
        eos_token_id: never sampled by the hash itself; None when no token is kept apart.
    """

    def __init__(
        self, *, seed: int = 0, vocab_size: int = 128_256, eos_token_id: int | None = None
    ) -> None:
        self.seed: Final = seed
        self.vocab_size: Final = vocab_size
        self.eos_token_id: Final = eos_token_id
        #: State of a sequence before its first token.
        self.origin: Final = mix64_int(seed ^ _KEY_FACTOR)
        self._choices: Final = np.uint64(vocab_size if eos_token_id is None else vocab_size - 1)
        self._token_factor: Final = np.uint64(_TOKEN_FACTOR)
        self._place_factor: Final = np.uint64(_PLACE_FACTOR)

    def contributions(self, tokens: Ints, positions: Ints) -> Words:
        """Return what each token at its position adds to the state; shapes broadcast."""
        words = tokens.view(np.uint64) * self._token_factor
        words += positions.view(np.uint64) * self._place_factor
        return mix64(words)

    def sample(self, states: Words) -> Ints:
        """Return the token that follows each state; shape as given, never the EOS token."""
        tokens = mix64(states.copy())
        tokens >>= _HALF
        tokens *= self._choices
        tokens >>= _HALF
        sampled = tokens.view(np.int64)
        if self.eos_token_id is not None:
            sampled += sampled >= self.eos_token_id
        return sampled


class Prompts:
    """The prompt tokens of a trace, computed when asked for and kept nowhere.

    With hash ids, a token is a function of the hash id of its block and its place in the block, so
    requests that share ids share content; the ids of public traces are chain hashes, so equal ids
    also mean equal places. The last block of a prompt may be partial: it stands for its own tokens
    only, so its length is part of its content. Without hash ids a token is a function of the
    request id and its place, and nothing is shared.

    Args:
        request_ids: one label per request.
        lengths: prompt tokens, shape ``(requests,)``.
        vocab_size: token ids are below it.
        hash_offsets: where each request's ids begin in ``hash_ids``, shape ``(requests + 1,)``.
        hash_ids: ids of the prompt's blocks of ``hash_block_size`` tokens.
        hash_block_size: 0 when the trace has no hash ids.
    """

    def __init__(  # noqa: PLR0913 - the columns of a trace
        self,
        *,
        request_ids: tuple[str, ...],
        lengths: Ints,
        vocab_size: int,
        hash_offsets: Ints | None = None,
        hash_ids: Ints | None = None,
        hash_block_size: int = 0,
    ) -> None:
        self.request_ids: Final = request_ids
        self.lengths: Final = lengths
        self._vocab_size: Final = np.uint64(vocab_size)
        if hash_offsets is None or hash_ids is None:
            hash_offsets = np.zeros(len(request_ids) + 1, dtype=np.int64)
            hash_ids = hash_offsets[:0]
        self._hash_offsets: Final = hash_offsets
        self._hash_ids: Final = hash_ids
        self._hash_block_size: Final = hash_block_size

    def tokens(self, index: int, start: int = 0, stop: int | None = None) -> Ints:
        """Return prompt tokens ``start`` up to ``stop`` of one request; shape (stop - start,)."""
        if stop is None:
            stop = int(self.lengths[index])
        covered = self._covered(index)
        parts: list[Words] = []
        if start < covered:
            parts.append(self._shared(index, start, min(stop, covered)))
        if stop > covered:
            parts.append(self._private(index, max(start, covered), stop))
        words = parts[0] if len(parts) == 1 else np.concatenate(parts)
        # Half a mix is enough here: the contribution of the token is mixed once more.
        words ^= words >> _HALF
        words *= _FIRST_WORD
        words >>= _HALF
        words *= self._vocab_size
        words >>= _HALF
        return words.view(np.int64)

    def _covered(self, index: int) -> int:
        """Count the prompt tokens that hash ids cover."""
        blocks = int(self._hash_offsets[index + 1] - self._hash_offsets[index])
        return min(int(self.lengths[index]), blocks * self._hash_block_size)

    def _shared(self, index: int, start: int, stop: int) -> Words:
        size, length = self._hash_block_size, int(self.lengths[index])
        origin = int(self._hash_offsets[index])
        block_first, block_end = start // size, -(-stop // size)
        keys = self._hash_ids[origin + block_first : origin + block_end].astype(np.uint64)
        keys *= np.uint64(_KEY_FACTOR)
        if block_end * size > length:
            keys[-1] ^= np.uint64(mix64_int(length % size))
        places = np.arange(size, dtype=np.uint64) * np.uint64(_PLACE_FACTOR)
        words = (keys[:, None] + places).ravel()
        return words[start - block_first * size : stop - block_first * size]

    def _private(self, index: int, start: int, stop: int) -> Words:
        digest = hashlib.blake2b(self.request_ids[index].encode(), digest_size=8).digest()
        words = np.arange(start, stop, dtype=np.uint64) * np.uint64(_PLACE_FACTOR)
        words += np.uint64(mix64_int(int.from_bytes(digest, "little")))
        return words


def reference_tokens(
    model: HistoryHash, prompts: Prompts, index: int, count: int, *, eos_at: int = -1
) -> Ints:
    """Return the first ``count`` output tokens of one request, with no batch, block or kernel.

    Args:
        model: the token model.
        prompts: the prompts of the trace.
        index: the request.
        count: how many output tokens.
        eos_at: the output position, counted from 1, at which the EOS token comes; -1 for never.
    """
    length = int(prompts.lengths[index])
    prompt = prompts.tokens(index)
    places = np.arange(length, dtype=np.int64)
    state = (model.origin + int(model.contributions(prompt, places).sum(dtype=np.uint64))) & _MASK
    tokens = np.empty(count, dtype=np.int64)
    for offset in range(count):
        token = (mix64_int(state) >> 32) * int(
            model.vocab_size - (model.eos_token_id is not None)
        ) >> 32
        if model.eos_token_id is not None:
            token = (
                model.eos_token_id
                if offset + 1 == eos_at
                else token + (token >= model.eos_token_id)
            )
        tokens[offset] = token
        word = token * _TOKEN_FACTOR + (length + offset) * _PLACE_FACTOR
        state = (state + mix64_int(word)) & _MASK
    return tokens
