"""The observer of our own kernel: its events and commands, told in neutral words.

`Observer.saw` takes one event and its answer and moves an `Observation` on; `Observer.apart` takes
a stretch of device steps apart first. Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

import numpy as np

from stepahead.arrays import Ints
from stepahead.commands import (
    AbandonBatch,
    AdmitRequest,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishRequest,
    LoadBlocks,
    PrepareBatch,
    RefuseRequest,
    ReportCacheReset,
    ReportPaused,
    StoreBlocks,
    WakeAt,
)
from stepahead.config import KernelConfig, WaitingOrder
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    CacheTarget,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    TransferDone,
    TransferFailed,
    Woke,
)
from stepahead.stretches import Repeat
from stepahead_specs.observation import Observation
from stepahead_specs.records import EMPTY, Batch, Limits, Request, Row, Transfer
from stepahead_specs.turns import Step, single_steps

#: Which memories a reset of the cache is about.
_TARGETS: Final = {
    CacheTarget.NPU: ("block",),
    CacheTarget.HOST: ("page",),
    CacheTarget.ALL: ("block", "page"),
}


def limits(config: KernelConfig) -> Limits:
    """Return the kernel's configuration in neutral words."""
    return Limits(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_concurrency=config.max_concurrency,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_tokens_per_row=config.max_tokens_per_row,
        max_model_len=config.max_model_len,
        lookahead=config.lookahead,
        eos_token_id=config.eos_token_id,
        by_priority=config.order is WaitingOrder.PRIORITY,
        prefix_caching=config.prefix_caching,
        max_waiting=config.max_waiting,
        host_pages=config.host_pages,
        num_speculative_tokens=config.num_speculative_tokens,
    )


class UnforeseenStretch(ValueError):
    """Several device steps came back at once, and what happened in between is not known."""


class Observer:
    """Watches one kernel; ``seen`` is all that is known of it.

    Args:
        seen: where facts go; its limits must be the kernel's.
    """

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        #: The commands that the host still holds, with a copy of their arrays.
        self._given: dict[int, tuple[PrepareBatch, tuple[bytes, ...]]] = {}
        self._wake = (0, 0)
        self._repeat: Repeat | None = None

    def foresee(self, repeat: Repeat | None) -> None:
        """Take what the kernel says after a step of the turns to come."""
        self._repeat = repeat

    def apart(self, event: Event, commands: tuple[Command, ...]) -> list[Step]:
        """Return the steps of one device step each that an event and its answer stand for.

        Raises:
            UnforeseenStretch: nobody asked the kernel what the turns of a stretch would be.
        """
        if not isinstance(event, BatchExecuted) or _device_steps(event) == 1:
            return [(event, commands)]
        if self._repeat is None or self._repeat.steps < len(event.tokens):
            raise UnforeseenStretch(
                f"batch {event.batch_id} comes back after {len(event.tokens)} steps, and what they "
                "would be was not asked before; call foresee(kernel.repeat()) after each step"
            )
        newest, _ = self._given[max(self._given)]
        return list(single_steps(event, commands, self._repeat, newest))

    def saw(self, event: Event, commands: tuple[Command, ...]) -> Observation:
        """Take one step of the kernel; return the observation after it."""
        self.seen.begin(type(event).__name__)
        self._take_event(event)
        # The answer is one instant: what becomes of a batch is seen after the ends of requests.
        batches = (AbandonBatch, DispatchBatch, PrepareBatch)
        for command in commands:
            if not isinstance(command, batches):
                self._take_command(event, command)
        for command in commands:
            if isinstance(command, batches):
                self._take_command(event, command)
        self.seen.now.order = [word for command in commands for word in _words(command)]
        for ident, (command, before) in self._given.items():
            batch = self.seen.batches.get(ident)
            if batch is not None and _bytes(command) != before:
                batch.tampered = True
        return self.seen

    def _take_event(self, event: Event) -> None:  # noqa: C901, PLR0912 - one case per event
        seen = self.seen
        match event:
            case RequestArrived():
                seen.now.arrived.append(event.request_id)
            case RequestCancelled():
                seen.cancelled(event.request_id, event.handle)
            case HostReady():
                seen.retired()
            case BatchPrepared():
                seen.prepared(event.batch_id)
            case BatchRefused():
                self._given.pop(event.batch_id, None)
                seen.count("refused_batches")
                seen.withdrawn(event.batch_id)
            case BatchExecuted():
                if _device_steps(event) != 1:
                    raise UnforeseenStretch(
                        f"batch {event.batch_id} comes back after {len(event.tokens)} steps; "
                        "take the stretch apart first"
                    )
                self._given.pop(event.batch_id, None)
                seen.executed(event.batch_id, _values(event))
            case BatchFailed():
                self._given.pop(event.batch_id, None)
                seen.failed(event.batch_id, device=event.scope is FailureScope.DEVICE)
            case Woke():
                if event.wake_id == self._wake[0] and event.at >= self._wake[1]:
                    seen.wake_pending = False
            case PauseRequested():
                seen.pause_asked()
            case ResumeRequested():
                seen.resumed()
            case CacheResetRequested():
                pass
            case TransferDone():
                seen.copied(event.transfer_id, event.blocks)
            case TransferFailed():
                seen.lost(event.transfer_id)
            case _:
                assert_never(event)

    def _take_command(  # noqa: C901, PLR0912 - one case per command
        self, event: Event, command: Command
    ) -> None:
        seen = self.seen
        match command:
            case AdmitRequest():
                if isinstance(event, RequestArrived):
                    seen.admitted(self._request(command.handle, event))
            case RefuseRequest():
                seen.count("refused")
                seen.now.refused.append((command.request_id, command.reason.value))
                if isinstance(event, RequestArrived):
                    seen.now.declined.append((self._request(0, event), command.reason.value))
            case PrepareBatch():
                self._given[command.batch_id] = (command, _bytes(command))
                seen.wake_pending = False
                seen.selected(_batch(command, seen.step))
            case AbandonBatch():
                self._given.pop(command.batch_id, None)
                seen.withdrawn(command.batch_id)
            case DispatchBatch():
                fills = zip(command.fill_rows.tolist(), command.fill_tokens.tolist(), strict=True)
                live = tuple(command.live.tolist())
                seen.dispatched(command.batch_id, live, tuple(fills), pruned=command.pruned)
            case EmitTokens():
                for handle, offset, tokens in sent(command):
                    for index, value in enumerate(tokens, start=offset):
                        seen.emitted(command.batch_id, handle, index, value)
            case FinishRequest():
                seen.finished(
                    command.handle, command.request_id, command.reason.value, command.output_tokens
                )
            case WakeAt():
                self._wake = (command.wake_id, command.at)
                seen.wake_pending = True
            case LoadBlocks() | StoreBlocks():
                seen.asked(_transfer(command))
            case ReportPaused():
                seen.pause_reported()
            case ReportCacheReset():
                target = event.target if isinstance(event, CacheResetRequested) else CacheTarget.ALL
                seen.reset(done=command.done, memories=_TARGETS[target])
            case _:
                assert_never(command)

    def _request(self, handle: int, event: RequestArrived) -> Request:
        outputs = min(event.max_tokens, self.seen.limits.max_model_len - event.prompt_length)
        return Request(
            handle=handle,
            request_id=event.request_id,
            prompt_length=event.prompt_length,
            max_tokens=event.max_tokens,
            min_tokens=event.min_tokens,
            ignore_eos=event.ignore_eos,
            stop_token_ids=event.stop_token_ids,
            priority=event.priority,
            keys=EMPTY if event.block_keys is None else event.block_keys,
            final_length=event.prompt_length + outputs,
            remote_blocks=event.remote_blocks,
        )


