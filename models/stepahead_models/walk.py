"""The clock of a steady state: many whole turns in plain integers.

A turn is what happens between two deliveries of `BatchExecuted` while the rows stay the same. Its
times follow from the same rules as those of single steps; a turn that any other fact would touch is
not walked. Integers one by one, and not arrays: each time depends on the one before through a
maximum, and a turn costs well under a microsecond once the costs that all turns share are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepahead_models.device import Device, TurnCosts
from stepahead_models.timelines import Timelines
from stepahead_models.tokens import Ints

_FIRST_STEPS = 64
_FOREVER = 1 << 62


@dataclass(slots=True)
class Walk:
    """Times of the turns walked; all in ns.

    ``starts`` and ``ends`` are those of the device steps that the turns began, ``outs`` when the
    tokens of the steps before them were out.
    """

    starts: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    outs: list[int] = field(default_factory=list[int])

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
    new_blocks: list[int]
    until: int | None


def walk(device: Device, time: Timelines, steady: Steady) -> Walk:
    """Walk as many turns as nothing disturbs, and move ``time`` to the end of the last one."""
    walked = Walk()
    limit, done = len(steady.new_blocks), 0
    until = _FOREVER if steady.until is None else steady.until
    while done < limit:
        steps = min(limit - done, done or _FIRST_STEPS)
        costs = device.turn_costs(
            steady.positions + done + 1,
            steady.new_blocks[done : done + steps],
            steady.batch_id + done,
            steady.lookahead,
        )
        if steady.lookahead:
            _walk_ahead(time, costs, steady.select_after, until, walked)
        else:
            _walk_eager(time, costs, until, walked)
        done += steps
        if walked.turns < done:
            break
    time.preparations += walked.turns
    return walked


def _walk_ahead(
    time: Timelines, costs: TurnCosts, select_after: int, until: int, walked: Walk
) -> None:
    """Dispatch the prepared batch, publish, build one more, wait for the NPU, collect."""
    free, busy, hidden = time.host_free_at, 0, 0
    for fill, step, publish, build, collect in costs.per_turn():
        start = free + fill
        end = start + step
        out = start + publish
        selected = max(out, free + select_after)
        if end <= selected:
            # The NPU is done before the host selects: not a whole turn.
            break
        built = selected + build
        collected = max(end, built) + collect
        if collected >= until:
            break
        walked.starts.append(start)
        walked.ends.append(end)
        walked.outs.append(out)
        busy += fill + publish + build + collect
        hidden += publish + min(build, end - selected)
        if built > end:
            time.exposed_preparations += 1
            time.exposed_ns += built - end
        free = collected
    _advance(time, walked, free, busy, hidden)


def _walk_eager(time: Timelines, costs: TurnCosts, until: int, walked: Walk) -> None:
    """Publish, build the next batch, dispatch it, wait for the NPU, collect."""
    free, busy = time.host_free_at, 0
    for fill, step, publish, build, collect in costs.per_turn():
        out = free + publish
        start = out + build + fill
        end = start + step
        collected = end + collect
        if collected >= until:
            break
        walked.starts.append(start)
        walked.ends.append(end)
        walked.outs.append(out)
        busy += publish + build + fill + collect
        time.exposed_preparations += build > 0
        time.exposed_ns += build
        free = collected
    _advance(time, walked, free, busy, 0)


def _advance(time: Timelines, walked: Walk, free: int, busy: int, hidden: int) -> None:
    time.host_free_at = free
    time.cpu_busy_ns += busy
    time.cpu_hidden_ns += hidden
    if walked.starts:
        time.npu_start, time.npu_end = walked.starts[-1], walked.ends[-1]
