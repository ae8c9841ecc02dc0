"""Speculative decoding: who proposes which tokens, whether they are right, and what that costs.

The host proposes, the simulated NPU computes the proposals as inputs and samples behind each, and a
proposal counts as accepted if it is what was sampled before it. So acceptance is a result, not a
setting: what is set is how often the proposer knows the token that will come. It knows it from the
prompt and the output alone, as `stepahead_models.tokens.reference_tokens` does, never from KV
memory; a wrong fill or a stale block then shows as rejected drafts, not as wrong drafts that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from stepahead.arrays import Ints, Mask
from stepahead_models.errors import SimulationError
from stepahead_models.tokens import HistoryHash, Prompts, Words, mix64

_MILLION: Final = 1_000_000
_MASK: Final = (1 << 64) - 1
# Odd constants without structure: digits of the golden ratio, of the square root of 2, and of pi.
_REQUEST_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_PLACE_FACTOR: Final = np.uint64(0x6A09E667F3BCC909)
_SEED_FACTOR: Final = 0x243F6A8885A308D3
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64((1 << 32) - 1)
_NOT_BEGUN: Final = -1


class Samples(NamedTuple):
    """What a device step returns.

    Args:
        tokens: sampled tokens, shape ``(steps, sampling rows)``; with drafts, one step, and shape
            ``(1 + most drafts, sampling rows)``: the first ``accepted + 1`` of each column count.
        accepted: accepted drafts, shape ``(sampling rows,)``; None where no row had any.
    """

    tokens: Ints
    accepted: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCosts:
    """What the proposer takes of the host's time before a batch is ready; both in ns.

    Args:
        step_ns: each of its passes over the batch; the k-th pass proposes the k-th token of every
            row that has so many drafts.
        token_ns: each proposed token.
    """

    step_ns: int
    token_ns: int

    def total_ns(self, drafts: Ints) -> int:
        """Return the time for a batch; ``drafts`` has shape ``(rows,)``."""
        return self.step_ns * int(drafts.max(initial=0)) + self.token_ns * int(drafts.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How often a proposed token is right, given that those before it are.

    Whether it is depends on the seed, the request and the place in its output, and on nothing else:
    the same under every schedule, draft width and token model.

    Args:
        seed: any integer.
        probability_ppm: in parts per million, from 0 to a million.

    Raises:
        SimulationError: the probability is out of range.
    """

    seed: int
    probability_ppm: int

    def __post_init__(self) -> None:
        if not 0 <= self.probability_ppm <= _MILLION:
            raise SimulationError(
                f"an acceptance of {self.probability_ppm} ppm is no probability; give 0 to "
                f"{_MILLION}"
            )

    def draw(self, requests: Ints, offsets: Ints) -> Words:
        """Return the random word of each place; request numbers and output offsets broadcast."""
        words = requests.astype(np.uint64) * _REQUEST_FACTOR
        words = words + offsets.astype(np.uint64) * _PLACE_FACTOR
        words += np.uint64(self.seed * _SEED_FACTOR & _MASK)
        return mix64(words)

    def right(self, words: Words) -> Mask:
        """Tell of each random word whether the token proposed there is right."""
        below = np.uint64((self.probability_ppm << 32) // _MILLION)
        right: Mask = (words >> _HALF) < below
        return right

    def accepted(self, requests: Ints, offsets: Ints, counts: Ints) -> Ints:
        """Return how many drafts of each row are accepted; every argument has shape ``(rows,)``.

        Args:
            requests: request numbers.
            offsets: output offset of each row's first draft.
            counts: drafts of each row.
        """
        ahead = np.arange(int(counts.max(initial=0)), dtype=np.int64)[:, None]
        return leading(self.right(self.draw(requests, offsets + ahead)) & (ahead < counts))


def leading(hits: Mask) -> Ints:
    """Count the hits before the first miss in each column of ``hits``, shape ``(drafts, rows)``."""
    counts: Ints = np.cumprod(hits, axis=0, dtype=np.int64).sum(axis=0, dtype=np.int64)
    return counts


class Drafter:
    """Proposes tokens that are right as often as an `Acceptance` says, and otherwise differ.

    Args:
        model: the token model of the target.
        prompts: prompts of all requests.
        eos_at: output position, counted from 1, at which a request ends by EOS; -1 for never.
            Shape ``(requests,)``.
        acceptance: how often it is right.
    """

    def __init__(
        self, model: HistoryHash, prompts: Prompts, eos_at: Ints, acceptance: Acceptance
    ) -> None:
        count = len(eos_at)
        self._model: Final = model
        self._prompts: Final = prompts
        self._eos_offsets: Final = np.where(eos_at > 0, eos_at - 1, _NOT_BEGUN)
        self._acceptance: Final = acceptance
        #: State of each request before the output token of this offset.
        self._states: Final = np.zeros(count, dtype=np.uint64)
        self._offsets: Final = np.full(count, _NOT_BEGUN, dtype=np.int64)

    def propose(self, requests: Ints, offsets: Ints, counts: Ints) -> Ints:
        """Return the drafts of a batch, shape ``(most drafts, rows)``.

        A row's column holds as many as it has; what lies below means nothing.

        Args:
            requests: request numbers, each at most once; shape ``(rows,)``.
            offsets: output offset of each row's first draft; shape ``(rows,)``.
            counts: drafts of each row; shape ``(rows,)``.
        """
        self._catch_up(requests, offsets)
        states = self._states[requests]
        drafts = np.empty((int(counts.max(initial=0)), len(requests)), dtype=np.int64)
        for ahead in range(len(drafts)):
            places = offsets + ahead
            tokens = self._following(requests, states, places)
            words = self._acceptance.draw(requests, places)
            drafts[ahead] = np.where(
                self._acceptance.right(words), tokens, self._other_than(tokens, words)
            )
            states += self._contributions(requests, tokens, places)
        return drafts

    def _catch_up(self, requests: Ints, offsets: Ints) -> None:
        """Bring the states of requests to these offsets."""
        known = self._offsets[requests]
        for request in requests[(known < 0) | (known > offsets)].tolist():
            prompt = self._prompts.tokens(request)
            words = self._model.contributions(prompt, np.arange(len(prompt), dtype=np.int64))
            self._states[request] = (self._model.origin + int(words.sum(dtype=np.uint64))) & _MASK
            self._offsets[request] = 0
        while True:
            behind = self._offsets[requests] < offsets
            late = requests[behind]
            if not len(late):
                return
            places = self._offsets[late]
            tokens = self._following(late, self._states[late], places)
            self._states[late] += self._contributions(late, tokens, places)
            self._offsets[late] = places + 1

    def _following(self, requests: Ints, states: Words, offsets: Ints) -> Ints:
        """Return the output token at each offset, from the state before it."""
        tokens = self._model.sample(states)
        if self._model.eos_token_id is not None:
            tokens[self._eos_offsets[requests] == offsets] = self._model.eos_token_id
        return tokens

    def _contributions(self, requests: Ints, tokens: Ints, offsets: Ints) -> Words:
        return self._model.contributions(tokens, self._prompts.lengths[requests] + offsets)

    def _other_than(self, tokens: Ints, words: Words) -> Ints:
        """Return a token of the vocabulary that differs from each of ``tokens``."""
        size = self._model.vocab_size
        steps = ((words & _LOW) % np.uint64(size - 1)).astype(np.int64)
        return (tokens + 1 + steps) % size
