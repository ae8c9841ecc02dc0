"""From the facts of a history to violated invariants.

A `Judge` keeps the `Observation` of one scheduler and runs, after each fact, every rule whose parts
have been told. The driver of adapters and the checker of histories share it. It imports no
scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from stepahead_specs.conformance.contents import Contents
from stepahead_specs.conformance.history import (
    Cancelled,
    Completed,
    Dispatched,
    Drained,
    Fact,
    Prepared,
    Share,
    Submitted,
)
from stepahead_specs.conformance.parts import Part, Scope, scope
from stepahead_specs.conformance.states import account
from stepahead_specs.counting import counted
from stepahead_specs.goals import reached
from stepahead_specs.invariants import Kind, Violation, violations
from stepahead_specs.observation import Observation
from stepahead_specs.records import (
    DISPATCHED,
    EMPTY,
    FILLED,
    NONE,
    Batch,
    Ints,
    Limits,
    Request,
    Row,
)

#: Batches that have ended are forgotten beyond this many, so that long histories stay small.
_BATCHES_KEPT: Final = 64

#: A goal that is seen here by the rows: inputs are told later, when a batch is dispatched.
RECOMPUTED: Final = "a preempted request is selected again with sampled tokens to recompute"

#: Blocks that one request may have at most where blocks are not told.
_SLOT_BITS: Final = 24

#: What each fact is called in the rules.
_EVENTS: Final[dict[type[Fact], str]] = {
    Submitted: "RequestArrived",
    Cancelled: "RequestCancelled",
    Prepared: "HostReady",
    Dispatched: "BatchPrepared",
    Completed: "BatchExecuted",
    Drained: "Drained",
}


class PartlyToldError(ValueError):
    """Something is told in one place and left out in another: a rule would fail for no reason."""


class Judge:
    """Judges one scheduler, fact by fact.

    Args:
        limits: what the scheduler must keep to.
        waived: rules that it does not claim to keep, by the name of their function, with the
            reason.
    """

    def __init__(self, limits: Limits, waived: Mapping[str, str] | None = None) -> None:
        self.seen = Observation(limits, truth=self._promise)
        self.waived = dict(waived or {})
        self.told: set[Part] = set()
        self.goals: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()
        self.scope: Scope = scope(self.told, self.waived)
        self._silent: set[Part] = set()
        self._contents = Contents(limits.block_size)
        self._promises: dict[int, tuple[Sequence[int], str]] = {}

    def take(self, fact: Fact) -> list[Violation]:
        """Take the next fact; return what it violates.

        Raises:
            PartlyToldError: it leaves out what other facts tell, or the other way round.
        """
        seen = self.seen
        self._note_parts(fact)
        seen.begin(_EVENTS[type(fact)])
        self.facts[type(fact).__name__.lower()] += 1
        match fact:
            case Submitted():
                self._submitted(fact)
            case Cancelled():
                seen.cancelled(self._name(fact.request), fact.request)
                self._finished(fact.finished)
            case Prepared():
                self._prepared(fact)
            case Dispatched():
                self._dispatched(fact)
            case Completed():
                self._completed(fact)
            case Drained():
                pass
        seen.before, seen.account = seen.account, account(seen, fact.state)
        found = violations(seen, Kind.ALWAYS, self.scope.rules)
        if isinstance(fact, Drained):
            found += violations(seen, Kind.EVENTUALLY, self.scope.rules)
        self.goals.update(reached(seen))
        if any(self._recomputes(row) for batch in seen.now.selected for row in batch.rows):
            self.goals[RECOMPUTED] += 1
        if len(seen.batches) > _BATCHES_KEPT:
            seen.forget()
        return found

    def _recomputes(self, row: Row) -> bool:
        return row.epoch > 0 and bool(self.seen.requests[row.handle].sampled)

    # -- facts --------------------------------------------------------------------------------

    def _submitted(self, fact: Submitted) -> None:
        seen = self.seen
        seen.now.arrived.append(fact.name)
        if fact.refused is not None:
            seen.now.refused.append((fact.name, fact.refused))
            return
        room = seen.limits.max_model_len - len(fact.prompt)
        if fact.promise is not None:
            self._promises[fact.request] = (fact.promise.tokens, fact.promise.reason)
        self._contents.begin(fact.request, fact.prompt)
        seen.admitted(
            Request(
                handle=fact.request,
                request_id=fact.name,
                prompt_length=len(fact.prompt),
                max_tokens=fact.max_tokens,
                min_tokens=fact.min_tokens,
                ignore_eos=fact.ignore_eos,
                stop_token_ids=fact.stop_token_ids,
                priority=fact.priority,
                keys=self._keys(fact.request),
                final_length=len(fact.prompt) + min(fact.max_tokens, room),
            )
        )

    def _prepared(self, fact: Prepared) -> None:
        self.seen.retired()
        if fact.batch is None:
            return
        if fact.batch in self.seen.batches:
            self.seen.stray("INV-25", f"batch {fact.batch} is prepared a second time")
            return
        rows = tuple(self._row(fact.batch, share) for share in fact.rows)
        self.seen.selected(Batch(ident=fact.batch, rows=rows, selected_at=self.seen.step))
        self.seen.prepared(fact.batch)

    def _row(self, batch: int, share: Share) -> Row:
        request = self.seen.requests.get(share.request)
        blocks = self._unseen(share) if share.blocks is None else share.blocks
        told = request.table if request and request.epoch == share.epoch else EMPTY
        size, pool = self.seen.limits.block_size, self.seen.limits.num_blocks
        need = -(-(share.position + share.count) // size)
        where = f"the row of request {share.request} in batch {batch}"
        if len(blocks) < need:
            self.seen.stray(
                "INV-21", f"{where} needs {counted(need, 'block')} and has {len(blocks)}"
            )
        if share.blocks is not None:
            for block in blocks:
                if not 0 <= block < pool:
                    self.seen.stray("INV-2", f"{where} names block {block}, and there is none")
            blocks = tuple(block if 0 <= block < pool else NONE for block in blocks)
        return Row(
            handle=share.request,
            epoch=share.epoch,
            seat=share.request if share.seat is None else share.seat,
            position=share.position,
            count=share.count,
            samples=share.samples,
            drafts=share.drafts,
            fresh=tuple((s, b) for s, b in enumerate(blocks) if s >= len(told) or told[s] != b),
        )

    def _unseen(self, share: Share) -> tuple[int, ...]:
        """Give a row whose blocks are not told blocks of its request's own, beyond the pool."""
        first = self.seen.limits.num_blocks + (share.request << _SLOT_BITS)
        end = share.position + share.count
        return tuple(range(first, first - (-end // self.seen.limits.block_size)))

    def _dispatched(self, fact: Dispatched) -> None:
        batch = self.seen.batches.get(fact.batch)
        live: tuple[bool, ...] = ()
        fills: list[tuple[int, int]] = []
        if batch is not None:
            live = tuple(self.seen.requests[row.handle].live for row in batch.rows)
            if fact.inputs is not None:
                fills = self._inputs(batch, live, fact.inputs)
        self.seen.dispatched(fact.batch, live, tuple(fills))

    def _inputs(
        self, batch: Batch, live: Sequence[bool], inputs: Sequence[tuple[int, ...] | None]
    ) -> list[tuple[int, int]]:
        """Compare prompt tokens at once; leave sampled ones to the rules."""
        fills: list[tuple[int, int]] = []
        history: list[tuple[int, int, int]] = []
        if len(inputs) != len(batch.rows):
            rows, given = counted(len(batch.rows), "row"), counted(len(inputs), "input")
            sentence = f"batch {batch.ident} has {rows} and {given}"
            self.seen.stray("INV-7", sentence)
            return fills
        for index, (row, tokens) in enumerate(zip(batch.rows, inputs, strict=True)):
            if not live[index]:
                continue
            where = f"row {index} of batch {batch.ident} (request {row.handle})"
            count = row.count - row.drafts
            if tokens is None or len(tokens) != count:
                given = counted(0 if tokens is None else len(tokens), "input")
                sentence = f"{where} has {counted(count, 'position')} and {given}"
                self.seen.stray("INV-7", sentence)
                continue
            prompt = self._contents.prompt(row.handle)
            for position, token in enumerate(tokens, start=row.position):
                if position < len(prompt):
                    if token != prompt[position]:
                        self.seen.stray(
                            "INV-7",
                            f"{where} is given {token} for position {position}, the prompt has "
                            f"{prompt[position]} there",
                        )
                elif position == row.known_end - 1:
                    fills.append((index, token))
                else:
                    history.append((row.handle, position, token))
        batch.history = tuple(history)
        return fills

    def _completed(self, fact: Completed) -> None:
        seen = self.seen
        batch = seen.batches.get(fact.batch)
        if batch is None or batch.state != DISPATCHED:
            was = "was never prepared" if batch is None else f"was {batch.state}, not dispatched"
            seen.stray("INV-25", f"batch {fact.batch} comes back and {was}")
            return
        sampled = [
            (token,) if isinstance(token, int) else token
            for token in fact.tokens
            if token is not None
        ]
        places = [token is not None for token in fact.tokens]
        if places != [row.samples for row in batch.rows]:
            seen.stray("INV-26", f"batch {fact.batch} has tokens {fact.tokens} for other rows")
            batch.state = FILLED
            return
        drafts = [row.drafts for row in batch.rows if row.samples]
        if any(not 1 <= len(s) <= d + 1 for s, d in zip(sampled, drafts, strict=True)):
            seen.stray("INV-36", f"batch {fact.batch} has tokens {fact.tokens} for other drafts")
            batch.state = FILLED
            return
        seen.executed(fact.batch, sampled)
        for token in seen.now.returned:
            self._contents.grow(token.handle, token.value)
            seen.requests[token.handle].keys = self._keys(token.handle)
        for request, value in fact.emitted:
            known = seen.requests.get(request)
            offset = len(known.emitted) if known is not None else 0
            seen.emitted(fact.batch, request, offset, value)
            if known is not None and not known.live:
                seen.now.order += [("emit", request)]
        self._finished(fact.finished)

    def _finished(self, finished: Sequence[tuple[int, str]]) -> None:
        for handle, reason in finished:
            known = self.seen.requests.get(handle)
            sent = len(known.emitted) if known is not None else 0
            self.seen.finished(handle, self._name(handle), reason, sent)

    def _name(self, handle: int) -> str:
        request = self.seen.requests.get(handle)
        return request.request_id if request is not None else str(handle)

    def _keys(self, handle: int) -> Ints:
        return np.array(self._contents.keys(handle), dtype=np.int64)

    def _promise(self, handle: int) -> tuple[Sequence[int], str]:
        return self._promises[handle]

    # -- what is told -------------------------------------------------------------------------

    def _note_parts(self, fact: Fact) -> None:
        match fact:
            case Prepared():
                for row in fact.rows:
                    self._note(Part.TABLES, there=row.blocks is not None)
            case Dispatched():
                self._note(Part.INPUTS, there=fact.inputs is not None)
            case Submitted(refused=None):
                self._note(Part.PROMISES, there=fact.promise is not None)
            case Drained():
                self._note(Part.DRAINED, there=True)
            case _:
                pass
        if fact.state is not None:
            self._note(Part.POOL, there=True)
            self._note(Part.REFERENCES, there=fact.state.references is not None)
            self._note(Part.COUNTS, there=fact.state.counts is not None)

    def _note(self, part: Part, *, there: bool) -> None:
        known, other = (self.told, self._silent) if there else (self._silent, self.told)
        if part in other:
            raise PartlyToldError(
                f"it is told {part.value} in one place and not in another; tell it always or never"
            )
        if part not in known:
            known.add(part)
            self.scope = scope(self.told, self.waived)
