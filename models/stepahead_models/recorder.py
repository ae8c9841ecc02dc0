"""Takes down a run while it happens and closes it as a `RunRecord`."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead.arrays import count_nonzero
from stepahead.commands import (
    DispatchBatch,
    EmitTokens,
    FinishReason,
    FinishRequest,
    PrepareBatch,
    RefuseRequest,
)
from stepahead_models.emissions import Emissions
from stepahead_models.npu import BatchShape
from stepahead_models.record import NEVER, Outcome, RunRecord, Waste, digest_tokens
from stepahead_models.timelines import Timelines
from stepahead_models.tokens import Ints
from stepahead_models.workload import Workload

_LITTLE: Final = sys.byteorder == "little"
#: So many decisions are hashed at once.
_HASHED_TOGETHER: Final = 1 << 12
#: A run of like device steps: see `Recorder`.
_RUN: Final = struct.Struct("=6q")
_TIME: Final = struct.Struct("=q")
#: A dead row: see `Recorder`.
_DEAD: Final = struct.Struct("=4q")
#: So many numbers of a decision, whatever the byte order here.
_NUMBERS: Final = [struct.Struct(f"<{count}q").pack for count in range(5)]
_OUTCOMES: Final = {
    FinishReason.STOP: Outcome.STOP,
    FinishReason.LENGTH: Outcome.LENGTH,
    FinishReason.ABORT: Outcome.CANCELLED,
    FinishReason.ERROR: Outcome.ERRORED,
}


class Recorder:
    """Columns that grow; times are ns.

    The digest of decisions chains arrivals, cancels, ends and changed row sets (a preemption is
    one) with their times, so that it does not depend on how many device steps one event answered.

    Args:
        workload: the requests of the run.
        keep_tokens: keep every output token, for comparisons in tests; memory grows with tokens.
    """

    def __init__(self, workload: Workload, *, keep_tokens: bool = False) -> None:
        count = len(workload)
        self._count: Final = count
        self._arrivals: Final = np.full(count, NEVER, dtype=np.int64)
        self._dispatches: Final = np.full(count, NEVER, dtype=np.int64)
        self._ends: Final = np.full(count, NEVER, dtype=np.int64)
        self._outcomes: Final = np.full(count, NEVER, dtype=np.int64)
        self._outputs: Final = np.zeros(count, dtype=np.int64)
        self._refusals: Final[dict[int, tuple[str, str]]] = {}
        #: By handle, of which there are at most as many as requests.
        self._request_of: Final = np.full(count + 1, NEVER, dtype=np.int64)
        self._undispatched: Final[set[int]] = set()
        self._emissions: Final = Emissions()
        self._kept: Final[list[EmitTokens] | None] = [] if keep_tokens else None
        #: Runs of like steps: steps, first batch, rows, tokens, live rows, gap before the first.
        self._step_runs: Final = bytearray()
        #: When each step started and ended.
        self._starts: Final = bytearray()
        self._step_ends: Final = bytearray()
        self._waiting_times: Final = array("q")
        self._waiting_counts: Final = array("q")
        self._decisions: Final = hashlib.sha256(b"stepahead decisions 1\n")
        self._unhashed: Final[list[bytes]] = []
        self._row_set: PrepareBatch | None = None
        #: Its handles, epochs, tokens and sampling rows as bytes, which compare ten times as fast.
        self._row_bytes: tuple[bytes, bytes, bytes, bytes] | None = None
        self._dispatched: Ints | None = None
        #: Dead rows that were dispatched: handle, tokens, time and tokens of the device step.
        self._dead: Final = bytearray()
        self.discarded = Waste()
        self.events = 0

    # -- decisions ----------------------------------------------------------------------------

    def _decide(self, kind: bytes, *numbers: int) -> None:
        try:
            packed = _NUMBERS[len(numbers)](*numbers)
        except struct.error as error:
            raise OverflowError(str(error)) from error  # a time beyond 64 bits
        self._unhashed.append(kind + packed)

    def _hash(self) -> None:
        self._decisions.update(b"".join(self._unhashed))
        self._unhashed.clear()

    def arrive(self, request: int, arrived_at: int, at: int, handle: int | None) -> None:
        """A request was reported; ``handle`` is None when it was refused."""
        self._arrivals[request] = arrived_at
        self._decide(b"arrive", request, at, NEVER if handle is None else handle)
        if handle is not None:
            self._request_of[handle] = request
            self._undispatched.add(handle)
            self._emissions.make_room(handle)
            self._sample_waiting(at)

    def refuse(self, request: int, command: RefuseRequest, at: int) -> None:
        """The request never entered."""
        self._ends[request] = at
        self._outcomes[request] = Outcome.REFUSED
        self._refusals[request] = (command.reason.value, command.detail)

    def cancel(self, request: int, at: int) -> None:
        """A client left."""
        self._decide(b"cancel", request, at)

    def finish(self, command: FinishRequest, at: int) -> None:
        """A request has ended for its client."""
        request = self._request_of.item(command.handle)
        outcome = _OUTCOMES[command.reason]
        self._ends[request] = at
        self._outcomes[request] = outcome
        self._outputs[request] = command.output_tokens
        self._decide(b"end", command.handle, int(outcome), command.output_tokens, at)
        if command.handle in self._undispatched:
            self._undispatched.discard(command.handle)
            self._sample_waiting(at)

    def select(self, command: PrepareBatch, at: int) -> None:
        """A batch was selected; only a row set unlike the one before is a decision."""
        before, self._row_set = self._row_set, command
        handles, epochs, counts = command.handles, command.epochs, command.token_counts
        if before is not None and before.handles is handles and before.token_counts is counts:
            return
        rows = handles.tobytes(), epochs.tobytes(), counts.tobytes(), command.samples.tobytes()
        if rows == self._row_bytes:
            return
        self._row_bytes = rows
        self._decide(b"rows", command.batch_id, at, len(handles))
        if _LITTLE:
            self._unhashed.extend((rows[0], rows[1], command.positions.tobytes(), rows[2]))
        else:
            columns = (handles, epochs, command.positions, counts)
            self._unhashed.extend([column.astype("<i8").tobytes() for column in columns])
        if len(self._unhashed) > _HASHED_TOGETHER:
            self._hash()

    # -- device -------------------------------------------------------------------------------

    def dispatch(
        self,
        batch: PrepareBatch,
        command: DispatchBatch,
        span: tuple[int, int],
        gap_ns: int,
        tokens: int,
    ) -> None:
        """A batch of ``tokens`` tokens runs on the NPU from ``span[0]`` to ``span[1]``."""
        live = int(count_nonzero(command.live))
        rows = live if command.pruned else len(batch.seats)
        runs, starts, ends = self._step_runs, self._starts, self._step_ends
        runs += _RUN.pack(1, batch.batch_id, rows, tokens, live, gap_ns)
        starts += _TIME.pack(span[0])
        ends += _TIME.pack(span[1])
        handles, self._dispatched = self._dispatched, batch.handles
        if self._undispatched and handles is not batch.handles:
            started = self._undispatched.intersection(batch.handles.tolist())
            for handle in started:
                self._dispatches[self._request_of[handle]] = span[0]
            if started:
                self._undispatched.difference_update(started)
                self._sample_waiting(span[0])
        if live < rows:
            dead = self._dead
            # Why a row is dead is known when its end is reported, which may be after the dispatch.
            for row in (~command.live).nonzero()[0].tolist():
                handle, count = batch.handles.item(row), batch.token_counts.item(row)
                dead += _DEAD.pack(handle, count, span[1] - span[0], tokens)

    def repeat(
        self, batch_id: int, shape: BatchShape, starts: Ints, ends: Ints, gap_ns: int
    ) -> None:
        """The steady batches from ``batch_id`` on ran, each of this shape, all rows live."""
        runs, all_starts, all_ends = self._step_runs, self._starts, self._step_ends
        rows = shape.rows
        runs += _RUN.pack(len(starts), batch_id, rows, shape.tokens, rows, gap_ns)
        all_starts += starts.tobytes()
        all_ends += ends.tobytes()

    def _waste(self, outcome: Outcome) -> Waste:
        dead = np.frombuffer(self._dead, dtype=np.int64).reshape(-1, 4)
        ended = self._outcomes[self._request_of[dead[:, 0]]]
        _, tokens, step_ns, step_tokens = dead[ended == outcome].T
        spent = step_ns * tokens // np.maximum(step_tokens, 1)
        return Waste(len(tokens), int(tokens.sum()), int(spent.sum()))

    def discard(self, batch: PrepareBatch, rows: NDArray[np.intp], step_ns: int) -> None:
        """Rows on the NPU lost their request."""
        tokens = int(batch.token_counts.sum())
        self.discarded = self.discarded.plus(batch.token_counts[rows], step_ns, tokens)

    def emit(self, command: EmitTokens, earlier: Ints, last: int) -> None:
        """Tokens are out: of the last step at ``last``, of the steps before at ``earlier``."""
        self._emissions.add(command, earlier, last)
        if self._kept is not None:
            self._kept.append(command)

    def _sample_waiting(self, at: int) -> None:
        self._waiting_times.append(at)
        self._waiting_counts.append(len(self._undispatched))

    # -- end ----------------------------------------------------------------------------------

    def close(  # noqa: PLR0913 - what the simulation alone knows
        self,
        *,
        duration_ns: int,
        time: Timelines,
        margin_ppm: int | None,
        pending_block_ns: int,
        kv_blocks_max: int,
        leaked_blocks: int,
        counters: Mapping[str, int],
    ) -> RunRecord:
        """Return the record of the run."""
        self._hash()
        emissions = self._emissions
        segments = emissions.segments()
        handles = np.flatnonzero(self._request_of != NEVER)
        requests = self._request_of[handles]
        firsts = np.full(self._count, NEVER, dtype=np.int64)
        lasts = firsts.copy()
        firsts[requests] = emissions.first[handles]
        lasts[requests] = emissions.last[handles]
        checksums = np.zeros(self._count, dtype=np.uint64)
        checksums[requests] = emissions.checksums[handles]
        extra = np.zeros(self._count, dtype=np.int64)
        extra[requests] = emissions.extra[handles]
        runs = np.frombuffer(self._step_runs, dtype=np.int64).reshape(-1, 6)
        # Views, not copies: a long run has millions of steps.
        starts = np.frombuffer(self._starts, dtype=np.int64)
        ends = np.frombuffer(self._step_ends, dtype=np.int64)
        steps, batches, rows, tokens, live, gaps = _merged(runs, starts, ends)
        return RunRecord(
            arrivals_ns=self._arrivals,
            first_dispatches_ns=self._dispatches,
            first_tokens_ns=emissions.out(firsts),
            last_tokens_ns=emissions.out(lasts),
            ends_ns=self._ends,
            output_tokens=self._outputs,
            extra_tokens=extra,
            outcomes=self._outcomes,
            checksums=checksums,
            refusals=self._refusals,
            tokens=self._kept_tokens(),
            step_starts_ns=starts,
            step_ends_ns=ends,
            run_steps=steps,
            run_batches=batches,
            run_rows=rows,
            run_tokens=tokens,
            run_live_rows=live,
            run_gaps_ns=gaps,
            emission_times_ns=emissions.times,
            segment_requests=self._request_of[segments[0]],
            segment_firsts=segments[1],
            segment_lasts=segments[2],
            duration_ns=duration_ns,
            cpu_busy_ns=time.cpu_busy_ns,
            cpu_hidden_ns=time.cpu_hidden_ns,
            preparations=time.preparations,
            exposed_preparations=time.exposed_preparations,
            exposed_ns=time.exposed_ns,
            margin_ppm=margin_ppm,
            npu_busy_ns=time.npu_busy_ns,
            wasted_eos=self._waste(Outcome.STOP),
            wasted_cancel=self._waste(Outcome.CANCELLED),
            discarded=self.discarded,
            pending_block_ns=pending_block_ns,
            kv_blocks_max=kv_blocks_max,
            leaked_blocks=leaked_blocks,
            waiting_times_ns=np.array(self._waiting_times, dtype=np.int64),
            waiting_counts=np.array(self._waiting_counts, dtype=np.int64),
            counters=counters,
            events=self.events,
            tokens_digest=digest_tokens(self._outputs, checksums),
            journal_digest=self._decisions.hexdigest(),
        )

    def _kept_tokens(self) -> dict[int, Ints]:
        lists: dict[int, list[int]] = {}
        for command in self._kept or ():
            counts = None if command.counts is None else command.counts.tolist()
            for column, handle in enumerate(command.handles.tolist()):
                request = self._request_of.item(handle)
                count = None if counts is None else counts[column]
                lists.setdefault(request, []).extend(command.tokens[:count, column].tolist())
        return {request: np.array(lists[request], dtype=np.int64) for request in sorted(lists)}


def _merged(runs: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the runs of like steps, as long as can be; shape ``(6, runs)``.

    So they do not depend on how many steps one event answered.
    """
    steps, batches, gaps = runs[:, 0], runs[:, 1], runs[:, 5]
    firsts = steps.cumsum() - steps
    begins = np.ones(len(runs), dtype=np.bool_)
    begins[1:] = (runs[1:, 2:5] != runs[:-1, 2:5]).any(axis=1)
    begins[1:] |= batches[1:] != batches[:-1] + steps[:-1]
    begins[1:] |= gaps[1:] != starts[firsts[1:]] - ends[firsts[1:] - 1]
    merged = runs[begins].T.copy()
    if len(runs):
        merged[0] = np.add.reduceat(steps, begins.nonzero()[0])
    return merged
