"""The adapter of our own kernel; the only module of the kit that imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stepahead.commands import (
    AdmitRequest,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishRequest,
    PrepareBatch,
    RefuseRequest,
)
from stepahead.config import KernelConfig, WaitingOrder
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    Event,
    HostReady,
    RequestArrived,
    RequestCancelled,
)
from stepahead.kernel import Kernel
from stepahead_specs.accounts import account
from stepahead_specs.conformance.adapter import Adapter, Answer, Selected, Submission
from stepahead_specs.conformance.bounds import Bounds
from stepahead_specs.conformance.history import Counts, Share, State
from stepahead_specs.oracle import Interner
from stepahead_specs.records import Limits


class KernelAdapter(Adapter):
    """Drives one `stepahead.Kernel` in the place of its host."""

    bounds: Final = Bounds(
        lookaheads=(0, 1, 2, 3),
        prefix_caching=(False, True),
        by_priority=(False, True),
        min_tokens=True,
    )

    def __init__(self, limits: Limits) -> None:
        self._kernel = Kernel(
            KernelConfig(
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                max_concurrency=limits.max_concurrency,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_tokens_per_row=limits.max_tokens_per_row,
                max_model_len=limits.max_model_len,
                lookahead=limits.lookahead,
                order=(
                    WaitingOrder.PRIORITY
                    if limits.by_priority
                    else WaitingOrder.FIRST_COME_FIRST_SERVED
                ),
                prefix_caching=limits.prefix_caching,
                eos_token_id=limits.eos_token_id,
            )
        )
        self._interner = Interner(limits.block_size)
        self._submissions: dict[int, Submission] = {}
        self._handles: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        #: Seat to the stay that sits there and its block table, as a host keeps it.
        self._tables: dict[int, tuple[tuple[int, int], dict[int, int]]] = {}
        self._built: dict[int, PrepareBatch] = {}
        self._due: dict[int, DispatchBatch] = {}
        self._at = 0

    def submit(self, submission: Submission) -> str | None:
        """Report an arrival."""
        keys = self._interner.keys(submission.prompt)
        commands = self._step(
            RequestArrived(
                request_id=submission.name,
                prompt_length=len(submission.prompt),
                max_tokens=submission.max_tokens,
                at=self._now(),
                arrived_at=self._at,
                priority=submission.priority,
                min_tokens=submission.min_tokens,
                ignore_eos=submission.ignore_eos,
                stop_token_ids=submission.stop_token_ids,
                block_keys=np.array(keys, dtype=np.int64),
            )
        )
        for command in commands:
            if isinstance(command, RefuseRequest):
                return command.reason.value
            if isinstance(command, AdmitRequest):
                self._handles[submission.request] = command.handle
                self._numbers[command.handle] = submission.request
                self._submissions[command.handle] = submission
        return None

    def cancel(self, request: int) -> Answer:
        """Report that a client left."""
        handle = self._handles[request]
        name = self._submissions[handle].name
        return self._answer(
            self._step(RequestCancelled(request_id=name, handle=handle, at=self._now()))
        )

    def prepare(self) -> Selected | None:
        """Report that the host is ready and, if a batch comes of it, that it is built."""
        commands = self._step(HostReady(at=self._now()))
        batch = next((c for c in commands if isinstance(c, PrepareBatch)), None)
        if batch is None:
            return None
        self._built[batch.batch_id] = batch
        rows = self._rows(batch)
        self._step(BatchPrepared(batch_id=batch.batch_id, at=self._now()))
        return Selected(batch=batch.batch_id, rows=rows)

    def dispatch(self, batch: int) -> Sequence[Sequence[int] | None]:
        """Return the inputs as the host has filled them."""
        built, order = self._built[batch], self._due.pop(batch)
        inputs = [self._prompt(built, row) for row in range(len(built.handles))]
        history = (built.history_rows, built.history_positions, built.history_tokens)
        for row, position, token in zip(*(a.tolist() for a in history), strict=True):
            inputs[row][position - int(built.positions[row])] = token
        fills = zip(order.fill_rows.tolist(), order.fill_tokens.tolist(), strict=True)
        for row, token in fills:
            inputs[row][-1] = token
        return [r if live else None for r, live in zip(inputs, order.live.tolist(), strict=True)]

    def complete(self, batch: int, tokens: Sequence[int | None]) -> Answer:
        """Report what the device sampled."""
        del self._built[batch]
        sampled = [token for token in tokens if token is not None]
        values = np.array([sampled], dtype=np.int64)
        return self._answer(
            self._step(BatchExecuted(batch_id=batch, tokens=values, at=self._now()))
        )

    def observe(self) -> State:
        """Read the kernel's account."""
        told = account(self._kernel)
        live = {h: r for h, r in told.requests.items() if h in self._numbers}
        return State(
            free=() if told.blocks.queue is None else tuple(told.blocks.queue.tolist()),
            held={self._numbers[h]: tuple(r.blocks.tolist()) for h, r in live.items()},
            references=tuple(told.blocks.references.tolist()),
            counts={
                self._numbers[h]: Counts(known=r.known, scheduled=r.scheduled, settled=r.settled)
                for h, r in live.items()
            },
        )

    # -- inside -------------------------------------------------------------------------------

    def _now(self) -> int:
        self._at += 1
        return self._at

    def _step(self, event: Event) -> tuple[Command, ...]:
        commands = self._kernel.step(event)
        self._due |= {c.batch_id: c for c in commands if isinstance(c, DispatchBatch)}
        return commands

    def _answer(self, commands: Sequence[Command]) -> Answer:
        emitted: list[tuple[int, int]] = []
        finished: list[tuple[int, str]] = []
        for command in commands:
            if isinstance(command, EmitTokens):
                numbers = [self._numbers[handle] for handle in command.handles.tolist()]
                emitted += zip(numbers, command.tokens[0].tolist(), strict=True)
            if isinstance(command, FinishRequest):
                finished.append((self._numbers[command.handle], command.reason.value))
        return Answer(emitted=emitted, finished=finished)

    def _rows(self, batch: PrepareBatch) -> list[Share]:
        deltas = (batch.block_rows, batch.block_slots, batch.blocks)
        entries = list(zip(*(array.tolist() for array in deltas), strict=True))
        rows: list[Share] = []
        for row, handle in enumerate(batch.handles.tolist()):
            seat, stay = int(batch.seats[row]), (handle, int(batch.epochs[row]))
            if self._tables.get(seat, ((-1, -1), {}))[0] != stay:
                self._tables[seat] = (stay, {})
            table = self._tables[seat][1]
            table.update({slot: block for at, slot, block in entries if at == row})
            rows.append(
                Share(
                    request=self._numbers[handle],
                    position=int(batch.positions[row]),
                    count=int(batch.token_counts[row]),
                    samples=bool(batch.samples[row]),
                    epoch=stay[1],
                    seat=seat,
                    blocks=tuple(table[slot] for slot in range(len(table))),
                )
            )
        return rows

    def _prompt(self, batch: PrepareBatch, row: int) -> list[int]:
        """Return a row's inputs with nothing but prompt tokens; -1 stands where others belong."""
        prompt = self._submissions[int(batch.handles[row])].prompt
        first = int(batch.positions[row])
        span = range(first, first + int(batch.token_counts[row]))
        return [prompt[p] if p < len(prompt) else -1 for p in span]
