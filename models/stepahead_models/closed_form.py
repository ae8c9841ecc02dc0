"""Tokens in closed form: a function of request and place, for runs that only want times.

The history hash computes each token from all before it, through simulated KV memory; that finds
every scheduling fault and costs most of a long replay. Here a token depends on the request's number
and on its place alone, so many steps are one multiplication and there is no memory to read.
**Nothing is checked this way**: a wrong fill or a stale block goes unnoticed. Times do not depend
on token values, so every figure but the tokens themselves is that of a checked run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from stepahead.arrays import Ints, Mask, arange, quick
from stepahead.commands import DispatchBatch, PrepareBatch
from stepahead.config import KernelConfig
from stepahead.stretches import Repeat
from stepahead_models.speculation import Acceptance, Samples
from stepahead_models.tokens import Words, mix64
from stepahead_models.workload import Workload

# Arrays without axes: NumPy takes them up faster than scalars.
_PLACE_FACTOR: Final = np.array(0x9E3779B97F4A7C15, dtype=np.uint64)
_SEED_FACTOR: Final = 0xB7E151628AED2A6B
_MASK: Final = (1 << 64) - 1
_HALF: Final = np.array(32, dtype=np.uint64)
#: The place of an EOS token that never comes.
_FAR: Final = 1 << 62
#: Of so many requests the outputs are worked out at once.
_WORKED_OUT_TOGETHER: Final = 64


class ClosedForm:
    """The closed-form token model.

    Args:
        seed: any integer; another seed gives other tokens.
        vocab_size: token ids are below it; at least 2.
        eos_token_id: below ``vocab_size``, sampled only where the trace says so; None when no token
            is kept apart.
    """

    def __init__(
        self, *, seed: int = 0, vocab_size: int = 128_256, eos_token_id: int | None = None
    ) -> None:
        self.eos_token_id: Final = eos_token_id
        self._seed: Final = np.uint64(seed * _SEED_FACTOR & _MASK)
        #: So many there are to choose from: every token id but that of EOS.
        self._count: Final = np.array(vocab_size - (eos_token_id is not None), dtype=np.uint64)
        #: What a place so many further on adds to the word, shape ``(steps, 1)``; grows with need.
        self._ahead = _words_ahead(64)

    def words(self, requests: Ints) -> Words:
        """Return the word that stands for each request number; shape as given."""
        return mix64(requests.astype(np.uint64) * _PLACE_FACTOR + self._seed)

    def sample(self, words: Words, places: Ints) -> Ints:
        """Return the token at each place in the sequence (prompt included); shapes broadcast."""
        return self._choose(places.view(np.uint64) * _PLACE_FACTOR + words)

    def sample_steps(self, words: Words, firsts: Ints, steps: int) -> Ints:
        """Return the tokens at ``steps`` places in a row; shape ``(steps, rows)``.

        Args:
            words: of the requests, shape ``(rows,)``.
            firsts: the first place of each, shape ``(rows,)``.
            steps: how many places.
        """
        mixed = firsts.view(np.uint64) * _PLACE_FACTOR
        mixed += words
        if steps == 1:
            return self._choose(mixed)[None, :]
        if steps > len(self._ahead):
            self._ahead = _words_ahead(2 * steps)
        return self._choose(mixed + self._ahead[:steps])

    def _choose(self, mixed: Words) -> Ints:
        """Return the token that each word chooses; the words are used up."""
        mixed >>= _HALF
        mixed *= self._count
        mixed >>= _HALF
        tokens = mixed.view(np.int64)
        if self.eos_token_id is not None:
            tokens += tokens >= self.eos_token_id
        return tokens

    def reference(self, request: int, prompt: int, count: int, *, eos_at: int = -1) -> Ints:
        """Return the first ``count`` output tokens of one request, as `reference_tokens` does."""
        places = np.arange(prompt, prompt + count, dtype=np.int64)
        tokens = self.sample(self.words(np.array([request])), places)
        if 0 < eos_at <= count and self.eos_token_id is not None:
            tokens[eos_at - 1] = self.eos_token_id
        return tokens


def _words_ahead(steps: int) -> Words:
    return (np.arange(steps, dtype=np.uint64) * _PLACE_FACTOR)[:, None]


class UncheckedExecutor:
    """Answers what `Executor` answers, without KV memory, inputs and sanitizer.

    A token needs nothing but its place, so all outputs of the run are worked out beforehand.

    Args:
        model: the token model.
        workload: the requests.
        config: the kernel's.
        acceptance: how often drafts are right; needed where the kernel speculates.
    """

    def __init__(
        self,
        model: ClosedForm,
        workload: Workload,
        config: KernelConfig,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._model: Final = model
        self._acceptance: Final = acceptance
        prompts = workload.prompts.lengths
        self._prompts: Final = prompts
        self._request_words: Final = model.words(np.arange(len(workload)))
        ends = workload.eos_at > 0
        self._request_eos: Final = np.where(ends, prompts + workload.eos_at - 1, _FAR)
        counts = np.minimum(workload.max_tokens, config.max_model_len - prompts)
        if model.eos_token_id is not None:
            # Behind its EOS token a request has at most the rows that were prepared by then.
            counts = np.where(ends, np.minimum(counts, workload.eos_at + config.lookahead), counts)
        counts = np.maximum(counts, 0)
        self._request_cells: Final = counts.cumsum() - counts - prompts
        self._tokens: Final = self._outputs(counts)
        #: By handle, of which there are at most as many as requests: its request, the place of the
        #: EOS token in the sequence, and what leads from a place to its cell among the tokens.
        self._requests: Final = quick(np.zeros(len(workload) + 1, dtype=np.int64))
        self._eos_places: Final = quick(np.zeros(len(workload) + 1, dtype=np.int64))
        self._cells: Final = quick(np.zeros(len(workload) + 1, dtype=np.int64))
        #: By handle: 1 while a stretch goes on with it, see `_run`.
        self._going: Final = quick(np.zeros(len(workload) + 1, dtype=np.int64))
        self._batches: Final[dict[int, PrepareBatch]] = {}
        #: Rows of the dispatched batch that the device does not leave out; None: all.
        self._kept: Mask | None = None
        #: Those whose requests had not ended as it was dispatched; None: all.
        self._live: Mask | None = None
        #: Cells further on, shape ``(steps, 1)``; grows with need.
        self._ahead = arange(64)[:, None]

    def _outputs(self, counts: Ints) -> NDArray[np.int32]:
        """Return so many tokens of each request, those of one behind those of another."""
        model, eos = self._model, self._model.eos_token_id
        ends = counts.cumsum()
        # From here on a request's tokens are known by their cells instead of their places.
        words = self._request_words - self._request_cells.view(np.uint64) * _PLACE_FACTOR
        tokens = np.empty(int(counts.sum()), dtype=np.int32)
        end = 0
        for first in range(0, len(counts), _WORKED_OUT_TOGETHER):
            some = slice(first, first + _WORKED_OUT_TOGETHER)
            begin, end = end, int(ends[some][-1])
            tokens[begin:end] = model.sample(words[some].repeat(counts[some]), arange(begin, end))
        if eos is not None:
            ending = self._request_eos + self._request_cells
            tokens[ending[ending < ends]] = eos
        return tokens

    def admit(self, handle: int, request: int) -> None:
        """The kernel calls request number ``request`` by this handle from now on."""
        self._requests[handle] = request
        self._eos_places[handle] = self._request_eos[request]
        self._cells[handle] = self._request_cells[request]

    def end(self, handle: int) -> None:
        """The request has ended for its client."""

    def prepare(self, command: PrepareBatch) -> None:
        """Remember the batch."""
        self._batches[command.batch_id] = command

    def withdraw(self, batch_id: int) -> None:
        """The batch was refused or abandoned; it never runs."""
        del self._batches[batch_id]

    def dispatch(self, command: DispatchBatch) -> None:
        """Remember which rows the device leaves out; fills have no influence."""
        self._live = command.live if 0 in command.live.tobytes() else None
        self._kept = self._live if command.pruned else None

    def execute(self, batch_id: int) -> Samples:
        """Return what a dispatched batch samples."""
        batch = self._batches.pop(batch_id)
        if batch.drafts is not None and self._acceptance is not None:
            return self._verify(batch, batch.drafts, self._acceptance)
        return Samples(self._run(batch, 1))

    # -- stretches ----------------------------------------------------------------------------

    #: A token needs nothing but its place.
    leads: ClassVar[bool] = True

    def turns_to_end(self, batch_id: int) -> int:
        """Return after how many more steps the first row samples EOS; 0 with drafts."""
        batch = self._batches[batch_id]
        if batch.drafts is not None:
            return 0
        left = self._eos_places[batch.handles] - batch.positions - batch.token_counts
        if self._live is not None:
            left = left[self._live]
        return left.item(left.argmin()) if len(left) else 0

    def leap(self, repeat: Repeat, turns: int, behind: Sequence[PrepareBatch]) -> Ints:
        """Run the dispatched batch and ``turns`` more of the same rows; see `Executor.leap`."""
        batch = self._batches.pop(repeat.batch_id)
        for ahead in range(1, len(behind) + 1):
            del self._batches[repeat.batch_id + ahead]
        for later in behind:
            self.prepare(later)
        return self._run(batch, turns + 1, repeat.handles)

    def _run(self, batch: PrepareBatch, steps: int, going_on: Ints | None = None) -> Ints:
        """Return what a batch samples in ``steps`` steps of the same rows.

        Of those that are not ``going_on``, handles again, it is anything behind the first step;
        None: all are.
        """
        handles, cells = batch.handles, self._cells[batch.handles]
        cells = cells + batch.positions + batch.token_counts
        sampling = self._sampling(batch)
        if sampling is not None:
            handles, cells = handles[sampling], cells[sampling]
        if steps > len(self._ahead):
            self._ahead = arange(2 * steps)[:, None]
        begins = cells
        if going_on is not None and len(going_on) < len(cells):
            # Behind its end a request has no cells.
            self._going[going_on] = 1
            begins = cells * self._going[handles]
            self._going[going_on] = 0
        places: Ints = begins if steps == 1 else (begins + self._ahead[:steps]).ravel()
        tokens = self._tokens[places].reshape(steps, len(cells))
        if begins is not cells:
            tokens[0] = self._tokens[cells]
        return quick(tokens.astype(np.int64))

    def _sampling(self, batch: PrepareBatch) -> Mask | None:
        """Tell which rows return a token; None: all do."""
        if self._kept is not None:
            return batch.samples & self._kept
        return batch.samples if 0 in batch.samples.tobytes() else None

    def _verify(self, batch: PrepareBatch, drafts: Ints, acceptance: Acceptance) -> Samples:
        """Return what rows with drafts sample: a draft that is right changes nothing behind it."""
        handles, firsts = batch.handles, batch.positions + batch.token_counts - drafts
        sampling = self._sampling(batch)
        if sampling is not None:
            handles, firsts, drafts = handles[sampling], firsts[sampling], drafts[sampling]
        requests = self._requests[handles]
        accepted = acceptance.accepted(requests, firsts - self._prompts[requests], drafts)
        steps = 1 + int(drafts.max(initial=0))
        tokens = self._model.sample_steps(self._request_words[requests], firsts, steps)
        self._end(tokens, handles, firsts)
        return Samples(tokens, accepted)

    def _end(self, tokens: Ints, handles: Ints, firsts: Ints) -> None:
        """Put the EOS token where it comes among the tokens of each request from a place on."""
        eos = self._model.eos_token_id
        if eos is not None:
            left = self._eos_places[handles] - firsts
            # Without a sign, a place that lies behind is far ahead.
            ending = (left.view(np.uint64) < len(tokens)).nonzero()[0]
            tokens[left[ending], ending] = eos
