"""The clock of a steady state: many whole turns in plain integers.

A turn is what happens between two deliveries of `BatchExecuted` while the rows stay the same. Its
times follow from the same rules as those of single steps; a turn that any other fact would touch is
not walked. Integers one by one, and not arrays: each time depends on the one before through a
maximum, and a turn costs well under a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepahead_models.device import Device
from stepahead_models.timelines import Timelines
from stepahead_models.tokens import Ints

_FIRST_STEPS = 16


@dataclass(slots=True)
class Walk:
    """Times of the turns walked; all in ns.

    ``starts``, ``ends`` and ``gaps`` are those of the device steps that the turns began, ``outs``
    when the tokens of the steps before them were out.
    """

    starts: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    gaps: list[int] = field(default_factory=list[int])
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
    while done < limit:
        steps = min(limit - done, done or _FIRST_STEPS)
        durations = device.decode_ns(steady.positions + done + 1, steady.batch_id + done + 1, steps)
        turn = _turn_ahead if steady.lookahead else _turn_eager
        for duration in durations:
            if not turn(device, time, steady, walked, duration):
                return walked
        done += steps
    return walked


def _turn_ahead(
    device: Device, time: Timelines, steady: Steady, walked: Walk, duration: int
) -> bool:
    """Dispatch the prepared batch, publish, build one more, wait for the NPU, collect."""
    index, rows = len(walked.starts), len(steady.positions)
    executed = steady.batch_id + index
    start = time.host_free_at + device.fill_ns(rows, executed + 1)
    end = start + duration
    out = start + device.publish_ns(rows, executed)
    selected = max(out, time.host_free_at + steady.select_after)
    if end <= selected:
        # The NPU is done before the host selects: not a whole turn.
        return False
    built = selected + device.build_decode_ns(
        rows, steady.new_blocks[index], executed + 1 + steady.lookahead
    )
    done = max(end, built)
    collected = done + device.collect_ns(rows, rows, executed + 1)
    if steady.until is not None and collected >= steady.until:
        return False
    _accept(time, walked, (start, end), out)
    time.cpu_hidden_ns += min(out, end) - start + min(built, end) - selected
    time.cpu_busy_ns += out - time.host_free_at + built - selected + collected - done
    time.host_free_at = collected
    return True


def _turn_eager(
    device: Device, time: Timelines, steady: Steady, walked: Walk, duration: int
) -> bool:
    """Publish, build the next batch, dispatch it, wait for the NPU, collect."""
    index, rows = len(walked.starts), len(steady.positions)
    executed = steady.batch_id + index
    out = time.host_free_at + device.publish_ns(rows, executed)
    built = out + device.build_decode_ns(rows, steady.new_blocks[index], executed + 1)
    start = built + device.fill_ns(rows, executed + 1)
    end = start + duration
    collected = end + device.collect_ns(rows, rows, executed + 1)
    if steady.until is not None and collected >= steady.until:
        return False
    _accept(time, walked, (start, end), out)
    time.cpu_busy_ns += start - time.host_free_at + collected - end
    time.host_free_at = collected
    return True


def _accept(time: Timelines, walked: Walk, span: tuple[int, int], out: int) -> None:
    walked.starts.append(span[0])
    walked.ends.append(span[1])
    walked.gaps.append(span[0] - time.npu_end)
    walked.outs.append(out)
    time.npu_start, time.npu_end = span
