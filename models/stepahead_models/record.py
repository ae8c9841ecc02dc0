"""What a run leaves behind: columns per request, per device step and per emission.

All times are integer nanoseconds since the start of the run. A record holds what metrics need and
computes none of them, except for the gaps between tokens, whose storage is its own business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead_models.tokens import Ints, Words

#: Stands in a time column for "did not happen".
NEVER: Final = -1


class Outcome(IntEnum):
    """How a request of the trace ended; the numbers are those in `RunRecord.outcomes`."""

    STOP = 0
    LENGTH = 1
    CANCELLED = 2
    REFUSED = 3
    ERRORED = 4


@dataclass(frozen=True, slots=True)
class Waste:
    """NPU work without use: rows, their tokens, and their share by tokens of the NPU's time."""

    rows: int = 0
    tokens: int = 0
    npu_ns: int = 0

    def plus(self, tokens: Ints, step_ns: int, step_tokens: int) -> Waste:
        """Return the sum with rows of ``tokens`` each in a step of ``step_tokens`` in all."""
        added = int(tokens.sum())
        return Waste(
            self.rows + len(tokens),
            self.tokens + added,
            self.npu_ns + step_ns * added // max(step_tokens, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """One run of one trace.

    Per request, shape ``(requests,)``, in the order of the trace (`NEVER` where it did not happen):
        arrivals_ns, first_dispatches_ns, first_tokens_ns, last_tokens_ns, ends_ns: times.
        output_tokens: tokens out.
        outcomes: numbers of `Outcome`.
        extra_tokens: tokens that came out together with an earlier one, from accepted drafts.
        checksums: sum over the output of `stepahead_models.tokens.checksum_words`.
        refusals: reason and sentence by request number.
        tokens: the output itself by request number, when it was kept.

    Per device step, shape ``(steps,)``:
        step_starts_ns, step_ends_ns: times; more is derived, see the properties.

    Per run of like device steps, shape ``(runs,)``: with the same rows, tokens and live rows, the
    batches numbered one after the other.
        run_steps: how many; they sum to the device steps.
        run_batches: number of the first batch.
        run_rows, run_tokens, run_live_rows: of each step.
        run_gaps_ns: how long the NPU stood idle before the first step while a live request could
            have run; `NEVER` before the very first.

    Per emission, shape ``(emissions,)``:
        emission_times_ns: when some requests got at least one token each.
        Segment i says that request ``segment_requests[i]`` got a token in each emission from
        ``segment_firsts[i]`` to ``segment_lasts[i]``.

    Attributes:
        duration_ns: from 0 to the last event of the run.
        cpu_busy_ns, cpu_hidden_ns: CPU time in all, and while the NPU was busy.
        preparations: batches built while there was a device step to hide behind.
        exposed_preparations, exposed_ns: those that were not done when it was, and by how much.
        margin_ppm: what just-in-time selection keeps in hand at the end, in millionths of the
            device step; None under another timing.
        npu_busy_ns: sum of the device steps.
        wasted_eos, wasted_cancel: rows dispatched after their request had ended, by reason.
        discarded: rows on the NPU when their request was cancelled.
        pending_block_ns: integral of the blocks that waited for a fence.
        kv_blocks_max: most blocks in use (held or pending) at once.
        leaked_blocks: blocks neither free nor cached after everything has drained.
        waiting_times_ns, waiting_counts: requests not yet dispatched, whenever that number changed.
        counters: the kernel's own.
        events: events delivered to the kernel; a stretch is one.
        tokens_digest, journal_digest: hex; see `digest_tokens` and the recorder.
    """

    arrivals_ns: Ints
    first_dispatches_ns: Ints
    first_tokens_ns: Ints
    last_tokens_ns: Ints
    ends_ns: Ints
    output_tokens: Ints
    extra_tokens: Ints
    outcomes: Ints
    checksums: Words
    refusals: Mapping[int, tuple[str, str]]
    tokens: Mapping[int, Ints]
    step_starts_ns: Ints
    step_ends_ns: Ints
    run_steps: Ints
    run_batches: Ints
    run_rows: Ints
    run_tokens: Ints
    run_live_rows: Ints
    run_gaps_ns: Ints
    emission_times_ns: Ints
    segment_requests: Ints
    segment_firsts: Ints
    segment_lasts: Ints
    duration_ns: int
    cpu_busy_ns: int
    cpu_hidden_ns: int
    preparations: int
    exposed_preparations: int
    exposed_ns: int
    margin_ppm: int | None
    npu_busy_ns: int
    wasted_eos: Waste
    wasted_cancel: Waste
    discarded: Waste
    pending_block_ns: int
    kv_blocks_max: int
    leaked_blocks: int
    waiting_times_ns: Ints
    waiting_counts: Ints
    counters: Mapping[str, int]
    events: int
    tokens_digest: str
    journal_digest: str

    @property
    def steps(self) -> int:
        """Count the device steps."""
        return len(self.step_starts_ns)

    @property
    def step_rows(self) -> Ints:
        """Rows of each device step; shape ``(steps,)``."""
        return self.run_rows.repeat(self.run_steps)

    @property
    def step_tokens(self) -> Ints:
        """Tokens of each device step; shape ``(steps,)``."""
        return self.run_tokens.repeat(self.run_steps)

    @property
    def step_gaps_ns(self) -> Ints:
        """How long the NPU stood idle before each device step while a live request could have run.

        `NEVER` for the first step; within a run a step begins when the one before it is over or the
        host lets it, and some request is live all the time. Shape ``(steps,)``.
        """
        gaps = self.step_starts_ns.copy()
        gaps[1:] -= self.step_ends_ns[:-1]
        gaps[self.run_steps.cumsum() - self.run_steps] = self.run_gaps_ns
        return gaps

    def token_gaps(
        self, included: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, NDArray[np.int32]]:
        """Return every gap between consecutive tokens of one request, pooled and exact.

        Tokens of one device step come out together: the gaps between them are 0.

        Args:
            included: which requests count, shape ``(requests,)``; all when None.

        Returns:
            Gaps in ns and how often each occurs, both shape ``(entries,)``; an entry may repeat a
            gap of another entry, or occur not at all. The second is int32: no gap is shared by more
            requests.
        """
        requests, firsts, lasts = self.segment_requests, self.segment_firsts, self.segment_lasts
        extra = self.extra_tokens
        if included is not None:
            chosen = included[requests]
            requests, firsts, lasts = requests[chosen], firsts[chosen], lasts[chosen]
            extra = extra[included]
        order = np.lexsort((firsts, requests))
        requests, firsts, lasts = requests[order], firsts[order], lasts[order]
        joined = requests[1:] == requests[:-1]
        times = self.emission_times_ns
        # Between emissions, then across what a request was left out of, then within a device step.
        # A long run has millions of emissions, so each array is made once and filled.
        between, across = max(len(times) - 1, 0), int(np.count_nonzero(joined))
        gaps = np.zeros(between + across + 1, dtype=np.int64)
        np.subtract(times[1:], times[:-1], out=gaps[:between])
        gaps[between:-1] = times[firsts[1:][joined]] - times[lasts[:-1][joined]]
        weights = np.zeros(len(gaps), dtype=np.int32)
        np.add.at(weights, firsts, 1)
        np.add.at(weights, lasts, -1)
        np.cumsum(weights[:between], dtype=np.int32, out=weights[:between])
        weights[between:-1] = 1
        weights[-1] = int(extra.sum())
        return gaps, weights


def digest_tokens(output_tokens: Ints, checksums: Words) -> str:
    """Return the SHA-256 hex over (request number, tokens out, checksum) of all requests.

    Two runs agree exactly when every request got the same number of the same tokens in the same
    order, up to collisions of 64-bit checksums.
    """
    state = hashlib.sha256(b"stepahead tokens 1\n")
    rows = np.empty((len(output_tokens), 3), dtype="<u8")
    rows[:, 0] = np.arange(len(output_tokens))
    rows[:, 1] = output_tokens
    rows[:, 2] = checksums
    state.update(rows.tobytes())
    return state.hexdigest()
