"""The clock of a steady state: many whole turns at once.

A turn is what happens between two deliveries of `BatchExecuted` while the rows stay the same. Its
times follow from the same rules as those of single steps; a turn that any other fact would touch is
not walked. Counted from its own begin, a turn does not depend on the one before: even the later of
device and host is the later of two durations. So the lengths of all turns are known at once, and
the clock is their running sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, Mask, concatenate, count_nonzero, ints, maximum
from stepahead.timing import Pace
from stepahead_models.device import Device, Span, TurnCosts
from stepahead_models.npu import BatchShape
from stepahead_models.timelines import Timelines
from stepahead_models.tokens import Ints

_FIRST_TURNS: Final = 1024
_FOREVER: Final = 1 << 62


@dataclass(slots=True)
class Walk:
    """Times of the turns walked in ns, each of shape ``(turns,)``.

    ``begins`` is when the steps before the turns were reported, ``starts`` and ``ends`` are those
    of the device steps that the turns began, ``outs`` when the tokens of the steps before were out.
    ``builds`` says how long the host built a batch in each turn that the kernel learns from.
    """

    begins: Ints
    starts: Ints
    ends: Ints
    outs: Ints
    builds: list[int]

    @property
    def turns(self) -> int:
        """Count the turns."""
        return len(self.starts)


def _nowhere() -> Walk:
    return Walk(EMPTY, EMPTY, EMPTY, EMPTY, [])


@dataclass(slots=True, kw_only=True)
class Steady:
    """A steady state whose dispatched batch is about to be reported as executed.

    Args:
        batch_id: that batch.
        shape: what it cost by; each coming one computes as many tokens per row, behind those.
        lookahead: batches prepared behind it.
        select_after: each selection is made this long after the batch before was dispatched, or as
            soon as the host is ready; only with batches prepared ahead.
        pace: says what that is in the first turns, if it is not known yet.
        new_blocks: blocks that each coming selection adds, one entry per turn; as many turns may be
            walked.
        until: when the next fact from outside occurs, or None.
    """

    batch_id: int
    shape: BatchShape
    lookahead: int
    select_after: int
    pace: Pace | None
    new_blocks: Ints
    until: int | None


@dataclass(slots=True)
class _Turns:
    """Times of each turn in ns, from its begin; at ``over`` the host has all it waits for.

    ``whole`` tells whether it is a whole turn (None: all are): the NPU is not done before the host
    selects, nor, where the host was made to wait, before it has built, for from that the kernel
    learns. ``exposed`` is how long the NPU waits for the preparation.
    """

    start: Span
    end: Ints
    out: Span
    over: Ints
    whole: Mask | None
    exposed: Span


def walk(device: Device, time: Timelines, steady: Steady) -> Walk:
    """Walk as many turns as nothing disturbs, and move ``time`` to the end of the last one."""
    if steady.select_after and time.late:
        return _nowhere()
    delays, builds = [steady.select_after], list[int]()
    parts: list[Walk] = []
    limit, done = len(steady.new_blocks), 0
    until = _FOREVER if steady.until is None else steady.until
    ahead = steady.lookahead > 0
    while done < limit:
        steps = min(limit - done, done or _FIRST_TURNS)
        costs = device.turn_costs(
            steady.shape,
            done + 1,
            steady.new_blocks[done : done + steps],
            steady.batch_id + done,
            steady.lookahead,
        )
        if steady.pace is not None:
            begun = parts[-1].begins.item(-1) if parts else steady.pace.dispatched_at
            learnt = _delays(steady.pace, time.npu_end - begun, costs)
            builds += [_at(costs.build, turn) for turn in range(len(learnt))]
            delays = learnt or delays[-1:]
        turns = _ahead(costs, delays) if ahead else _eager(costs)
        parts.append(_advance(time, turns, costs.collect, until))
        _account(time, costs, turns.exposed, parts[-1].turns, ahead=ahead)
        done += steps
        if parts[-1].turns < steps:
            break
    if len(parts) == 1:
        parts[0].builds = builds
        return parts[0]
    return Walk(
        concatenate([part.begins for part in parts]),
        concatenate([part.starts for part in parts]),
        concatenate([part.ends for part in parts]),
        concatenate([part.outs for part in parts]),
        builds,
    )


def _delays(pace: Pace, span: int, costs: TurnCosts) -> list[int]:
    """Return when to select in the turns that are learnt from, each counted from its begin.

    Args:
        pace: what the kernel said.
        span: of the step that the first turn begins with, from its dispatch on.
        costs: of the turns.
    """
    delays: list[int] = []
    for turn in range(min(pace.learns, len(costs.step))):
        fill = _at(costs.fill, turn)
        pace.executed(span)
        delays.append(pace.ready(fill + _at(costs.publish, turn)))
        pace.built(_at(costs.build, turn))
        span = fill + costs.step.item(turn)
    return delays


def _ahead(costs: TurnCosts, delays: list[int]) -> _Turns:
    """Dispatch the prepared batch, publish, build one more, wait for the NPU, collect.

    Each turn selects after its delay at the earliest, those behind the last of them as that one.
    """
    start = costs.fill
    end = costs.step + start
    out = start + costs.publish
    over: Ints = end
    whole: Mask | None = None
    exposed: Span = 0
    # Where the NPU may not be the last to be done:
    if _most(_later(out, max(delays))) + _most(costs.build) >= end.item(end.argmin()):
        select_after = np.full(len(end), delays[-1])
        select_after[: len(delays)] = delays
        selected = maximum(out, select_after)
        over = maximum(end, selected + costs.build)
        exposed = over - end
        whole = (end > selected) & ((exposed == 0) | (select_after == 0))
    return _Turns(start, end, out, over, whole, exposed)


def _eager(costs: TurnCosts) -> _Turns:
    """Publish, build the next batch, dispatch it, wait for the NPU, collect."""
    start = costs.publish + costs.build + costs.fill
    end = costs.step + start
    return _Turns(start, end, costs.publish, end, None, costs.build)


def _advance(time: Timelines, turns: _Turns, collect: Span, until: int) -> Walk:
    """Move the clock by the turns that are whole and over before ``until``; return their times."""
    edges = ints(len(turns.over) + 1)
    edges[0] = time.host_free_at
    edges[1:] = turns.over + collect
    edges = edges.cumsum()
    collected = edges[1:]
    count = int(collected.searchsorted(until))
    if count and turns.whole is not None:
        least = int(turns.whole[:count].argmin())
        count = count if turns.whole[least] else least
    if not count:
        return _nowhere()
    begins = edges[:count]
    starts = begins + _first(turns.start, count)
    ends = begins + _first(turns.end, count)
    time.host_free_at = collected.item(count - 1)
    time.npu_start, time.npu_end = starts.item(-1), ends.item(-1)
    return Walk(begins, starts, ends, begins + _first(turns.out, count), [])


def _account(time: Timelines, costs: TurnCosts, exposed: Span, count: int, *, ahead: bool) -> None:
    """Add up what the first ``count`` turns took."""
    if not count:
        return
    time.npu_busy_ns += _sum(costs.step, count)
    waited = _sum(exposed, count)
    beside = _sum(costs.publish, count) + _sum(costs.build, count)
    time.cpu_busy_ns += beside + _sum(costs.fill, count) + _sum(costs.collect, count)
    if ahead:
        # The NPU runs from before the publishing until it waits for the build.
        time.cpu_hidden_ns += beside - waited
    time.preparations += count
    time.exposed_ns += waited
    if isinstance(exposed, int):
        time.exposed_preparations += count if exposed else 0
        time.late = exposed > 0
    else:
        time.exposed_preparations += int(count_nonzero(exposed[:count]))
        time.late = exposed.item(count - 1) > 0


def _later(one: Span, other: Span) -> Span:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    return maximum(one, other)


def _most(span: Span) -> int:
    return span if isinstance(span, int) else span.item(span.argmax())


def _at(span: Span, turn: int) -> int:
    return span if isinstance(span, int) else span.item(turn)


def _first(span: Span, count: int) -> Span:
    return span if isinstance(span, int) or len(span) == count else span[:count]


def _sum(span: Span, count: int) -> int:
    first = _first(span, count)
    return first * count if isinstance(first, int) else int(first.sum())
