"""The unbatched truth: what each request's output must be, whatever the scheduler did.

The next token is a hash of the whole history and its position, so a wrong fill, a stale block, a
lost or a doubled token changes every token after it. `HashModel.output` runs one request alone,
straight through; the simulated device of `stepahead_specs.bench` computes the same chain piecewise
through block tables and batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MASK: Final = (1 << 64) - 1


def mix(value: int) -> int:
    """Scramble 64 bits; the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client asks for, prompt and planned end included.

    Args:
        request_id: the client's label.
        prompt: tokens; two prompts with an equal prefix share KV blocks where caching is on.
        max_tokens: output tokens at most.
        eos_at: output index from which on the model would sample EOS, or None for never.
        priority, min_tokens, ignore_eos, stop_token_ids: as in `stepahead.RequestArrived`.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    eos_at: int | None = None
    priority: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HashModel:
    """A model without weights: a token is the hash of its history, EOS only where planned."""

    vocabulary: int = 97
    eos: int | None = None
    seed: int = 0

    def start(self) -> int:
        """Return the state before any token."""
        return mix(self.seed)

    def read(self, state: int, token: int, position: int) -> int:
        """Return the state after one more token."""
        return mix(state ^ mix((token << 24) + position + 1))

    def sample(self, state: int, ask: Ask, index: int) -> int:
        """Return output token ``index`` after a history with this state."""
        if self.eos is not None and ask.eos_at is not None and index >= ask.eos_at:
            return self.eos
        token = state % self.vocabulary
        return (token + 1) % self.vocabulary if token == self.eos else token

    def output(self, ask: Ask, max_model_len: int) -> tuple[list[int], str]:
        """Run ``ask`` alone; return its output tokens and the finish reason, stop or length."""
        state = self.start()
        for position, token in enumerate(ask.prompt):
            state = self.read(state, token, position)
        limit = min(ask.max_tokens, max_model_len - len(ask.prompt))
        stops = set(ask.stop_token_ids)
        if self.eos is not None and not ask.ignore_eos:
            stops.add(self.eos)
        tokens: list[int] = []
        while True:
            token = self.sample(state, ask, len(tokens))
            tokens.append(token)
            if token in stops and len(tokens) >= ask.min_tokens:
                return tokens, "stop"
            if len(tokens) == limit:
                return tokens, "length"
            state = self.read(state, token, len(ask.prompt) + len(tokens) - 1)


class Interner:
    """Content identities of full prompt blocks: equal keys mean equal content and equal prefix."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ids: dict[tuple[int, ...], int] = {}

    def keys(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return one dense key per full block of ``prompt``."""
        size = self._block_size
        ends = range(size, len(prompt) + 1, size)
        return tuple(self._ids.setdefault(tuple(prompt[:end]), len(self._ids)) for end in ends)
