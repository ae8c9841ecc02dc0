"""A run in words: what the host reported, what the kernel answered, and who was busy meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from stepahead.commands import (
    AbandonBatch,
    AdmitRequest,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishRequest,
    PrepareBatch,
    RefuseRequest,
    ReportCacheReset,
)
from stepahead.config import KernelConfig
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    Event,
    RequestArrived,
    RequestCancelled,
)
from stepahead.kernel import Kernel
from stepahead_models.journal import JournalWriter


def write_journal(
    journal: Iterable[tuple[Event, tuple[Command, ...]]], config: KernelConfig, path: Path
) -> None:
    """Write a run as a journal, which `stepahead replay` runs once more on the real kernel."""
    with JournalWriter(path, Kernel(config)) as writer:
        for event, commands in journal:
            writer(event, commands)


def tell(journal: Sequence[tuple[Event, tuple[Command, ...]]]) -> str:
    """Return a run as numbered sentences, with what the CPU builds and the NPU runs meanwhile."""
    lines: list[str] = []
    building = running = "."
    for step, (event, commands) in enumerate(journal, start=1):
        if isinstance(event, BatchPrepared | BatchRefused):
            building = "."
        if isinstance(event, BatchExecuted | BatchFailed):
            running = "."
        for command in commands:
            if isinstance(command, PrepareBatch):
                building = f"B{command.batch_id}"
            if isinstance(command, DispatchBatch):
                running = f"B{command.batch_id}"
        answer = "; ".join(_words(command) for command in commands) or "nothing"
        lines.append(f"{step:4}  cpu {building:5} npu {running:5} {_event(event)} -> {answer}")
    return "\n".join(lines)


def _event(event: Event) -> str:  # noqa: PLR0911 - one sentence per event
    match event:
        case RequestArrived():
            extra = f", priority {event.priority}" if event.priority else ""
            if event.remote_blocks is not None:
                extra += f", {event.remote_blocks} blocks in the remote store"
            return (
                f"{event.request_id!r} arrives ({event.prompt_length} prompt, "
                f"at most {event.max_tokens} output{extra})"
            )
        case RequestCancelled():
            which = "" if event.handle is None else f" (R{event.handle})"
            return f"{event.request_id!r} is cancelled{which}"
        case BatchPrepared():
            return f"B{event.batch_id} is built"
        case BatchRefused():
            return f"B{event.batch_id} is refused"
        case BatchExecuted():
            return f"B{event.batch_id} comes back with {event.tokens.tolist()}"
        case BatchFailed():
            return f"the device fails B{event.batch_id} ({event.scope.value})"
        case _:
            return type(event).__name__


def _words(command: Command) -> str:  # noqa: PLR0911 - one sentence per command
    match command:
        case AdmitRequest():
            return f"{command.request_id!r} waits as R{command.handle}"
        case RefuseRequest():
            return f"{command.request_id!r} is refused ({command.reason.value})"
        case PrepareBatch():
            return f"select B{command.batch_id}: {', '.join(_rows(command))}"
        case AbandonBatch():
            return f"abandon B{command.batch_id}"
        case DispatchBatch():
            filled = zip(command.fill_rows.tolist(), command.fill_tokens.tolist(), strict=True)
            fills = ", ".join(f"row {row}={token}" for row, token in filled)
            dead = [str(row) for row, live in enumerate(command.live.tolist()) if not live]
            words = f"dispatch B{command.batch_id}"
            words += f" ({fills})" if fills else ""
            return words + (f" dead rows {', '.join(dead)}" if dead else "")
        case EmitTokens():
            return f"send {', '.join(_sent(command))}"
        case FinishRequest():
            return (
                f"R{command.handle} ends by {command.reason.value} "
                f"after {command.output_tokens} tokens"
            )
        case ReportCacheReset():
            return f"cache reset {'done' if command.done else 'refused'}"
        case _:
            return type(command).__name__


def _rows(command: PrepareBatch) -> Iterable[str]:
    blocks: dict[int, list[int]] = {}
    for row, block in zip(command.block_rows.tolist(), command.blocks.tolist(), strict=True):
        blocks.setdefault(row, []).append(block)
    for row, handle in enumerate(command.handles.tolist()):
        first = int(command.positions[row])
        last = first + int(command.token_counts[row]) - 1
        epoch = int(command.epochs[row])
        name = f"R{handle}" + (f" epoch {epoch}" if epoch else "")
        span = f"{first}" if first == last else f"{first}-{last}"
        more = f" +blocks {blocks[row]}" if row in blocks else ""
        yield f"{name}[{span}]{'*' if command.samples[row] else ''}{more}"


def _sent(command: EmitTokens) -> Iterable[str]:
    for column, handle in enumerate(command.handles.tolist()):
        tokens = command.tokens[:, column].tolist()
        yield f"R{handle}#{int(command.offsets[column])}={' '.join(map(str, tokens))}"
