"""Client, host and device around an adapter: every move is somebody else's choice.

`Host` turns each call of the adapter into a fact of a history, lets a `Judge` look at it, and plays
the device: a token is a hash of the whole history as read through the block tables, so a wrong
input, a stale block or a foreign block changes every token after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from stepahead_specs.conformance.adapter import Adapter, Factory, Submission
from stepahead_specs.conformance.history import (
    Cancelled,
    Completed,
    Dispatched,
    Drained,
    Fact,
    Opened,
    Prepared,
    Promise,
    Submitted,
)
from stepahead_specs.conformance.judge import Judge
from stepahead_specs.conformance.parts import unknown_rules
from stepahead_specs.invariants import InvariantViolated
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.records import DISPATCHED, NONE, PREPARED, Batch, Limits, Row

#: What a freed block reads as, until somebody writes it.
_POISON: Final = 0xDEADBEEF


class AdapterError(Exception):
    """The adapter cannot be driven; nothing is said about the scheduler."""


class Host:
    """One scheduler with its clients, its device and its judge.

    Args:
        factory: makes the scheduler.
        limits: what it must keep to.

    Raises:
        AdapterError: the adapter waives a rule that does not exist.
    """

    def __init__(self, factory: Factory, limits: Limits) -> None:
        self.limits = limits
        self.adapter: Adapter = factory(limits)
        if wrong := unknown_rules(self.adapter.waived):
            raise AdapterError(f"the adapter waives {wrong[0]!r}, which is no rule")
        self.model = HashModel(eos=limits.eos_token_id)
        self.judge = Judge(limits, self.adapter.waived)
        self.opened = Opened(format=1, limits=limits, scheduler=self.adapter.name)
        self.facts: list[Fact] = []
        #: A batch was asked for and there was none, and nothing has happened since.
        self.idle = False
        self._asks: dict[int, Ask] = {}
        self._inputs: dict[int, Sequence[Sequence[int] | None] | None] = {}
        self._memory: dict[tuple[int, int], int] = {}

    # -- what may happen ----------------------------------------------------------------------

    def live(self) -> list[int]:
        """Return the requests that have not ended."""
        return [request.handle for request in self.judge.seen.live()]

    def may_prepare(self) -> bool:
        """Tell whether the host may ask for a batch, and has not just done so in vain."""
        return not self.idle and len(self.judge.seen.outstanding()) <= self.limits.lookahead

    def on_device(self) -> int | None:
        """Return the batch that the device executes."""
        out = self.judge.seen.outstanding()
        return out[0].ident if out and out[0].state == DISPATCHED else None

    # -- moves --------------------------------------------------------------------------------

    def submit(self, ask: Ask) -> int | None:
        """Let a client ask; return the number of its request, or None if it was refused."""
        number = len(self._asks)
        submission = Submission(
            request=number,
            name=ask.request_id,
            prompt=ask.prompt,
            max_tokens=ask.max_tokens,
            priority=ask.priority,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop_token_ids=ask.stop_token_ids,
        )
        self._asks[number] = ask
        refused = self.adapter.submit(submission)
        tokens, reason = self.model.output(ask, self.limits.max_model_len)
        self._take(
            Submitted(
                **asdict(submission),
                refused=refused,
                promise=Promise(tokens=tuple(tokens), reason=reason),
                state=self.adapter.observe(),
            )
        )
        return None if refused is not None else number

    def cancel(self, request: int) -> None:
        """Let a client leave."""
        answer = self.adapter.cancel(request)
        finished = tuple(answer.finished)
        self._take(Cancelled(request=request, finished=finished, state=self.adapter.observe()))

    def prepare(self) -> bool:
        """Ask for a batch and, if the device is idle, dispatch it; return whether there was one."""
        selected = self.adapter.prepare()
        state = self.adapter.observe()
        if selected is None:
            self._take(Prepared(state=state))
            self.idle = True
            return False
        self._take(Prepared(batch=selected.batch, rows=tuple(selected.rows), state=state))
        self._dispatch()
        return True

    def complete(self) -> None:
        """Let the device finish its batch, hand back its tokens, and dispatch the next one.

        Raises:
            AdapterError: the device is idle.
        """
        ident = self.on_device()
        if ident is None:
            raise AdapterError("no batch is on the device")
        tokens = self._execute(self.judge.seen.batches[ident])
        answer = self.adapter.complete(ident, tokens)
        self._take(
            Completed(
                batch=ident,
                tokens=tuple(tokens),
                emitted=tuple(answer.emitted),
                finished=tuple(answer.finished),
                state=self.adapter.observe(),
            )
        )
        self._dispatch()

    def drain(self, turns_max: int = 10_000) -> None:
        """Do the host's and the device's part until nothing is left; everybody must have ended."""
        for _ in range(turns_max):
            if self.may_prepare():
                self.prepare()
            elif self.on_device() is not None:
                self.complete()
            else:
                break
        self._take(Drained(state=self.adapter.observe()))

    # -- inside -------------------------------------------------------------------------------

    def _take(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.idle = False
        if broken := self.judge.take(fact):
            raise InvariantViolated(broken)

    def _dispatch(self) -> None:
        out = self.judge.seen.outstanding()
        if not out or out[0].state != PREPARED:
            return
        batch = out[0]
        inputs = self.adapter.dispatch(batch.ident)
        self._inputs[batch.ident] = inputs
        told = None if inputs is None else tuple(None if r is None else tuple(r) for r in inputs)
        self._take(Dispatched(batch=batch.ident, inputs=told, state=self.adapter.observe()))
        for row in batch.rows:
            self._poison(row)

    def _poison(self, row: Row) -> None:
        """Make the blocks that a row got to write unreadable until they are written."""
        size = self.limits.block_size
        for slot, block in row.fresh:
            if (slot + 1) * size > row.position:
                for offset in range(size):
                    self._memory[block, offset] = _POISON

    def _execute(self, batch: Batch) -> list[int | None]:
        inputs = self._inputs.pop(batch.ident)
        tokens: list[int | None] = []
        for index, row in enumerate(batch.rows):
            ask = self._asks[row.handle]
            given = self._own(row) if inputs is None else inputs[index]
            chain = self.model.start()
            if row.position:
                chain = self._memory.get(self._place(row, row.position - 1), _POISON)
            # The input of a row whose request has ended is padding.
            for position, token in enumerate(given or (0,) * row.count, start=row.position):
                chain = self.model.read(chain, token, position)
                self._memory[self._place(row, position)] = chain
            index_out = row.end - len(ask.prompt)
            tokens.append(self.model.sample(chain, ask, index_out) if row.samples else None)
        return tokens

    def _own(self, row: Row) -> list[int]:
        """Return the inputs that a row should have, where the adapter cannot tell them."""
        sampled = [token.value for token in self.judge.seen.requests[row.handle].sampled]
        tokens = [*self._asks[row.handle].prompt, *sampled]
        return [tokens[p] if p < len(tokens) else 0 for p in range(row.position, row.end)]

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        slot, offset = divmod(position, self.limits.block_size)
        block = int(row.table[slot])
        if block == NONE:
            raise AdapterError(f"the row of request {row.handle} has no block for slot {slot}")
        return block, offset
