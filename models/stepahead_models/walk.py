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
from numpy.typing import NDArray

from stepahead.arrays import EMPTY
from stepahead_models.device import Device, TurnCosts
from stepahead_models.timelines import Timelines
from stepahead_models.tokens import Ints

_FIRST_TURNS: Final = 256
_FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Times of the turns walked in ns, each of shape ``(turns,)``.

    ``starts`` and ``ends`` are those of the device steps that the turns began, ``outs`` when the
    tokens of the steps before them were out.
    """

    starts: Ints
    ends: Ints
    outs: Ints

    @property
    def turns(self) -> int:
        """Count the turns."""
        return len(self.starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A steady state whose dispatched batch is about to be reported as executed.

    Args:
        batch_id: that batch.
        positions: KV positions that it computed, shape ``(rows,)``.
        lookahead: batches prepared behind it.
        select_after: each selection is made this long after the batch before was dispatched, or as
            soon as the host is ready; only with batches prepared ahead.
        new_blocks: blocks that each coming selection adds, one entry per turn; as many turns may be
            walked.
        until: when the next fact from outside occurs, or None.
    """

    batch_id: int
    positions: Ints
    lookahead: int
    select_after: int
    new_blocks: Ints
    until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """What each turn adds, in ns from its begin; shape ``(turns,)``.

    ``whole`` tells whether it is a whole turn: the NPU is not done before the host selects, nor,
    where the host was made to wait, before it has built, for from that the kernel learns.
    ``hidden`` and ``exposed`` are CPU time while the NPU runs, and how long it waits for the
    preparation.
    """

    start: Ints
    end: Ints
    out: Ints
    length: Ints
    whole: NDArray[np.bool_]
    busy: Ints
    hidden: Ints
    exposed: Ints


def walk(device: Device, time: Timelines, steady: Steady) -> Walk:
    """Walk as many turns as nothing disturbs, and move ``time`` to the end of the last one."""
    if steady.select_after and time.late:
        return Walk(starts=EMPTY, ends=EMPTY, outs=EMPTY)
    parts: list[tuple[Ints, Ints, Ints]] = []
    limit, done = len(steady.new_blocks), 0
    until = _FOREVER if steady.until is None else steady.until
    while done < limit:
        steps = min(limit - done, done or _FIRST_TURNS)
        costs = device.turn_costs(
            steady.positions + (done + 1),
            steady.new_blocks[done : done + steps],
            steady.batch_id + done,
            steady.lookahead,
        )
        turns = _ahead(costs, steady.select_after) if steady.lookahead else _eager(costs)
        parts.append(_advance(time, turns, until))
        done += steps
        if len(parts[-1][0]) < steps:
            break
    starts, ends, outs = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Walk(starts=starts, ends=ends, outs=outs)


def _ahead(costs: TurnCosts, select_after: int) -> _Turns:
    """Dispatch the prepared batch, publish, build one more, wait for the NPU, collect."""
    start = costs.fill
    end = start + costs.step
    out = start + costs.publish
    selected = np.maximum(out, select_after)
    built = selected + costs.build
    return _Turns(
        start=start,
        end=end,
        out=out,
        length=np.maximum(end, built) + costs.collect,
        whole=(end > selected) & (end >= built) if select_after else end > selected,
        busy=out + costs.build + costs.collect,
        hidden=costs.publish + np.minimum(costs.build, end - selected),
        exposed=np.maximum(built - end, 0),
    )


def _eager(costs: TurnCosts) -> _Turns:
    """Publish, build the next batch, dispatch it, wait for the NPU, collect."""
    out = costs.publish
    start = out + costs.build + costs.fill
    end = start + costs.step
    return _Turns(
        start=start,
        end=end,
        out=out,
        length=end + costs.collect,
        whole=np.ones(len(end), dtype=np.bool_),
        busy=start + costs.collect,
        hidden=np.zeros_like(end),
        exposed=costs.build,
    )


def _advance(time: Timelines, turns: _Turns, until: int) -> tuple[Ints, Ints, Ints]:
    """Move the clock by the turns that are whole and over before ``until``; return their times."""
    collected = turns.length.cumsum() + time.host_free_at
    stops = ~(turns.whole & (collected < until))
    count = int(stops.argmax()) if np.count_nonzero(stops) else len(stops)
    begins = collected[:count] - turns.length[:count]
    starts, ends, outs = (begins + column[:count] for column in (turns.start, turns.end, turns.out))
    if count:
        exposed = turns.exposed[:count]
        time.host_free_at = int(collected[count - 1])
        time.npu_start, time.npu_end = int(starts[-1]), int(ends[-1])
        time.cpu_busy_ns += int(turns.busy[:count].sum())
        time.cpu_hidden_ns += int(turns.hidden[:count].sum())
        time.preparations += count
        time.exposed_preparations += int(np.count_nonzero(exposed))
        time.exposed_ns += int(exposed.sum())
        time.late = bool(exposed[-1])
    return starts, ends, outs
