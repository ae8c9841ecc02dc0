"""When a batch is selected, and what is learnt of it, event by event, on walks just in time.

`Watched` asks before each event what the rule of the documents makes of the state, and compares:
select at once, ask to be woken, or select once more for an arrival while that is still hidden.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Final

import numpy as np

from stepahead import Kernel
from stepahead.batches import Batch
from stepahead.commands import AbandonBatch, AdmitRequest, Command, PrepareBatch, WakeAt
from stepahead.config import KernelConfig, SelectionTiming
from stepahead.events import BatchExecuted, BatchPrepared, Event, HostReady, RequestArrived, Woke
from stepahead.state import Snapshot
from stepahead.tables import BatchState
from stepahead.timing import JustInTime, Volume
from stepahead_specs.bench import Bench
from stepahead_specs.machines import EOS
from stepahead_specs.oracle import Ask, HashModel

#: How likely a move is something odd, a wake that is due, the end of the device's step.
_ODD: Final = 0.08
_AWAKE: Final = 0.6
_DONE: Final = 0.9
#: How likely an arrival comes just in time to join.
_PUNCTUAL: Final = 0.6


def outstanding(saved: Snapshot) -> list[Batch]:
    """Return the batches that are not back, oldest first."""
    return list(saved.batches[saved.filled :])


def timing_of(saved: Snapshot) -> JustInTime:
    """Return what was learnt about durations."""
    assert saved.timing is not None
    return saved.timing


def latest_of(saved: Snapshot) -> int:
    """Return how long after its dispatch a preparation behind the running batch may begin, ns."""
    running = outstanding(saved)[0]
    return timing_of(saved).latest(running.volume, fresh=running.fresh)


class Watched(Bench):
    """A host whose device says when it was done, and that knows when the kernel has to select."""

    def __init__(self, config: KernelConfig, model: HashModel, random: Random) -> None:
        super().__init__(config, model, checked=False)
        self.random = random
        #: How often each kind of answer was right.
        self.came: Counter[str] = Counter()
        #: Somebody has come to the head of the line since the last selection.
        self.joinable = False
        #: Sizes of the newest row sets, by the requests in them.
        self.sizes: dict[bytes, Volume] = {}

    def go_on(self, number: int) -> None:
        """Take one move: the host's work first, most of the time."""
        random, chance = self.random, self.random.random()
        self._at += random.choice((0, 0, 1, 3))
        if chance < _ODD:
            self._happens(
                random.choice(("pause", "stale", "cancel", "arrive", "wake", "wake")), number
            )
        elif self.building is not None:
            self.prepared()
        elif self.ready_due:
            self.host_ready()
        elif self.wake is not None and chance < _AWAKE:
            self.woke_in_time()
        elif self.on_device is not None and chance < _DONE:
            self.executed()
        else:
            self._happens("arrive", number)

    def _happens(self, what: str, number: int) -> None:
        """Let somebody arrive (perhaps at the last moment to join), leave, or ask for a pause."""
        if what == "pause" and self.building is None:
            self.pause()
            self.host_ready()
            self.resume()
        elif what == "stale" and self.building is None:
            self.woke(number)
        elif what == "wake" and self.wake is not None and self.building is None:
            self.woke_in_time()  # perhaps before the host is ready again
        elif what == "cancel" and (live := self.seen.live()):
            self.cancel(live[0].request_id)
        elif what == "arrive":
            saved = self.kernel.snapshot()
            if (batches := outstanding(saved)) and self.random.random() < _PUNCTUAL:
                latest = batches[0].dispatched_at + latest_of(saved)
                # An event later the host is ready: a moment before the last one, then, or after.
                self._at = max(self._at, latest - 2 + self.random.choice((-1, 0, 0, 1)))
            prompt = (number, *range(self.random.choice((0, 0, 6))))
            self.arrive(Ask(request_id=f"r{number}", prompt=prompt, max_tokens=30))

    def _step(self, event: Event, ask: Ask | None = None) -> tuple[Command, ...]:
        saved = self.kernel.snapshot()
        if isinstance(event, HostReady) and not self.kernel.awaits_host():
            self._changes_nothing(event)
        if isinstance(event, BatchExecuted):
            begun = outstanding(saved)[0].dispatched_at
            ended_at = self.random.choice((-1, event.at, self.random.randint(begun, event.at)))
            event = replace(event, ended_at=ended_at)
        commands = super()._step(event, ask)
        after = timing_of(self.kernel.snapshot())
        match event:
            case HostReady():
                self._host_ready(event, saved, commands)
            case Woke():
                self._woke(event, saved, commands)
            case BatchExecuted():
                assert after == self._learnt(event, saved)
            case BatchPrepared():
                expected = timing_of(saved)
                batch = outstanding(saved)[-1]
                if batch.fresh:
                    expected.built(batch.volume, event.at - batch.selected_at)
                assert after == expected
            case _:
                assert after == timing_of(saved)
        for command in commands:
            if isinstance(command, AdmitRequest):
                ranks = {v.handle: v.rank for v in self.kernel.requests() if v.seat is None}
                self.joinable |= min(ranks, key=lambda handle: ranks[handle]) == command.handle
        return commands

    def _changes_nothing(self, event: HostReady) -> None:
        before = self.kernel.digest()
        assert self.kernel.step(replace(event, at=self.kernel.now)) == ()
        assert self.kernel.digest() == before
        self.came["not awaited"] += 1

    def _may_select(self, saved: Snapshot) -> bool:
        batches, paused = outstanding(saved), saved.flags[0]
        building = bool(batches) and batches[-1].state is BatchState.QUEUED
        return not paused and len(batches) <= self.config.lookahead and not building

    def _host_ready(self, event: HostReady, saved: Snapshot, commands: tuple[Command, ...]) -> None:
        if not self._may_select(saved):
            self._joins(event, saved, commands)
            return
        batches, due = outstanding(saved), 0
        if batches and batches[0].state is BatchState.DISPATCHED:
            due = batches[0].dispatched_at + latest_of(saved)
            due = 0 if self.config.late_joiners else due
        if due <= event.at:
            self._selects(saved, commands)
            return
        ident = batches[-1].batch_id + 1
        asked = saved.wake is not None and (saved.wake.wake_id, saved.wake.at) == (ident, due)
        assert commands == (() if asked else (WakeAt(wake_id=ident, at=due),))
        self.came["waits" if not asked else "waits still"] += 1

    def _selects(self, saved: Snapshot, commands: tuple[Command, ...]) -> None:
        assert not any(isinstance(command, WakeAt) for command in commands)
        self.joinable = False
        rows = any(isinstance(command, PrepareBatch) for command in commands)
        self.came["selects" if rows else "finds no row"] += 1
        assert timing_of(self.kernel.snapshot()) == timing_of(saved)
        for command in commands:
            if isinstance(command, PrepareBatch):
                self._sized(command)

    def _sized(self, command: PrepareBatch) -> None:
        """A new row set says how large it is; one that goes on keeps the size that it had."""
        batch = outstanding(self.kernel.snapshot())[-1]
        assert (batch.batch_id, batch.selected_at) == (command.batch_id, self.kernel.now)
        ends = command.positions + command.token_counts
        size = Volume.of(len(command.seats), int(command.token_counts.sum()), int(ends.sum()))
        if batch.fresh:
            assert batch.volume == size
            self.sizes[command.handles.tobytes()] = size
        else:
            assert command.token_counts.max() == 1
            assert batch.volume == self.sizes[command.handles.tobytes()]
        self.came["new rows" if batch.fresh else "same rows"] += 1

    def _joins(self, event: HostReady, saved: Snapshot, commands: tuple[Command, ...]) -> None:
        batches, timing = outstanding(saved), timing_of(saved)
        waits = len(batches) > 1 and batches[-1].state is BatchState.PREPARED
        if not (self.config.late_joiners and self.joinable and waits):
            assert commands == ()
            return
        self.joinable = False
        running, paused = batches[0], saved.flags[0]
        latest = running.dispatched_at + latest_of(saved)
        if paused or running.state is not BatchState.DISPATCHED or event.at > latest:
            assert commands == ()
            self.came["too late to join"] += 1
            return
        abandoned, *others = commands
        assert abandoned == AbandonBatch(batch_id=batches[-1].batch_id)
        assert [type(command) for command in others] in ([PrepareBatch], [])
        for command in others:
            assert isinstance(command, PrepareBatch)
            self._sized(command)
        self.came["joins"] += 1
        self.came["joins at the last moment"] += event.at == latest
        timing.waits(running.batch_id, fresh=running.fresh)
        assert timing_of(self.kernel.snapshot()) == timing

    def _woke(self, event: Woke, saved: Snapshot, commands: tuple[Command, ...]) -> None:
        wake = saved.wake
        if wake is None or wake.wake_id != event.wake_id or event.at < wake.at:
            assert commands == ()
            self.came["wakes for nothing"] += 1
        elif self._may_select(saved):
            self._selects(saved, commands)
            self.came["wakes"] += 1
        else:
            assert commands == ()

    def _learnt(self, event: BatchExecuted, saved: Snapshot) -> JustInTime:
        """Return what is known afterwards: the batch's span, and whether its successor was late."""
        batches, timing = outstanding(saved), timing_of(saved)
        ended_at = event.at if event.ended_at < 0 else event.ended_at
        if len(batches) > 1:
            late = batches[1].state is BatchState.QUEUED or batches[1].prepared_at > ended_at
        else:
            late = saved.wake is not None and saved.wake.selects
        self.came["late" if late else "in time"] += 1
        running = batches[0]
        timing.executed(
            running.batch_id,
            running.volume,
            ended_at - running.dispatched_at,
            fresh=running.fresh,
            late=late,
        )
        return timing


