"""A stretch of device steps, taken apart into the single steps that it stands for.

A host that reports several steps at once has asked `Kernel.repeat` before, so it knows what each
turn would have been: the batch comes back, the next one is dispatched with its tokens, and one more
is selected, on blocks that were named, and built. `single_steps` says just that, in the kernel's
own events and commands. Which of two independent things came first within a turn (the preparation
of one batch, the end of another) is not told; here the preparation does. Nor is when each turn
happened, but of those that just-in-time selection learns from; the others happen with the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from stepahead.arrays import Ints
from stepahead.commands import Command, DispatchBatch, EmitTokens, PrepareBatch
from stepahead.events import BatchExecuted, BatchPrepared, Event, HostReady
from stepahead.stretches import Repeat

Step: TypeAlias = tuple[Event, tuple[Command, ...]]


def single_steps(
    event: BatchExecuted, commands: Sequence[Command], repeat: Repeat, newest: PrepareBatch
) -> Iterator[Step]:
    """Iterate over the steps that ``event`` and its answer stand for, each of one device step.

    Args:
        event: the end of a stretch.
        commands: its answer.
        repeat: what the kernel said of the turns to come, before the event.
        newest: the batch that was selected last, before the event.
    """
    turns, lookahead = len(event.tokens) - 1, newest.batch_id - event.batch_id
    # Of a batch with rows whose requests have ended, only the first step has these.
    steps = [event.tokens[0], *_lasting(event, commands)[1:]]
    times: list[tuple[int, int, int]] = [(event.ended_at, event.at, event.at)] * turns
    if event.turn_times is not None:
        times[: len(event.turn_times)] = event.turn_times[:, :3].tolist()
    for turn, (ended_at, at, ready_at) in enumerate(times):
        ident = event.batch_id + turn
        dispatch = DispatchBatch(
            batch_id=ident + 1,
            fill_rows=repeat.samples.nonzero()[0],
            fill_tokens=_lasting(event, commands)[turn],
            live=np.ones_like(repeat.samples),
        )
        selected = repeat.selection(turn, newest.batch_id + 1 + turn)
        back = BatchExecuted(batch_id=ident, tokens=steps[turn][None], at=at, ended_at=ended_at)
        sent = _sent(commands, ident, slice(turn, turn + 1))
        built = BatchPrepared(batch_id=selected.batch_id, at=ready_at)
        yield back, (dispatch, *sent) if lookahead else sent
        yield HostReady(at=ready_at), (selected,)
        yield built, () if lookahead else (dispatch,)
    last = replace(
        event, batch_id=event.batch_id + turns, tokens=steps[turns][None], turn_times=None
    )
    rest = iter(_sent(commands, last.batch_id, slice(turns, None)))
    yield (
        last,
        tuple(next(rest) if isinstance(command, EmitTokens) else command for command in commands),
    )


def _lasting(event: BatchExecuted, commands: Sequence[Command]) -> Ints:
    """Return the tokens of the rows that last; shape ``(steps, such rows that sample)``."""
    sent = [command.tokens for command in commands if isinstance(command, EmitTokens)]
    return sent[0] if sent else event.tokens


def _sent(commands: Sequence[Command], ident: int, part: slice) -> tuple[EmitTokens, ...]:
    """Return what was sent to clients of the tokens of some steps, as if by batch ``ident``."""
    return tuple(
        EmitTokens(
            batch_id=ident,
            handles=command.handles,
            offsets=command.offsets + part.start,
            tokens=command.tokens[part],
        )
        for command in commands
        if isinstance(command, EmitTokens)
    )
