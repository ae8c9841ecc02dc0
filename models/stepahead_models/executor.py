"""What the accelerator computes: batches run on simulated KV memory, without any notion of time.

The executor follows the commands of a kernel in whatever order somebody else decides, be it a
simulated clock or a property test: `prepare`, then `execute` (or `withdraw`), batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from stepahead.arrays import EMPTY
from stepahead.commands import DispatchBatch, LoadBlocks, PrepareBatch, StoreBlocks
from stepahead.config import KernelConfig
from stepahead.stretches import Repeat
from stepahead_models.errors import SimulationError
from stepahead_models.memory import KvMemory
from stepahead_models.sanitizer import Sanitizer
from stepahead_models.seats import SeatTables
from stepahead_models.speculation import Drafter, Samples
from stepahead_models.tokens import HistoryHash, Ints, Prompts, Words
from stepahead_models.verification import verify

_NEVER: Final = -2
_PAD: Final = 0
#: What a block or page reads as while a copy writes it.
_SPOILT: Final = 0xBADC0DE


@dataclass(slots=True)
class _Inputs:
    """A built batch: rows of one position that wait for a fill, and rows of any other kind.

    Rows with drafts, ``verifying``, wait for a fill at their first position.
    """

    command: PrepareBatch
    waiting: Ints
    verifying: Ints
    others: list[int]
    #: Inputs of the rows, one each; those of ``others`` stay unused.
    tokens: Ints
    live: NDArray[np.bool_]
    #: Rows that the NPU runs: all, but for those pruned at the dispatch.
    runs: NDArray[np.bool_]
    all_wait: bool
    #: What the rows with drafts try, shape ``(most drafts, verifying rows)``.
    drafts: Ints

    def leave_out(self, rows: NDArray[np.bool_]) -> None:
        """Some rows compute nothing; they still stand in the batch and return a token."""
        self.live = self.live & ~rows
        self._keep(~rows)
        self.all_wait = self.all_wait and not rows.any()

    def prune(self, live: NDArray[np.bool_]) -> None:
        """Only these rows are in the batch."""
        self._keep(live)
        self.all_wait = False
        self.runs = live

    def _keep(self, rows: NDArray[np.bool_]) -> None:
        self.waiting = self.waiting[rows[self.waiting]]
        kept = rows[self.verifying]
        self.verifying, self.drafts = self.verifying[kept], self.drafts[:, kept]
        self.others = [row for row in self.others if rows[row]]


class Executor:
    """Inputs, KV memory and sampling for one kernel.

    Args:
        config: the kernel's limits; sizes of the memory and of the tables follow from it.
        model: the token model.
        prompts: prompts of all requests.
        eos_at: output position, counted from 1, at which a request samples EOS; -1 for never.
            Shape ``(requests,)``.
        drafter: proposes the drafts; needed where the kernel speculates.
        sanitize: check every row (`Sanitizer`). Without it a wrong history still changes all later
            tokens of its request, but only its last block is read, and nothing is reported.

    Raises:
        SanitizerError: from `prepare` and `execute`.
    """

    def __init__(  # noqa: PLR0913 - the parts of an accelerator
        self,
        config: KernelConfig,
        model: HistoryHash,
        prompts: Prompts,
        eos_at: Ints,
        *,
        drafter: Drafter | None = None,
        sanitize: bool = True,
    ) -> None:
        self._drafter: Final = drafter
        self._model: Final = model
        self._prompts: Final = prompts
        self._eos_at: Final = eos_at
        self._size: Final = config.block_size
        width = -(-config.max_model_len // config.block_size) + 1
        self._seats: Final = SeatTables(width, min(config.max_concurrency, 64))
        self._memory: Final = KvMemory(config.num_blocks, config.block_size)
        self._pages: Final = KvMemory(config.host_pages, config.block_size)
        #: Blocks that a load is filling, and the rows whose prefix is checked once they ran on it.
        self._loading: Final[set[int]] = set()
        self._unchecked: Final[dict[int, list[int]]] = {}
        self._request_of: Final[dict[int, int]] = {}
        self._names: Final[dict[int, str]] = {}
        self._batches: Final[dict[int, _Inputs]] = {}
        # Sums of prompt contributions, per handle, while a prompt is computed.
        self._sums: Final[dict[int, Words]] = {}
        self._sanitizer: Final = (
            Sanitizer(self._memory, self._seats, self._names) if sanitize else None
        )

    def admit(self, handle: int, request: int) -> None:
        """The kernel calls request number ``request`` by this handle from now on."""
        self._request_of[handle] = request
        self._names[handle] = self._prompts.request_ids[request]

    def end(self, handle: int) -> None:
        """The request has ended for its client; rows may still be outstanding."""
        self._sums.pop(handle, None)
        if self._sanitizer is not None:
            self._sanitizer.end(handle)

    def prepare(self, command: PrepareBatch) -> None:
        """Build the inputs of a batch and bring the block tables up to date."""
        sanitizer = self._sanitizer
        seats = command.seats
        newcomers: list[int] = []
        if len(command.blocks):
            newcomers = self._seats.newcomers(command)
            for row in newcomers:
                self._seat(command, row)
            self._seats.extend(seats[command.block_rows], command.block_slots, command.blocks)
            if sanitizer is not None:
                sanitizer.take(command)
        if sanitizer is not None:
            sanitizer.select(command)
            for row in newcomers:
                self._begin(sanitizer, command, row)
        waits = command.token_counts == 1
        waits &= command.positions >= self._seats.prompt[seats]
        if len(command.history_rows):
            waits[command.history_rows] = False
        waiting = waits.nonzero()[0]
        all_wait = len(waiting) == len(seats)
        verifying, drafts = self._propose(command)
        waits[verifying] = True
        self._batches[command.batch_id] = _Inputs(
            command,
            waiting,
            verifying,
            [] if all_wait else (~waits).nonzero()[0].tolist(),
            np.full(len(seats), _PAD, dtype=np.int64),
            command.samples,
            np.ones(len(seats), dtype=np.bool_),
            all_wait,
            drafts,
        )

    def withdraw(self, batch_id: int) -> None:
        """The batch was refused or abandoned; it never runs."""
        inputs = self._batches.pop(batch_id)
        self._unchecked.pop(batch_id, None)
        self._seats.withdraw(inputs.command)
        if self._sanitizer is not None:
            self._sanitizer.withdraw(inputs.command)

    def dispatch(self, command: DispatchBatch) -> None:
        """Fill the sampled tokens into the inputs; they are complete now."""
        inputs = self._batches[command.batch_id]
        inputs.live = command.live
        if command.pruned:
            inputs.prune(command.live)
            if self._sanitizer is not None:
                self._sanitizer.complete(inputs.command.seats[~command.live])
        rows, tokens = command.fill_rows, command.fill_tokens
        inputs.tokens[rows] = tokens
        if self._sanitizer is not None:
            self._sanitizer.check_fill(inputs.command, rows, tokens, command.live)

    def execute(self, batch_id: int) -> Samples:
        """Run a dispatched batch; return what it samples."""
        inputs = self._batches.pop(batch_id)
        command = inputs.command
        if self._unchecked:
            self._check_late(inputs)
        if inputs.all_wait:
            sampled = self._decode(inputs, command.seats, command.positions, inputs.tokens)
            samples = Samples(sampled[None, :])
        else:
            samples = self._mixed(inputs)
        if self._sanitizer is not None:
            self._sanitizer.complete(command.seats[inputs.runs])
        return samples

    def _mixed(self, inputs: _Inputs) -> Samples:
        """Run the rows of a batch, kind by kind."""
        command = inputs.command
        returned, drafts = command.samples & inputs.runs, command.drafts
        most = 0 if drafts is None else int(drafts[returned].max(initial=0))
        sampled = np.zeros((1 + most, len(command.seats)), dtype=np.int64)
        rows = inputs.waiting
        if len(rows):
            sampled[0, rows] = self._decode(
                inputs, command.seats[rows], command.positions[rows], inputs.tokens[rows]
            )
        for row in inputs.others:
            sampled[0, row] = self._chunk(inputs, row)
        if drafts is None:
            return Samples(sampled[:, returned])
        accepted = np.zeros(len(command.seats), dtype=np.int64)
        if len(inputs.verifying):
            counts = drafts[inputs.verifying]
            sampled[: 1 + int(counts.max()), inputs.verifying], accepted[inputs.verifying] = (
                self._verify(inputs, counts)
            )
        return Samples(sampled[:, returned], accepted[returned])

    def fail(self, batch_id: int) -> None:
        """The device failed on the batch; it leaves nothing behind."""
        inputs = self._batches.pop(batch_id)
        if self._sanitizer is not None:
            self._sanitizer.complete(inputs.command.seats[inputs.runs])

    # -- transfers ----------------------------------------------------------------------------

    def spoil(self, command: LoadBlocks | StoreBlocks) -> None:
        """A copy has begun: what it writes cannot be read until it is complete."""
        if isinstance(command, StoreBlocks):
            self._pages.replace(command.pages, _SPOILT)
        else:
            self._memory.replace(command.blocks, _SPOILT)
            self._loading.update(command.blocks.tolist())

    def load(self, command: LoadBlocks) -> None:
        """Copy pages to blocks, as they are now."""
        self._memory.replace(command.blocks, self._pages.whole(command.pages))
        self._loading.difference_update(command.blocks.tolist())

    def store(self, command: StoreBlocks) -> Words:
        """Copy blocks to pages, as they are now; return their contents."""
        contents = self._memory.whole(command.blocks)
        self._pages.replace(command.pages, contents)
        return contents

    def fetch(self, command: LoadBlocks, contents: Words) -> None:
        """Write what came from the remote store into the first blocks."""
        if len(contents):
            self._memory.replace(command.blocks[: len(contents)], contents)
        self._loading.difference_update(command.blocks.tolist())

    def lose(self, command: LoadBlocks | StoreBlocks) -> None:
        """A copy has failed. Rows that run on such a reload mean nothing."""
        if isinstance(command, StoreBlocks):
            return
        self._loading.difference_update(command.blocks.tolist())
        if not command.layerwise:
            return
        for seat in np.flatnonzero(self._seats.handle == command.handle).tolist():
            if command.blocks[0] in self._seats.held(seat):
                for inputs in self._batches.values():
                    inputs.leave_out(inputs.command.seats == seat)
                if self._sanitizer is not None:
                    self._sanitizer.void(seat)

    def _check_late(self, inputs: _Inputs) -> None:
        """Check the prefixes that were not there yet when the batch was prepared."""
        for row in self._unchecked.pop(inputs.command.batch_id, []):
            if self._sanitizer is not None and inputs.live[row]:
                self._begin(self._sanitizer, inputs.command, row)

    # -- stretches ----------------------------------------------------------------------------

    #: Only `_steady` runs several steps, and only of rows that decode.
    leads: ClassVar[bool] = False

    def turns_to_end(self, batch_id: int) -> int:
        """Return after how many more steps the first row samples EOS; 0 for no decode batch."""
        inputs = self._batches[batch_id]
        if not inputs.all_wait:
            return 0
        command = inputs.command
        left = self._seats.eos_position[command.seats] - command.positions
        left = left[left >= 0]
        return int(left.min()) if len(left) else 1 << 30

    def leap(self, repeat: Repeat, turns: int, behind: Sequence[PrepareBatch]) -> Ints:
        """Run the dispatched batch and ``turns`` more of the same rows.

        Only the first of them reads through the block tables: between the steps of a stretch
        nobody else writes, and the sanitizer sees the new blocks as it would one by one.

        Args:
            repeat: what the kernel said.
            turns: how many of its turns are made.
            behind: the commands of the batches prepared behind the last of them.

        Returns:
            Sampled tokens, shape ``(turns + 1, rows)``.
        """
        grown = int(np.searchsorted(repeat.block_turns, turns))
        inputs = self._batches.pop(repeat.batch_id)
        if grown:
            growth = replace(
                inputs.command,
                block_rows=repeat.block_rows[:grown],
                block_slots=repeat.block_slots[:grown],
                blocks=repeat.blocks[:grown],
            )
            self._seats.extend(growth.seats[growth.block_rows], growth.block_slots, growth.blocks)
            if self._sanitizer is not None:
                self._sanitizer.take(growth)
        tokens = self._steady(inputs, turns + 1)
        if self._sanitizer is not None:
            self._sanitizer.complete(inputs.command.seats)
        waiting = [self._batches.pop(repeat.batch_id + 1 + place) for place in range(len(behind))]
        for inputs, command in zip(waiting, behind, strict=True):
            inputs.command = command
            self._batches[command.batch_id] = inputs
        return tokens

    def _steady(self, inputs: _Inputs, steps: int) -> Ints:
        """Run the rows of a decode batch ``steps`` times, each time on what they sampled before."""
        command, size, tables, model = inputs.command, self._size, self._seats, self._model
        seats, positions, sanitizer = command.seats, command.positions, self._sanitizer
        states = self._before(seats, positions)
        if sanitizer is not None:
            sanitizer.check_rows(command, inputs.waiting, states, inputs.live)
        words = np.empty((steps, len(seats)), dtype=np.uint64)
        tokens = np.empty((steps, len(seats)), dtype=np.int64)
        places = positions + np.arange(steps, dtype=np.int64)[:, None]
        sampled = inputs.tokens
        for step in range(steps):
            states = states + model.contributions(sampled, places[step])
            words[step] = states
            sampled = tokens[step] = model.sample(states)
        slots = places // size
        self._memory.write(tables.blocks_at(seats, slots), places - slots * size, words)
        ending = places[-1] == tables.eos_position[seats]
        if ending.any() and model.eos_token_id is not None:
            tokens[-1, ending] = model.eos_token_id
        if sanitizer is not None:
            sanitizer.advance(seats, places[-1] + 1, states, tokens[-1])
        return tokens

    # -- rows ---------------------------------------------------------------------------------

    def _decode(self, inputs: _Inputs, seats: Ints, positions: Ints, tokens: Ints) -> Ints:
        """Run rows of one sampled input each; return what each of them samples."""
        size, tables, sanitizer = self._size, self._seats, self._sanitizer
        states = self._before(seats, positions)
        if sanitizer is not None:
            sanitizer.check_rows(inputs.command, inputs.waiting, states, inputs.live)
        states += self._model.contributions(tokens, positions)
        slots = positions // size
        self._memory.write(tables.blocks_at(seats, slots), positions - slots * size, states)
        sampled = self._model.sample(states)
        ending = positions == tables.eos_position[seats]
        if ending.any() and self._model.eos_token_id is not None:
            sampled[ending] = self._model.eos_token_id
        if sanitizer is not None:
            sanitizer.advance(seats, positions + 1, states, sampled)
        return sampled

    def _propose(self, command: PrepareBatch) -> tuple[Ints, Ints]:
        """Return the rows with drafts, and their drafts, shape ``(most drafts, such rows)``."""
        if command.drafts is None:
            return EMPTY, EMPTY[None, :]
        rows = command.drafts.nonzero()[0]
        if self._drafter is None:
            raise SimulationError(
                f"batch {command.batch_id} has rows with drafts, but nobody proposes any; give the "
                "executor a drafter"
            )
        requests = [self._request_of[handle] for handle in command.handles[rows].tolist()]
        offsets = command.positions[rows] + 1 - self._seats.prompt[command.seats[rows]]
        return rows, self._drafter.propose(
            np.array(requests, dtype=np.int64), offsets, command.drafts[rows]
        )

    def _verify(self, inputs: _Inputs, counts: Ints) -> tuple[Ints, Ints]:
        """Run rows with ``counts`` drafts each; return all they sample, and how many are accepted.

        The positions behind the accepted ones are nobody's from then on: the next row of the
        request begins there, and blocks that hold nothing else are the kernel's again.
        """
        command, rows, tables, sanitizer = (
            inputs.command,
            inputs.verifying,
            self._seats,
            self._sanitizer,
        )
        seats, positions = command.seats[rows], command.positions[rows]
        states = self._before(seats, positions)
        if sanitizer is not None:
            sanitizer.check_rows(command, rows, states, inputs.live)
        done = verify(
            self._model,
            self._memory,
            tables,
            seats=seats,
            positions=positions,
            states=states,
            inputs=np.vstack((inputs.tokens[rows], inputs.drafts[: int(counts.max())])),
            counts=counts,
        )
        if sanitizer is not None:
            sanitizer.advance(seats, done.ends, done.states, done.lasts)
            sanitizer.roll_back(seats, done.ends)
        tables.shorten(seats, done.ends, self._size)
        return done.sampled, done.accepted

    def _before(self, seats: Ints, positions: Ints) -> Words:
        """Read the state just below each position through the block tables."""
        before = positions - 1
        slots = before // self._size
        return self._memory.read(self._seats.blocks_at(seats, slots), before - slots * self._size)

    def _chunk(self, inputs: _Inputs, row: int) -> int:
        """Run one row over prompt or recomputed positions; return its sample, or 0."""
        command, sanitizer = inputs.command, self._sanitizer
        seat, position = int(command.seats[row]), int(command.positions[row])
        end = position + int(command.token_counts[row])
        table = self._seats.held(seat)
        state = self._model.origin
        if position:
            slot, place = divmod(position - 1, self._size)
            state = self._memory.read_one(int(table[slot]), place)
        if sanitizer is not None:
            entry = np.array([state], dtype=np.uint64)
            sanitizer.check_rows(command, np.array([row]), entry, inputs.live)
        words = self._chunk_sums(inputs, row, position, end)
        words += np.uint64(state)
        self._memory.write_run(table, position, words)
        token = -1
        if command.samples[row]:
            token = int(self._model.sample(words[-1:])[0])
            if end - 1 == self._seats.eos_position[seat] and self._model.eos_token_id is not None:
                token = self._model.eos_token_id
        if sanitizer is not None and inputs.live[row]:
            sanitizer.advance_chunk(command, row, words, token)
        return max(token, 0)

    def _chunk_sums(self, inputs: _Inputs, row: int, position: int, end: int) -> Words:
        """Return the running sums of the contributions of a row's inputs, from its position on."""
        command = inputs.command
        handle, prompt = int(command.handles[row]), int(self._seats.prompt[command.seats[row]])
        words = np.empty(end - position, dtype=np.uint64)
        done = 0
        if position < prompt:
            sums = self._prompt_sums(handle)
            done = min(prompt, end) - position
            words[:done] = sums[position : position + done]
            if position:
                words[:done] -= sums[position - 1]
            if end >= prompt or not inputs.live[row]:
                del self._sums[handle]
        if done < len(words):
            tokens = self._sampled_inputs(inputs, row, position + done, end)
            places = np.arange(position + done, end, dtype=np.int64)
            rest = np.cumsum(self._model.contributions(tokens, places), dtype=np.uint64)
            if done:
                rest += words[done - 1]
            words[done:] = rest
        return words

    def _sampled_inputs(self, inputs: _Inputs, row: int, first: int, end: int) -> Ints:
        """Return the inputs of a row that were sampled: its history, and its fill at the end."""
        command = inputs.command
        tokens = np.full(end - first, _PAD, dtype=np.int64)
        tokens[-1] = inputs.tokens[row]
        mine = command.history_rows == row
        tokens[command.history_positions[mine] - first] = command.history_tokens[mine]
        return tokens

    def _prompt_sums(self, handle: int) -> Words:
        sums = self._sums.get(handle)
        if sums is None:
            tokens = self._prompts.tokens(self._request_of[handle])
            places = np.arange(len(tokens), dtype=np.int64)
            sums = np.cumsum(self._model.contributions(tokens, places), dtype=np.uint64)
            self._sums[handle] = sums
        return sums

    # -- seats --------------------------------------------------------------------------------

    def _seat(self, command: PrepareBatch, row: int) -> None:
        request = self._request_of[int(command.handles[row])]
        prompt, eos_at = int(self._prompts.lengths[request]), int(self._eos_at[request])
        if self._sanitizer is not None:
            self._sanitizer.sit(command, row)
        eos_position = prompt + eos_at - 2 if eos_at > 0 else _NEVER
        self._seats.sit(command, row, prompt=prompt, eos_position=eos_position)

    def _begin(self, sanitizer: Sanitizer, command: PrepareBatch, row: int) -> None:
        """Check the cached prefix of a newcomer and tell the sanitizer what its row will read."""
        position = int(command.positions[row])
        state = self._model.origin
        if position:
            sums = self._prompt_sums(int(command.handles[row]))
            expected = sums[self._size - 1 : position : self._size] + np.uint64(state)
            prefix = self._seats.held(int(command.seats[row]))[: len(expected)]
            if self._loading and not self._loading.isdisjoint(prefix.tolist()):
                self._unchecked.setdefault(command.batch_id, []).append(row)
            else:
                sanitizer.check_prefix(command, row, expected)
            state = int(expected[-1])
        sanitizer.begin(int(command.seats[row]), state)