def watched(seed: int) -> Counter[str]:
    """Drive a kernel just in time; return what came up."""
    random = Random(seed)  # noqa: S311 - repeatable, not secret
    config = KernelConfig(
        num_blocks=random.choice((12, 40)),
        block_size=4,
        max_concurrency=random.choice((2, 4)),
        max_model_len=40,
        lookahead=random.choice((1, 1, 2, 3)),
        timing=SelectionTiming.JUST_IN_TIME,
        late_joiners=seed % 2 == 0,
        late_share_ppm=random.choice((1, 10_000, 500_000)),
        prune=random.choice((False, True)),
        eos_token_id=EOS,
    )
    bench = Watched(config, HashModel(eos=EOS), random)
    bench.device_time = random.choice((5, 20, 60))
    for number in range(120):
        bench.go_on(number)
    bench.drain()
    return bench.came


KINDS = {
    "waits",
    "waits still",
    "not awaited",
    "selects",
    "finds no row",
    "too late to join",
    "new rows",
    "same rows",
    "joins",
    "joins at the last moment",
    "wakes",
    "wakes for nothing",
    "late",
    "in time",
}


def test_a_batch_is_selected_when_it_is_time_and_not_otherwise() -> None:
    """After every event; each kind of answer comes up."""
    came: Counter[str] = Counter()
    for seed in range(40):
        came += watched(seed)
    assert came.keys() >= KINDS


def test_a_device_that_was_done_at_time_0_was_not_slow() -> None:
    """0 is a time; only a negative one means that the host does not know."""
    for ended_at, took in ((0, 0), (-1, 10), (7, 7)):
        kernel = Kernel(KernelConfig(num_blocks=4, timing=SelectionTiming.JUST_IN_TIME))
        kernel.step(
            RequestArrived(request_id="a", prompt_length=1, max_tokens=2, at=0, arrived_at=0)
        )
        kernel.step(HostReady(at=0))
        kernel.step(BatchPrepared(batch_id=1, at=0))
        tokens = np.array([[9]], dtype=np.int64)
        kernel.step(BatchExecuted(batch_id=1, tokens=tokens, at=10, ended_at=ended_at))
        assert timing_of(kernel.snapshot()).last_span == took
