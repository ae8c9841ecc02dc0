"""What a run record means to a user: latencies, throughput, goodput, and where the NPU's time went.

Definitions, the same for every loop. Times are ns of the simulated clock.

* ttft: arrival to first token out. tpot: (last - first token out) / (tokens - 1), rounded to a
  whole ns, of requests with at least 2 tokens. itl: every gap between consecutive tokens of one
  request, pooled; tokens that one device step gave a request are 0 apart. e2el: arrival to last
  token out. queue: arrival to the start of the first device step with a row of the request.
* These are over **measured** requests: completed (stop or length), and not among the first
  ``warmup`` of the trace.
* The window of throughput begins at the first arrival after the warm-up and ends when the last of
  the requests after the warm-up has ended. Output tokens are those of completed and of cancelled
  requests after the warm-up; requests/s and goodput count measured requests.
* Counts of requests, and everything about the machine, are over the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepahead_models.record import NEVER, Outcome, RunRecord
from stepahead_tools.distribution import Distribution, Ints, distribution
from stepahead_tools.overload import grows

SingleToken = Literal["meets", "fails", "exclude"]
_NS_PER_S = 1_000_000_000


class Objectives(Struct, frozen=True, kw_only=True):
    """What a request must meet to count for goodput, each at most so many ns, or None.

    ``lone_token`` says how a request with one output token, which has no tpot, stands to a tpot
    objective: it meets it (as in vLLM), fails it (as in AIPerf), or is left out of goodput.
    """

    ttft_ns: int | None
    tpot_ns: int | None
    e2el_ns: int | None
    lone_token: SingleToken


class RunMetrics(Struct, frozen=True, kw_only=True):
    """The figures of one run; None where nothing was there to measure.

    Args:
        completed, cancelled, refused, errored: requests by outcome; they sum to those read.
        measured: completed requests after the warm-up.
        single_token: measured requests with one output token, which have no tpot.
        overloaded: the waiting line grew, see `stepahead_tools.overload`.
        output_tokens, duration_ns: of the window.
        output_tokens_per_s, requests_per_s, goodput_per_s: exact.
        goodput_share: requests that met every objective, of those that were asked to.
        ttft, tpot, itl, e2el, queue: latencies.
        npu_busy_share: device time over the time of the run.
        host_gap: idle times of the NPU between device steps while a live request could have run.
        host_gap_total_ns: their sum.
        draft_acceptance: accepted of all draft tokens, those behind a rejected one included.
        tokens_per_row_step: output tokens per row that sampled and device step; 1 without drafts.
        record: everything else.
    """

    completed: int
    cancelled: int
    refused: int
    errored: int
    measured: int
    single_token: int
    overloaded: bool
    output_tokens: int
    duration_ns: int
    output_tokens_per_s: Fraction | None
    requests_per_s: Fraction | None
    goodput_per_s: Fraction | None
    goodput_share: Fraction | None
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None
    queue: Distribution | None
    npu_busy_share: Fraction | None
    host_gap: Distribution | None
    host_gap_total_ns: int
    draft_acceptance: Fraction | None
    tokens_per_row_step: Fraction | None
    record: RunRecord


def measure(
    record: RunRecord,
    *,
    warmup: int = 0,
    objectives: Objectives | None = None,
    closed_loop: bool = False,
) -> RunMetrics:
    """Return the figures of a run.

    Args:
        record: the run.
        warmup: how many requests from the first on are left out.
        objectives: what goodput asks for.
        closed_loop: arrivals followed the ends, so that there is no such thing as overload.
    """
    outcomes = record.outcomes
    after = np.arange(len(outcomes)) >= warmup
    done = (outcomes == Outcome.STOP) | (outcomes == Outcome.LENGTH)
    measured = done & after
    window_ns = _window_ns(record, after)
    counted = after & (done | (outcomes == Outcome.CANCELLED))
    output_tokens = int(record.output_tokens[counted].sum())
    tpots = _tpots_ns(record, measured)
    count = int(measured.sum())
    host_gap, host_gap_total_ns = _host_gaps(record)
    good = None if objectives is None else _good(record, measured, objectives)
    busy, tokens = record.npu_busy_ns, int(record.output_tokens.sum())
    return RunMetrics(
        completed=int(done.sum()),
        cancelled=int((outcomes == Outcome.CANCELLED).sum()),
        refused=int((outcomes == Outcome.REFUSED).sum()),
        errored=int((outcomes == Outcome.ERRORED).sum()),
        measured=count,
        single_token=int((record.output_tokens[measured] == 1).sum()),
        overloaded=not closed_loop
        and grows(record.arrivals_ns, record.waiting_times_ns, record.waiting_counts),
        output_tokens=output_tokens,
        duration_ns=window_ns,
        output_tokens_per_s=_per_s(output_tokens, window_ns),
        requests_per_s=_per_s(count, window_ns),
        goodput_per_s=None if good is None else _per_s(good[0], window_ns),
        goodput_share=Fraction(*good) if good is not None and good[1] else None,
        ttft=distribution((record.first_tokens_ns - record.arrivals_ns)[measured]),
        tpot=distribution(tpots[tpots != NEVER]),
        itl=distribution(*record.token_gaps(measured)),
        e2el=distribution((record.last_tokens_ns - record.arrivals_ns)[measured]),
        queue=distribution((record.first_dispatches_ns - record.arrivals_ns)[measured]),
        npu_busy_share=_share(busy, record.duration_ns),
        host_gap=host_gap,
        host_gap_total_ns=host_gap_total_ns,
        draft_acceptance=_share(
            record.counters.get("accepted_tokens", 0), record.counters.get("drafted_tokens", 0)
        ),
        tokens_per_row_step=_share(tokens, tokens - int(record.extra_tokens.sum())),
        record=record,
    )


def _window_ns(record: RunRecord, after: NDArray[np.bool_]) -> int:
    if not after.any():
        return 0
    return int(record.ends_ns[after].max() - record.arrivals_ns[after].min())


def _host_gaps(record: RunRecord) -> tuple[Distribution | None, int]:
    """Return the distribution and the sum; the gaps themselves, one per step, are given back."""
    gaps = record.step_gaps_ns[1:]
    return distribution(gaps), int(gaps.sum())


def _tpots_ns(record: RunRecord, measured: NDArray[np.bool_]) -> Ints:
    """Return tpot per measured request, rounded half to even; `NEVER` for a single token."""
    spans = (record.last_tokens_ns - record.first_tokens_ns)[measured]
    gaps = record.output_tokens[measured] - 1
    whole, rest = np.divmod(spans, np.maximum(gaps, 1))
    twice = 2 * rest
    up = (twice > gaps) | ((twice == gaps) & (whole % 2 == 1))
    rounded: Ints = np.where(gaps > 0, whole + up, NEVER)
    return rounded


def _good(
    record: RunRecord, measured: NDArray[np.bool_], objectives: Objectives
) -> tuple[int, int]:
    """Count the measured requests that meet every objective, and those that were asked to."""
    asked = measured.copy()
    if objectives.tpot_ns is not None and objectives.lone_token == "exclude":  # noqa: S105 # no secret
        asked &= record.output_tokens > 1
    arrivals = record.arrivals_ns[asked]
    good = np.ones(len(arrivals), dtype=np.bool_)
    if objectives.ttft_ns is not None:
        good &= record.first_tokens_ns[asked] - arrivals <= objectives.ttft_ns
    if objectives.e2el_ns is not None:
        good &= record.last_tokens_ns[asked] - arrivals <= objectives.e2el_ns
    if objectives.tpot_ns is not None:
        spans = (record.last_tokens_ns - record.first_tokens_ns)[asked]
        gaps = record.output_tokens[asked] - 1
        # A single token spans nothing and would meet every objective.
        good &= spans <= objectives.tpot_ns * gaps
        if objectives.lone_token == "fails":  # noqa: S105 # no secret
            good &= gaps > 0
    return int(good.sum()), len(good)


def _share(part: int, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def _per_s(count: int, duration_ns: int) -> Fraction | None:
    return Fraction(count * _NS_PER_S, duration_ns) if duration_ns else None


def hit_tokens_by_tier(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the prompt tokens that were not computed, by where their KV was.

    Those of the host and of the remote store are counted when they are loaded, whether or not the
    request that they were for stays; those of the NPU are the rest of the hits.

    Args:
        counters: the kernel's, see `stepahead.state.Counters`.
    """
    host, remote = counters["host_tokens"], counters["remote_tokens"]
    return {"npu": max(counters["hit_tokens"] - host - remote, 0), "host": host, "remote": remote}
