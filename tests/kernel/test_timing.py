"""Selection just in time: what is waited for, and which wakes count."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead.commands import (
    AbandonBatch,
    Command,
    DispatchBatch,
    LoadBlocks,
    PrepareBatch,
    WakeAt,
)
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    CacheResetRequested,
    CacheTarget,
    HostReady,
    RequestArrived,
    RequestCancelled,
    TransferDone,
    Woke,
)
from stepahead.timing import Durations, Estimate, Key

STEP = 1000
BUILD = 100
TOKEN = np.array([[9]], dtype=np.int64)


class Machine:
    """Requests that decode; a device step takes `STEP`, a preparation `BUILD`, all else nothing."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 # options of the kernel
        limits: dict[str, Any] = {
            "num_blocks": 64,
            "lookahead": 1,
            "timing": SelectionTiming.JUST_IN_TIME,
        }
        self.kernel = Kernel(KernelConfig(**(limits | options)))
        self.at = self.begun = 0

    def arrive(self, name: str, tokens: int = 500, prompt: int = 1) -> None:
        """A request arrives now; prompts of the same length are equal."""
        blocks = prompt // self.kernel.config.block_size
        self.kernel.step(
            RequestArrived(
                request_id=name,
                prompt_length=prompt,
                max_tokens=tokens,
                at=self.at,
                arrived_at=self.at,
                block_keys=np.arange(blocks, dtype=np.int64),
            )
        )

    def ready(self) -> tuple[Command, ...]:
        """The host is ready now."""
        return self.kernel.step(HostReady(at=self.at))

    def prepared(self, batch_id: int) -> tuple[Command, ...]:
        """The host has built a batch."""
        self.at += BUILD
        return self.kernel.step(BatchPrepared(batch_id=batch_id, at=self.at))

    def executed(self, at: int) -> tuple[Command, ...]:
        """The device is done with the batch on it."""
        self.at = at
        tokens = TOKEN.repeat(len(self.kernel.batches()[0].rows), axis=1)
        event = BatchExecuted(batch_id=self.kernel.batches()[0].batch_id, tokens=tokens, at=at)
        return self.kernel.step(event)

    def learn(self) -> WakeAt:
        """Run until the kernel asks to be woken; return when."""
        self.arrive("a")
        for _ in range(20):
            answer = self.ready()
            if answer and isinstance(answer[0], WakeAt):
                return answer[0]
            self.turn(answer)
        raise AssertionError("the kernel never waits")

    def turn(self, answer: tuple[Command, ...]) -> None:
        """Build what is asked for, or else let the device end its step."""
        if answer and isinstance(answer[0], PrepareBatch):
            started = self.prepared(answer[0].batch_id)
        else:
            started = self.executed(self.begun + STEP)
        if started and isinstance(started[0], DispatchBatch):
            self.begun = self.at


def test_what_is_known_of_a_step_and_a_preparation_is_waited_for() -> None:
    """The wake lies before the predicted end by the preparation and a margin, not by much more."""
    machine = Machine()
    wake = machine.learn()
    running = machine.kernel.batches()[0]
    end = machine.at + STEP
    assert running.state.value == "dispatched"
    assert end - 3 * BUILD - STEP // 4 <= wake.at < end - BUILD


def test_a_wake_in_time_selects() -> None:
    """The batch behind the running one is prepared."""
    machine = Machine()
    wake = machine.learn()
    (answer,) = machine.kernel.step(Woke(wake_id=wake.wake_id, at=wake.at))
    assert isinstance(answer, PrepareBatch)
    assert answer.batch_id == wake.wake_id


def test_wakes_that_are_early_stale_or_doubled_do_nothing() -> None:
    """No command, and the wake that was asked for still counts."""
    machine = Machine()
    wake = machine.learn()
    step = machine.kernel.step
    assert step(Woke(wake_id=wake.wake_id, at=wake.at - 1)) == ()
    assert step(Woke(wake_id=wake.wake_id + 1, at=wake.at)) == ()
    assert len(step(Woke(wake_id=wake.wake_id, at=wake.at))) == 1
    assert step(Woke(wake_id=wake.wake_id, at=wake.at)) == ()


def test_a_woken_kernel_that_finds_nothing_to_do_stays_quiet() -> None:
    """The only client has left meanwhile."""
    machine = Machine()
    wake = machine.learn()
    machine.kernel.step(RequestCancelled(request_id="a", handle=None, at=machine.at))
    before = machine.kernel.counters.values()
    assert machine.kernel.step(Woke(wake_id=wake.wake_id, at=wake.at)) == ()
    assert machine.kernel.counters.values() == before
    assert len(machine.kernel.batches()) == 1


def test_a_lost_wake_costs_the_hiding_only() -> None:
    """The device is done first; the next HostReady selects as in the eager loop."""
    machine = Machine()
    wake = machine.learn()
    machine.executed(machine.at + STEP)
    (answer,) = machine.ready()
    assert isinstance(answer, PrepareBatch)
    assert machine.kernel.step(Woke(wake_id=wake.wake_id, at=machine.at)) == ()
    (dispatch,) = machine.prepared(answer.batch_id)
    assert isinstance(dispatch, DispatchBatch)