def _transfer(command: LoadBlocks | StoreBlocks) -> Transfer:
    load = command if isinstance(command, LoadBlocks) else None
    return Transfer(
        ident=command.transfer_id,
        store=load is None,
        blocks=command.blocks.copy(),
        pages=command.pages.copy(),
        keys=command.keys.copy(),
        handle=None if load is None else load.handle,
        layerwise=load is not None and load.layerwise,
    )


def _device_steps(event: BatchExecuted) -> int:
    """Return how many device steps came back; the tokens of drafts are all of one."""
    return len(event.tokens) if event.accepted is None else 1


def sent(command: EmitTokens) -> Iterator[tuple[int, int, list[int]]]:
    """Yield handle, place of the first token, and tokens of each request that is sent some."""
    for column, handle in enumerate(command.handles.tolist()):
        tokens: list[int] = command.tokens[:, column].tolist()
        count = len(tokens) if command.counts is None else int(command.counts[column])
        yield handle, int(command.offsets[column]), tokens[:count]


def _values(event: BatchExecuted) -> list[list[int]]:
    """Return what came back for each sampling row of one device step."""
    columns: list[list[int]] = event.tokens.T.tolist()
    if event.accepted is None:
        return columns
    rows = zip(columns, event.accepted.tolist(), strict=True)
    return [tokens[: accepted + 1] for tokens, accepted in rows]


def _batch(command: PrepareBatch, step: int) -> Batch:
    fresh: dict[int, list[tuple[int, int]]] = {}
    entries = zip(
        command.block_rows.tolist(),
        command.block_slots.tolist(),
        command.blocks.tolist(),
        strict=True,
    )
    for row, slot, block in entries:
        fresh.setdefault(row, []).append((slot, block))
    columns = zip(
        command.handles.tolist(),
        command.epochs.tolist(),
        command.seats.tolist(),
        command.positions.tolist(),
        command.token_counts.tolist(),
        command.samples.tolist(),
        _drafts(command).tolist(),
        strict=True,
    )
    history = zip(
        command.handles[command.history_rows].tolist(),
        command.history_positions.tolist(),
        command.history_tokens.tolist(),
        strict=True,
    )
    return Batch(
        ident=command.batch_id,
        rows=tuple(
            Row(
                handle=handle,
                epoch=epoch,
                seat=seat,
                position=position,
                count=count,
                samples=samples,
                fresh=tuple(fresh.get(index, ())),
                drafts=drafts,
            )
            for index, (handle, epoch, seat, position, count, samples, drafts) in enumerate(columns)
        ),
        selected_at=step,
        history=tuple(history),
    )


def _bytes(command: PrepareBatch) -> tuple[bytes, ...]:
    """Return the content of every array, to see later whether somebody wrote into it."""
    arrays = (
        command.seats,
        command.handles,
        command.epochs,
        command.positions,
        command.token_counts,
        command.samples,
        command.block_rows,
        command.block_slots,
        command.blocks,
        command.history_rows,
        command.history_positions,
        command.history_tokens,
        _drafts(command),
    )
    return tuple(array.tobytes() for array in arrays)


def _drafts(command: PrepareBatch) -> Ints:
    return np.zeros_like(command.seats) if command.drafts is None else command.drafts


def _words(command: Command) -> list[tuple[str, int]]:
    match command:
        case DispatchBatch():
            return [("dispatch", command.batch_id)]
        case EmitTokens():
            return [("emit", handle) for handle in command.handles.tolist()]
        case FinishRequest():
            return [("finish", command.handle)]
        case _:
            return []
