"""The simulated host: carries out the commands of one step in order, one job after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepahead.arrays import arange, count_nonzero, ints
from stepahead.commands import (
    AbandonBatch,
    DispatchBatch,
    EmitTokens,
    LoadBlocks,
    PrepareBatch,
    StoreBlocks,
)
from stepahead.stretches import Repeat
from stepahead_models.device import Device
from stepahead_models.facts import FactClass, Facts
from stepahead_models.npu import BatchShape
from stepahead_models.record import NEVER
from stepahead_models.recorder import Recorder
from stepahead_models.speculation import Samples
from stepahead_models.timelines import Timelines
from stepahead_models.tokens import Ints
from stepahead_models.transfer_engine import TransferEngine
from stepahead_models.walk import Steady, Walk, walk

_LEAP_TURNS_MAX: Final = 1 << 14


#: A batch that is not back yet, and what it costs by.
_Outstanding: TypeAlias = tuple[PrepareBatch, BatchShape]


def _without(batch: PrepareBatch, live: NDArray[np.bool_]) -> BatchShape:
    sampling = int(count_nonzero(batch.samples & live))
    drafts = None if batch.drafts is None else batch.drafts[live]
    return BatchShape(
        batch.positions[live],
        batch.token_counts[live],
        sampling,
        len(batch.blocks),
        drafts=drafts,
    )


def _later(
    behind: list[_Outstanding], repeat: Repeat, turns: int, steady: BatchShape
) -> list[_Outstanding]:
    """Return what stands in the place of ``behind`` after ``turns`` turns."""
    later: list[_Outstanding] = []
    for place, turn in enumerate(range(turns - len(behind), turns)):
        # Who stands further behind moves up; behind the last of them come new selections.
        if turn < 0:
            later.append(behind[place + turns])
            continue
        selected = repeat.selection(turn, repeat.batch_id + len(behind) + 1 + turn)
        sampling, tokens, blocks = steady.sampling_rows, steady.tokens, len(selected.blocks)
        size = BatchShape(selected.positions, repeat.counts, sampling, blocks, tokens)
        later.append((selected, size))
    return later


@dataclass(slots=True)
class Leap:
    """What several turns came to.

    ``tokens`` are those of all steps, the first of which was reported at ``begin``; ``outs`` is
    when those of all but the last were out, and ``turn_times`` what the kernel learns from, see
    `BatchExecuted`. ``new_blocks`` were taken.
    """

    tokens: Ints
    begin: int
    outs: Ints
    turn_times: Ints | None
    new_blocks: int


class ExecutorPort(Protocol):
    """What the host needs of what computes: `Executor`, or `UncheckedExecutor`."""

    #: Whether the first batch of a stretch may have dead rows, or end prompts.
    leads: ClassVar[bool]

    def prepare(self, command: PrepareBatch) -> None:
        """Build the inputs of a batch."""
        ...

    def dispatch(self, command: DispatchBatch) -> None:
        """Complete the inputs of a batch."""
        ...

    def execute(self, batch_id: int) -> Samples:
        """Return what a dispatched batch samples."""
        ...

    def withdraw(self, batch_id: int) -> None:
        """Forget a prepared batch."""
        ...

    def admit(self, handle: int, request: int) -> None:
        """Learn by which handle the kernel calls a request."""
        ...

    def end(self, handle: int) -> None:
        """Learn that a request has ended for its client."""
        ...

    def turns_to_end(self, batch_id: int) -> int:
        """Return after how many more steps of the same rows the first samples EOS."""
        ...

    def leap(self, repeat: Repeat, turns: int, behind: Sequence[PrepareBatch]) -> Ints:
        """Run a batch and ``turns`` more of the same rows; shape ``(turns + 1, rows)``."""
        ...


class Host:
    """One thread and one NPU.

    Args:
        device: what everything costs.
        executor: what the NPU computes.
        recorder: takes down what happened.
        facts: where the ends of jobs and device steps go.
        lookahead: the kernel's.
        engine: the copy engines.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a machine
        self,
        device: Device,
        executor: ExecutorPort,
        recorder: Recorder,
        facts: Facts,
        lookahead: int,
        engine: TransferEngine,
    ) -> None:
        self.time: Final = Timelines()
        #: Since when some request is live; only meaningful while one is.
        self.live_since = 0
        self._device: Final = device
        self._executor: Final = executor
        self._recorder: Final = recorder
        self._facts: Final = facts
        self._lookahead: Final = lookahead
        self._engine: Final = engine
        self._outstanding: Final[dict[int, _Outstanding]] = {}
        self._dispatched: PrepareBatch | None = None

    def build(self, command: PrepareBatch) -> None:
        """Build a batch; that it is prepared becomes a fact when this is done."""
        batch_id = command.batch_id
        self._recorder.select(command, self.time.host_free_at)
        self._executor.prepare(command)
        shape = BatchShape(
            command.positions,
            command.token_counts,
            int(count_nonzero(command.samples)),
            len(command.blocks),
            drafts=command.drafts,
        )
        self._outstanding[batch_id] = command, shape
        done = self.time.prepare(self._device.build_ns(shape, batch_id), self.live_since)
        self._facts.add(done, FactClass.PREPARED, batch_id)

    def submit(self, command: LoadBlocks | StoreBlocks) -> None:
        """Set a copy up and give it to the copy engines, which begin when this is done."""
        begins = self.time.work(self._device.submit_ns(len(command.blocks)))
        self._engine.begin(command, begins)

    def dispatch(self, command: DispatchBatch) -> None:
        """Fill a batch and start the NPU; its end is a fact."""
        batch_id = command.batch_id
        batch, shape = self._outstanding[batch_id]
        time, device = self.time, self._device
        self._executor.dispatch(command)
        pruned = 0
        if command.pruned:
            shape = _without(batch, command.live)
            pruned = len(batch.seats) - shape.rows
            self._outstanding[batch_id] = batch, shape
        time.work(device.fill_ns(shape.rows, batch_id, pruned))
        before = time.npu_end
        duration = device.step_ns(shape, batch_id)
        if self._engine.busy:
            handles = batch.handles[command.live]
            duration += self._engine.exposed_ns(handles, time.host_free_at, duration)
        span = time.run_npu(duration)
        gap = span[0] - max(before, self.live_since) if before >= 0 else NEVER
        self._recorder.dispatch(batch, command, span, gap, shape.tokens)
        self._dispatched = batch
        self._facts.add(span[1], FactClass.EXECUTED, batch_id)

    def collect(self, batch_id: int) -> None:
        """Learn that the NPU is done, and sample; after that the batch counts as executed."""
        _, shape = self._outstanding[batch_id]
        duration = self._device.collect_ns(shape.rows, shape.samples, batch_id)
        self.time.work(duration)

    def execute(self, batch_id: int) -> Samples:
        """Return the tokens of the dispatched batch, which has been collected."""
        del self._outstanding[batch_id]
        self._dispatched = None
        return self._executor.execute(batch_id)

    def publish(self, command: EmitTokens, earlier: Ints) -> int:
        """Process results; return when the last step's tokens are out.

        Those of the steps before, if there are any, were out at ``earlier``.
        """
        requests, counts = len(command.handles), command.counts
        tokens = -1 if counts is None else int(counts.sum())
        out = self.time.work(self._device.publish_ns(requests, command.batch_id, tokens))
        self._recorder.emit(command, earlier, out)
        return out

    def abandon(self, command: AbandonBatch) -> None:
        """Forget a prepared batch."""
        del self._outstanding[command.batch_id]
        self._executor.withdraw(command.batch_id)

    def end(self, handle: int, *, discards: bool) -> None:
        """A request has ended; ``discards`` if a row of it on the NPU has lost its use."""
        self._executor.end(handle)
        if discards and self._dispatched is not None:
            command = self._dispatched
            rows = np.flatnonzero(command.handles == handle)
            if len(rows):
                self._recorder.discard(command, rows, self.time.npu_end - self.time.npu_start)

    # -- stretches ----------------------------------------------------------------------------

    def turns_max(self, batch_id: int, until: int | None) -> int:
        """Return how many turns at most may follow the collected batch: nobody samples EOS before.

        Beyond the last of them lies ``until``, if steps take no less time than this one, which
        decode batches do beside one with a prompt.
        """
        if len(self._outstanding) <= self._lookahead:
            return 0
        turns, shape = _LEAP_TURNS_MAX, self._outstanding[batch_id][1]
        if until is not None and shape.tokens == shape.rows:
            step = max(self.time.npu_end - self.time.npu_start, 1)
            turns = min(turns, (until - self.time.host_free_at) // step)
        return min(turns, self._executor.turns_to_end(batch_id)) if turns > 0 else 0

    def positions(self, batch_id: int) -> tuple[Ints, Ints]:
        """Return handles and last positions of an outstanding batch."""
        command, _ = self._outstanding[batch_id]
        return command.handles, command.positions + command.token_counts - 1

    def leap(self, repeat: Repeat, until: int | None) -> Leap | None:
        """Walk the turns that nothing disturbs, or return None when there is none."""
        first, time = repeat.batch_id, self.time
        ended_at = time.npu_end
        command, shape = self._outstanding[first]
        leads = command.token_counts is not repeat.counts
        if leads:
            # It leads to these rows: it has more of them, or computes more of one.
            if not self._executor.leads:
                return None
            sampling = int(count_nonzero(repeat.samples))
            shape = BatchShape(repeat.positions, repeat.counts, sampling, 0)
        # How many of the new blocks come before each turn, and in all.
        bounds = repeat.block_turns.searchsorted(arange(repeat.steps))
        steady = Steady(
            batch_id=first,
            shape=shape,
            lookahead=self._lookahead,
            select_after=repeat.select_after,
            pace=repeat.pace,
            new_blocks=bounds[1:] - bounds[:-1],
            until=until,
        )
        walked = walk(self._device, time, steady)
        turns = walked.turns
        if not turns:
            return None
        if leads and not self._lookahead:
            # With batches prepared ahead, the row set of these turns was selected before them.
            self._recorder.select(repeat.selection(0, first + 1), walked.outs.item(0))
        starts, ends = walked.starts, walked.ends
        gap = starts.item(0) - ended_at
        self._recorder.repeat(first + 1, shape, starts, ends, gap)
        self._dispatched = None
        _, *before = [self._outstanding.pop(first + ahead) for ahead in range(self._lookahead + 1)]
        behind = _later(before, repeat, turns, shape)
        self._outstanding.update((batch[0].batch_id, batch) for batch in behind)
        return Leap(
            self._executor.leap(repeat, turns, [command for command, _ in behind]),
            walked.begins.item(0),
            walked.outs,
            _turn_times(ended_at, walked) if walked.builds else None,
            bounds.item(turns),
        )


def _turn_times(ended_at: int, walked: Walk) -> Ints:
    """Return the times of the turns that are learnt from; the first follows a step's end.

    Shape ``(turns, 4)``, as `BatchExecuted` has them.
    """
    count = min(len(walked.builds), walked.turns)
    times = ints(4 * count)
    times[0] = ended_at
    times[4::4] = walked.ends[: count - 1]
    times[1::4] = walked.begins[:count]
    times[2::4] = walked.outs[:count]
    times[3::4] = walked.builds[:count]
    return times.reshape(count, 4)