def test_a_lost_wake_is_learnt_as_a_late_preparation() -> None:
    """The margin grows, and is public."""
    machine = Machine()
    machine.learn()
    before = machine.kernel.margin_ppm
    machine.executed(machine.at + STEP)
    after = machine.kernel.margin_ppm
    assert before is not None
    assert after is not None
    assert after > before
    assert Kernel(KernelConfig(num_blocks=4, lookahead=1)).margin_ppm is None


def _with_a_prompt_on_the_host(deadline_ns: int) -> tuple[Machine, WakeAt]:
    """Return a machine that decodes, waits to select, and has a prompt of four on the host."""
    machine = Machine(
        num_blocks=600,
        block_size=1,
        host_pages=4,
        write_through_threshold=1,
        load_deadline_ns=deadline_ns,
    )
    for name in ("first", "second"):  # the second is a hit, which copies the prompt to the host
        machine.arrive(name, tokens=1, prompt=4)
        while machine.kernel.requests():
            machine.turn(machine.ready())
    machine.ready()
    (store,) = machine.kernel.transfers
    machine.kernel.step(TransferDone(transfer_id=store.transfer_id, at=machine.at))
    machine.kernel.step(CacheResetRequested(at=machine.at, target=CacheTarget.NPU))
    return machine, machine.learn()


def test_the_deadline_of_a_load_is_no_late_preparation() -> None:
    """The last row runs, the next request loads: the margin falls, deadline or not."""
    margins: list[int | None] = []
    for deadline_ns in (0, 100 * STEP):
        machine, wake = _with_a_prompt_on_the_host(deadline_ns)
        machine.kernel.step(RequestCancelled(request_id="a", at=machine.at))
        machine.arrive("again", prompt=4)
        machine.at = wake.at
        (load,) = machine.kernel.step(Woke(wake_id=wake.wake_id, at=machine.at))
        assert isinstance(load, LoadBlocks)
        answer = machine.ready()
        assert [type(command) for command in answer] == ([WakeAt] if deadline_ns else [])
        before = machine.kernel.margin_ppm
        machine.executed(machine.begun + STEP)
        after = machine.kernel.margin_ppm
        assert before is not None
        assert after is not None
        assert after < before
        margins += [before, after]
    assert margins[:2] == margins[2:]


def test_whoever_is_woken_for_a_deadline_still_selects_just_in_time() -> None:
    """The wake comes before the host is ready, right behind a dispatch."""
    machine, wake = _with_a_prompt_on_the_host(STEP // 2)
    machine.arrive("again", prompt=4)
    machine.at = wake.at
    load, prepare = machine.kernel.step(Woke(wake_id=wake.wake_id, at=machine.at))
    assert isinstance(load, LoadBlocks)
    assert isinstance(prepare, PrepareBatch)
    machine.prepared(prepare.batch_id)
    (deadline,) = machine.ready()
    assert isinstance(deadline, WakeAt)
    assert (deadline.wake_id, deadline.at) == (prepare.batch_id + 1, wake.at + STEP // 2)
    machine.executed(max(machine.begun + STEP, deadline.at))
    (later,) = machine.kernel.step(Woke(wake_id=deadline.wake_id, at=machine.at))
    assert machine.kernel.counters.expired_loads == 1
    assert isinstance(later, WakeAt)
    assert later.at > machine.at
    (again,) = machine.kernel.step(Woke(wake_id=later.wake_id, at=later.at))
    assert isinstance(again, PrepareBatch)
    assert len(again.seats) == 2


def test_a_waiting_batch_is_selected_again_for_an_arrival_while_that_is_hidden() -> None:
    """With late joiners nobody waits; soon after the dispatch the batch is replaced, later not."""
    machine = Machine(late_joiners=True)
    machine.arrive("a")
    for _ in range(12):
        machine.turn(machine.ready())
    while machine.kernel.batches()[-1].state.value != "prepared":
        machine.turn(machine.ready())
    waiting = machine.kernel.batches()[-1].batch_id
    machine.arrive("b")
    abandon, prepare = machine.ready()
    assert abandon == AbandonBatch(batch_id=waiting)
    assert isinstance(prepare, PrepareBatch)
    assert (prepare.batch_id, len(prepare.seats)) == (waiting + 1, 2)
    machine.prepared(prepare.batch_id)
    machine.at = machine.begun + STEP - BUILD
    machine.arrive("c")
    assert machine.ready() == ()


def test_an_unseen_size_is_predicted_from_its_tokens_and_a_first_one_is_doubted() -> None:
    """Fine before coarse; a first one deviates by an eighth, a later one by what was seen."""
    known, first, second = Durations(), Key(1, 2), Key(9, 2)
    assert known.find(first) is None
    known.learn(first, 800)
    assert known.find(first) == Estimate(mean=800, deviation=100)
    assert known.find(second) == Estimate(mean=800, deviation=100)
    known.learn(second, 1600)
    assert known.find(second) == Estimate(mean=1600, deviation=275)
    assert known.find(Key(5, 2)) == Estimate(mean=900, deviation=275)
    estimate = Estimate(mean=900, deviation=275)
    assert (estimate.low, estimate.high) == (350, 1450)
    other = known.copy()
    other.learn(first, 800)
    assert known.find(first) == Estimate(mean=800, deviation=100)
