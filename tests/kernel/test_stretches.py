"""Stretches against single steps, without a simulator: two kernels, one of which leaps.

Whenever the first kernel says that it may go on for several device steps, it takes as many at once
as nothing disturbs; the second one makes each of them. After every leap they are in the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from stepahead.arrays import Ints
from stepahead.commands import AdmitRequest, EmitTokens, FinishRequest, PrepareBatch
from stepahead.config import BatchPreference, KernelConfig, WaitingOrder
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    BatchRefused,
    Event,
    HostReady,
    RequestArrived,
    RequestCancelled,
)
from stepahead.kernel import Kernel
from stepahead.stretches import Repeat
from stepahead.tables import BatchState
from stepahead.views import BatchView

EOS = 7
#: So many requests share their prompts' beginnings.
FAMILIES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A request: when it comes and goes, in device steps, and what it brings."""

    arrives: int
    prompt: int
    outputs: int
    eos_at: int
    leaves: int
    family: int
    priority: int


@dataclass
class Driver:
    """A host for one kernel.

    The first batch that is selected after any of ``refusals`` device steps cannot be built.
    """

    kernel: Kernel
    plans: list[Plan]
    refusals: frozenset[int] = frozenset()
    steps: int = 0
    refused: set[int] = field(default_factory=set[int])
    plan_of: dict[int, Plan] = field(default_factory=dict[int, Plan])
    tokens: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    ends: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    tables: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def give(self, given: Event) -> None:
        """Report a fact, and build what is asked for."""
        for command in self.kernel.step(given):
            match command:
                case PrepareBatch():
                    self.give(self.built(command.batch_id))
                    self.give(HostReady(at=self.steps))
                case EmitTokens():
                    columns = command.tokens.T.tolist()
                    for handle, sent in zip(command.handles.tolist(), columns, strict=True):
                        self.tokens.setdefault(handle, []).extend(sent)
                case FinishRequest():
                    self.ends.append((command.handle, command.reason.value, command.output_tokens))
                case _:
                    pass

    def built(self, batch_id: int) -> Event:
        """Return what becomes of a batch that is to be built."""
        if self.steps in self.refusals - self.refused:
            self.refused.add(self.steps)
            return BatchRefused(batch_id=batch_id, at=self.steps)
        return BatchPrepared(batch_id=batch_id, at=self.steps)

    def clients(self) -> None:
        """Let those come and go whose time it is."""
        for number, plan in enumerate(self.plans):
            if plan.arrives == self.steps:
                keys = np.arange(plan.prompt // self.kernel.config.block_size) + 100 * plan.family
                (answer,) = self.kernel.step(
                    RequestArrived(
                        request_id=f"r{number}",
                        prompt_length=plan.prompt,
                        max_tokens=plan.outputs,
                        at=self.steps,
                        arrived_at=self.steps,
                        priority=plan.priority,
                        block_keys=keys,
                    )
                )
                if isinstance(answer, AdmitRequest):
                    self.plan_of[answer.handle] = plan
            if plan.leaves == self.steps:
                self.give(RequestCancelled(request_id=f"r{number}", at=self.steps))
        self.give(HostReady(at=self.steps))

    def undisturbed(self) -> int:
        """Return how many steps pass before a client comes or goes, or a batch is refused."""
        times = {t for plan in self.plans for t in (plan.arrives, plan.leaves)} | self.refusals
        return min((t for t in times if t > self.steps), default=1 << 20) - self.steps

    def execute(self, batch: BatchView, steps: int) -> None:
        """Let the device run the batch, and the next ones of the same rows, ``steps`` in all."""
        tokens = self.sampled(batch, steps)
        self.steps += steps
        self.give(BatchExecuted(batch_id=batch.batch_id, tokens=tokens, at=self.steps))

    def sampled(self, batch: BatchView, steps: int) -> Ints:
        """Return what the rows sample: a function of request and place."""
        return np.array(
            [
                [self.token(row.handle, row.end + step) for row in batch.rows if row.samples]
                for step in range(steps)
            ],
            dtype=np.int64,
        ).reshape(steps, -1)

    def token(self, handle: int, place: int) -> int:
        """Return a request's token at a place of its sequence."""
        plan = self.plan_of[handle]
        if place == plan.prompt + plan.eos_at - 1:
            return EOS
        return 10 + (handle * 31 + place * 17) % 89


def dispatched(kernel: Kernel) -> BatchView | None:
    """Return the batch that the device runs."""
    batches = kernel.batches()
    running = [batch for batch in batches if batch.state is BatchState.DISPATCHED]
    return running[0] if running else None


def taken(driver: Driver, batch: BatchView, repeat: Repeat) -> int:
    """Return how many steps to take at once: to the first end, or to the next client."""
    most = min(repeat.steps, driver.undisturbed())
    tokens = driver.sampled(batch, most)
    live = [row.live for row in batch.rows if row.samples]
    ending = ((tokens == EOS) & np.array(live, dtype=bool)).any(axis=1)
    return int(ending.argmax()) + 1 if ending.any() else most


PLANS = st.lists(
    st.builds(
        Plan,
        arrives=st.integers(0, 12),
        prompt=st.integers(1, 60),
        outputs=st.integers(1, 14),
        eos_at=st.integers(0, 14),
        leaves=st.one_of(st.just(-1), st.integers(1, 20)),
        family=st.integers(1, FAMILIES),
        priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)
CONFIGS = st.builds(
    KernelConfig,
    num_blocks=st.sampled_from([20, 40, 200]),
    block_size=st.sampled_from([1, 4]),
    max_concurrency=st.integers(1, 5),
    max_num_batched_tokens=st.integers(2, 12),
    max_tokens_per_row=st.sampled_from([1, 3, 5, 1 << 20]),
    max_model_len=st.just(80),
    lookahead=st.integers(0, 3),
    order=st.sampled_from(WaitingOrder),
    preference=st.sampled_from(BatchPreference),
    prune=st.booleans(),
    prefix_caching=st.booleans(),
    eos_token_id=st.just(EOS),
)


def run(
    config: KernelConfig, plans: list[Plan], refusals: frozenset[int] = frozenset()
) -> Iterator[Repeat]:
    """Drive both kernels to the end, and yield each stretch that one of them took."""
    leaping, single = (Driver(Kernel(config), plans, refusals) for _ in range(2))
    for _ in range(2000):
        for driver in (leaping, single):
            driver.clients()
        assert leaping.kernel.digest() == single.kernel.digest()
        batch = dispatched(leaping.kernel)
        if batch is None:
            for driver in (leaping, single):
                driver.steps += 1
            if leaping.steps > 24 and leaping.kernel.idle():
                break
            continue
        repeat = leaping.kernel.repeat(max(leaping.undisturbed() - 1, 1))
        steps = 1 if repeat is None else taken(leaping, batch, repeat)
        leaping.execute(batch, steps)
        leaping.give(HostReady(at=leaping.steps))
        for _ in range(steps):
            running = dispatched(single.kernel)
            assert running is not None
            single.execute(running, 1)
            single.give(HostReady(at=single.steps))
        assert leaping.kernel.digest() == single.kernel.digest()
        assert leaping.kernel.counters == single.kernel.counters
        assert not leaping.kernel.audit().problems
        if repeat is not None and steps > 1:
            yield repeat
    assert leaping.kernel.idle()
    assert (leaping.tokens, leaping.ends) == (single.tokens, single.ends)


@given(config=CONFIGS, plans=PLANS, refusals=st.frozensets(st.integers(0, 20), max_size=4))
def test_a_leap_is_the_same_as_its_steps(
    config: KernelConfig, plans: list[Plan], refusals: frozenset[int]
) -> None:
    """State, counters, tokens and ends agree, whatever the rows: decode rows, and long prompts.

    Batches that are refused leave gaps in the numbers of those behind them.
    """
    for repeat in run(config, plans, refusals):
        event("a prompt goes on" if (repeat.counts > 1).any() else "rows decode")


def test_prompts_are_crossed_in_stretches_with_and_without_rows_beside_them() -> None:
    """Each kind of stretch occurs in a run that has room for it, under every lookahead."""
    plans = [
        Plan(0, 60, 12, 0, -1, 1, 0),
        Plan(0, 1, 14, 0, -1, 2, 0),
        Plan(14, 60, 2, 0, -1, 3, 0),
    ]
    for lookahead in range(3):
        config = KernelConfig(
            num_blocks=200,
            block_size=4,
            max_concurrency=4,
            max_num_batched_tokens=6,
            max_model_len=80,
            lookahead=lookahead,
            eos_token_id=EOS,
        )
        kinds = Counter(
            (bool((repeat.counts > 1).any()), len(repeat.seats) > 1)
            for repeat in run(config, plans)
        )
        assert {(True, True), (True, False), (False, True)} <= set(kinds), (lookahead, kinds)


@pytest.mark.parametrize("lookahead", [1, 2, 3])
@pytest.mark.parametrize("refused", range(4))
def test_no_stretch_begins_over_the_number_of_a_refused_batch(lookahead: int, refused: int) -> None:
    """It would go on with that number; behind it there are stretches again."""
    config = KernelConfig(num_blocks=200, max_num_batched_tokens=2, lookahead=lookahead)
    plans = [Plan(0, 60, 12, 0, -1, 1, 0)]
    repeats = [repeat for repeat in run(config, plans, frozenset([refused])) if repeat.steps > 4]
    assert (repeats[0].counts > 1).all()


@pytest.mark.parametrize("lookahead", [1, 2, 3])
def test_a_prompt_beside_a_request_that_computes_its_output_again(lookahead: int) -> None:
    """Token by token, both are rows of one token, and only the newest batch says who samples.

    Two requests outgrow the pool, one is preempted; a prompt comes at any time around its return.
    """
    config = KernelConfig(
        num_blocks=20,
        block_size=1,
        max_num_batched_tokens=4,
        max_tokens_per_row=1,
        max_model_len=80,
        lookahead=lookahead,
        eos_token_id=EOS,
    )
    crossed = 0
    for arrives in range(6, 24):
        plans = [
            Plan(1, 5, 10, 0, -1, 1, 0),
            Plan(0, 5, 14, 0, -1, 2, 0),
            Plan(arrives, 9, 2, 0, -1, 3, 0),
        ]
        for repeat in run(config, plans):
            crossed += bool(((repeat.handles == 3) & (repeat.positions < 9)).any())
    assert crossed
