"""Whole runs: exact times on a machine of round numbers, and what may never depend on the loop."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead.commands import AdmitRequest, Command, DispatchBatch, FinishReason, FinishRequest
from stepahead.events import Event, HostReady, RequestArrived
from stepahead.stretches import Repeat
from stepahead.tables import BatchState
from stepahead_models.closed_form import ClosedForm
from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.device import Device
from stepahead_models.errors import SanitizerError, SimulationError
from stepahead_models.examples import (
    ROUND_CPU,
    VOCABULARY,
    constant_device,
    mixed_workload,
    plain_workload,
    roofline_device,
)
from stepahead_models.noise import Noise, NoiseStream
from stepahead_models.record import Outcome, RunRecord, Waste
from stepahead_models.recorder import Recorder
from stepahead_models.simulation import Observer, Simulation
from stepahead_models.tokens import HistoryHash, reference_tokens
from stepahead_models.workload import Workload

EOS = 7
MACHINE = constant_device(1000, ROUND_CPU)


def _model() -> HistoryHash:
    return HistoryHash(vocab_size=VOCABULARY, eos_token_id=EOS)


def _config(  # noqa: PLR0913 - limits of a kernel, by keyword
    *,
    lookahead: int = 0,
    num_blocks: int = 4000,
    block_size: int = 4,
    prefix_caching: bool = True,
    timing: SelectionTiming = SelectionTiming.EARLY,
    late_joiners: bool = False,
    prune: bool = False,
    budget: int = 64,
) -> KernelConfig:
    return KernelConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_concurrency=min(16, budget),
        max_num_batched_tokens=budget,
        max_model_len=256,
        lookahead=lookahead,
        prefix_caching=prefix_caching,
        timing=timing,
        late_joiners=late_joiners,
        prune=prune,
        eos_token_id=EOS,
    )


def _run(  # noqa: PLR0913 - options of a simulation, by keyword
    workload: Workload,
    *,
    lookahead: int = 0,
    config: KernelConfig | None = None,
    device: Device = MACHINE,
    stretches: bool = True,
    closed_loop: int | None = None,
    sanitize: bool = True,
    unchecked: bool = False,
    observers: Sequence[Observer] = (),
) -> RunRecord:
    return Simulation(
        Kernel(_config(lookahead=lookahead) if config is None else config),
        workload,
        device,
        ClosedForm(vocab_size=VOCABULARY, eos_token_id=EOS) if unchecked else _model(),
        stretches=stretches,
        closed_loop=closed_loop,
        sanitize=sanitize,
        keep_tokens=True,
        observers=observers,
    ).run()


@pytest.mark.interpreted  # no weak reference to a compiled kernel
def test_what_a_run_leaves_behind_keeps_no_kernel() -> None:
    """The blocks of a large pool would otherwise stay until some collection of garbage."""
    kernel = Kernel(_config())
    gone = weakref.ref(kernel)
    gc.disable()
    try:
        record = Simulation(kernel, plain_workload([4]), MACHINE, _model()).run()
        del kernel
        assert gone() is None
    finally:
        gc.enable()
    assert record.steps


# -- exact times ------------------------------------------------------------------------------


@pytest.mark.parametrize("stretches", [False, True])
def test_eager_times_are_build_fill_step_collect_publish_in_a_row(stretches: bool) -> None:  # noqa: FBT001
    """Three tokens, one device step each; the NPU stands idle for 165 ns between steps."""
    record = _run(plain_workload([4]), stretches=stretches)
    assert record.step_starts_ns.tolist() == [110, 1275, 2440]
    assert record.step_ends_ns.tolist() == [1110, 2275, 3440]
    assert record.emission_times_ns.tolist() == [1165, 2330, 3495]
    assert record.step_gaps_ns.tolist() == [-1, 165, 165]
    assert record.first_dispatches_ns.tolist() == [110]
    assert record.first_tokens_ns.tolist() == [1165]
    assert record.last_tokens_ns.tolist() == record.ends_ns.tolist() == [3495]
    assert (record.cpu_busy_ns, record.cpu_hidden_ns, record.npu_busy_ns) == (495, 0, 3000)
    assert record.duration_ns == 3495


@pytest.mark.parametrize("stretches", [False, True])
def test_overlap_hides_building_and_publishing(stretches: bool) -> None:  # noqa: FBT001
    """The next step starts 35 ns after the last: notice and sample 25, fill 10."""
    record = _run(plain_workload([4]), lookahead=1, stretches=stretches)
    assert record.step_starts_ns.tolist() == [110, 1145, 2180]
    assert record.emission_times_ns.tolist() == [1175, 2210, 3235]
    assert record.step_gaps_ns.tolist() == [-1, 35, 35]
    assert (record.cpu_busy_ns, record.cpu_hidden_ns, record.npu_busy_ns) == (495, 260, 3000)


def test_a_first_arrival_waits_for_nothing_and_an_idle_machine_has_no_host_gap() -> None:
    """The second request comes long after the first is done: its gap counts from its arrival."""
    record = _run(plain_workload([4, 4], arrivals_ns=[0, 10_000], max_tokens=[1, 1]))
    assert record.step_starts_ns.tolist() == [110, 10_110]
    assert record.step_gaps_ns.tolist() == [-1, 110]
    assert record.arrivals_ns.tolist() == [0, 10_000]


def test_an_arrival_during_a_job_is_delivered_at_its_end_and_joins_the_next_batch() -> None:
    """It comes while the first batch is built, which it therefore misses."""
    record = _run(plain_workload([4, 4], arrivals_ns=[0, 50], max_tokens=[2, 1]))
    assert record.arrivals_ns.tolist() == [0, 50]
    assert record.step_rows.tolist() == [1, 2]
    assert record.first_dispatches_ns.tolist() == [110, 1275]


@pytest.mark.parametrize("timing", [None, *SelectionTiming])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_ends_with_its_last_work(timing: SelectionTiming | None, seed: int) -> None:
    """What concerns nobody any more does not lengthen it: patience of the served, late wakes."""
    workload = mixed_workload(seed, 4)
    patient = np.where(workload.cancel_after_ns < 0, 10**13, workload.cancel_after_ns)
    workload = replace(workload, cancel_after_ns=patient)
    config = _config(lookahead=int(timing is not None), timing=timing or SelectionTiming.EARLY)
    device = constant_device(1_000_000, CpuModel.zero())
    record = _run(workload, config=config, device=device)
    assert record.duration_ns == max(record.ends_ns.max(), record.step_ends_ns.max())


def test_a_time_beyond_the_clock_is_an_overflow_wherever_it_is_taken_down() -> None:
    """The commands tell an `OverflowError` in one sentence; no other error would do."""
    late = 1 << 63
    recorder = Recorder(plain_workload([4]), keep_tokens=False)
    recorder.arrive(0, 0, 0, 0)
    acts: tuple[Callable[[], None], ...] = (
        lambda: recorder.arrive(0, 0, late, 0),
        lambda: recorder.cancel(0, late),
        lambda: recorder.finish(
            FinishRequest(request_id="r0", handle=0, reason=FinishReason.STOP, output_tokens=1),
            late,
        ),
    )
    for act in acts:
        with pytest.raises(OverflowError):
            act()


def test_npu_sampling_moves_the_sampling_into_the_device_step() -> None:
    """The step takes 40 + 2 ns longer, the host no longer samples for 20 ns."""
    device = Device(npu=MACHINE.npu, cpu=ROUND_CPU, npu_sampler=CpuTerms(base_ns=40, per_row_ns=2))
    record = _run(plain_workload([4], max_tokens=[1]), device=device)
    assert record.step_ends_ns.tolist() == [1152]
    assert record.emission_times_ns.tolist() == [1187]


def test_closed_loop_lets_the_next_request_arrive_when_one_ends() -> None:
    """With one request at a time, each arrives at the very end of the one before."""
    record = _run(plain_workload([4, 4, 300, 4], max_tokens=[1, 1, 1, 1]), closed_loop=1)
    assert record.arrivals_ns.tolist() == [0, 1165, 2330, 2330]
    assert record.outcomes.tolist() == [
        Outcome.LENGTH, Outcome.LENGTH, Outcome.REFUSED, Outcome.LENGTH,
    ]  # fmt: skip


def test_a_closed_loop_of_more_clients_than_requests_brings_each_request_once() -> None:
    """Clients beyond the requests have nothing to send, however many they are."""
    record = _run(plain_workload([4, 4], max_tokens=[1, 1]), closed_loop=10**15)
    assert record.arrivals_ns.tolist() == [0, 0]


# -- ends -------------------------------------------------------------------------------------


def test_an_eos_wastes_a_row_under_overlap_and_none_under_eager() -> None:
    """The kernel learns of EOS when the next batch is prepared; it is dispatched masked."""
    workload = plain_workload([4], max_tokens=[9], eos_at=[2])
    eager, overlap = _run(workload), _run(workload, lookahead=1)
    assert eager.wasted_eos == Waste()
    assert overlap.wasted_eos == Waste(rows=1, tokens=1, npu_ns=1000)
    assert overlap.ends_ns.tolist() == [2210]
    for record in (eager, overlap):
        assert record.outcomes.tolist() == [Outcome.STOP]
        assert record.tokens[0].tolist()[1:] == [EOS]
        assert record.output_tokens.tolist() == [2]


def test_a_client_that_leaves_after_a_token_discards_what_runs() -> None:
    """Under overlap the next step is on the NPU when the first token is out."""
    workload = plain_workload([4], max_tokens=[9], cancel_after_tokens=[1])
    eager, overlap = _run(workload), _run(workload, lookahead=1)
    assert eager.discarded == Waste()
    assert overlap.discarded == Waste(rows=1, tokens=1, npu_ns=1000)
    assert (eager.ends_ns.tolist(), overlap.ends_ns.tolist()) == ([1165], [1175])
    for record in (eager, overlap):
        assert record.outcomes.tolist() == [Outcome.CANCELLED]
        assert record.output_tokens.tolist() == [1]


def test_a_client_that_leaves_after_a_time_leaves_at_that_time() -> None:
    """At 1,200 ns the host builds until 1,265; a client with all its tokens cannot leave."""
    workload = plain_workload([4, 4], max_tokens=[9, 1], cancel_after_ns=[1200, 9000])
    record = _run(workload)
    assert record.ends_ns.tolist() == [1265, 1165]
    assert record.outcomes.tolist() == [Outcome.CANCELLED, Outcome.LENGTH]
    assert record.counters["ignored_cancels"] == 0


def test_a_refused_request_keeps_reason_and_sentence() -> None:
    """A prompt that leaves no room never enters; nothing is emitted for it."""
    record = _run(plain_workload([300, 4]))
    assert record.outcomes.tolist() == [Outcome.REFUSED, Outcome.LENGTH]
    reason, detail = record.refusals[0]
    assert reason == "prompt_too_long"
    assert detail.startswith("the prompt has 300 tokens")
    assert record.first_tokens_ns[0] == -1


# -- what may not depend on the loop ----------------------------------------------------------


def _differences(one: RunRecord, other: RunRecord) -> list[str]:
    """Return the names of the columns that differ, but for how many events there were."""
    found: list[str] = []
    for entry in fields(one):
        before: object = getattr(one, entry.name)
        after: object = getattr(other, entry.name)
        if entry.name in {"tokens", "events"}:
            continue
        if not np.array_equal(np.asarray(before), np.asarray(after)):
            found.append(entry.name)
    kept = ({index: row.tolist() for index, row in run.tokens.items()} for run in (one, other))
    return found if next(kept) == next(kept) else [*found, "tokens"]


@st.composite
def _configs(draw: st.DrawFn) -> tuple[int, int, bool]:
    """Return block size, blocks of the pool (at least one request fits), pruning."""
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    positions = draw(st.sampled_from([288, 320, 480, 3200]))
    return block_size, positions // block_size, draw(st.booleans())


@given(st.integers(0, 10**6), _configs(), st.sampled_from([None, None, 3, 8]))
@settings(max_examples=15)
def test_tokens_are_those_of_the_reference_whatever_the_lookahead(
    seed: int, limits: tuple[int, int, bool], closed_loop: int | None
) -> None:
    """Preempted, cached, cancelled or not: outputs are prefixes of the oracle's; nothing leaks."""
    block_size, num_blocks, prune = limits
    workload = mixed_workload(seed, block_size)
    device = roofline_device((1, 3, 30)[seed % 3])
    digests: set[str] = set()
    for lookahead in range(4):
        config = _config(
            lookahead=lookahead, num_blocks=num_blocks, block_size=block_size, prune=prune
        )
        record = _run(workload, config=config, device=device, closed_loop=closed_loop)
        assert record.leaked_blocks == 0
        for request in range(len(workload)):
            count, eos_at = int(record.output_tokens[request]), int(workload.eos_at[request])
            oracle = reference_tokens(_model(), workload.prompts, request, count, eos_at=eos_at)
            assert record.tokens.get(request, oracle[:0]).tolist() == oracle.tolist()
        counters = record.counters
        assert record.discarded.rows == counters["discarded_rows"]
        if not prune:
            assert record.wasted_eos.rows == counters["wasted_rows_stop"]
            assert record.wasted_cancel.rows == counters["wasted_rows_abort"]
        if (record.outcomes != Outcome.CANCELLED).all():
            digests.add(record.tokens_digest)
    assert len(digests) <= 1


@given(
    st.integers(0, 10**6),
    _configs(),
    st.integers(0, 3),
    st.sampled_from([None, 3]),
    st.booleans(),
)
@settings(max_examples=40)
def test_stretches_change_nothing_but_the_number_of_events(
    seed: int,
    limits: tuple[int, int, bool],
    lookahead: int,
    closed_loop: int | None,
    late: bool,  # noqa: FBT001
) -> None:
    """Every column, every digest and every counter is that of the single steps.

    With a small token budget prompts take many steps; those are stretches in unchecked runs only.
    """
    block_size, num_blocks, prune = limits
    just_in_time = lookahead == 1 and late
    config = _config(
        lookahead=lookahead,
        num_blocks=num_blocks,
        block_size=block_size,
        prune=prune,
        timing=SelectionTiming.JUST_IN_TIME if just_in_time else SelectionTiming.EARLY,
        late_joiners=just_in_time,
        budget=(18, 24, 64)[seed // 6 % 3],
    )
    workload = mixed_workload(seed, block_size)
    device = roofline_device((1, 3, 30)[seed % 3], cpu_free=seed % 5 == 0)
    if seed % 4 == 1:
        device = replace(
            device,
            npu_noise=Noise(seed, NoiseStream.NPU, 50_000),
            cpu_noise=Noise(seed, NoiseStream.CPU, 300_000),
        )
    leapt, single = (
        _run(
            workload,
            config=config,
            device=device,
            closed_loop=closed_loop,
            unchecked=seed % 2 == 0,
            stretches=stretches,
        )
        for stretches in (True, False)
    )
    assert _differences(leapt, single) == []
    assert leapt.events <= single.events


@pytest.mark.parametrize("timing", SelectionTiming)
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_a_long_prompt_is_a_handful_of_events(lookahead: int, timing: SelectionTiming) -> None:
    """A prompt in 30 chunks, alone and beside a request that decodes: one stretch each."""
    load = plain_workload([200, 4, 200], max_tokens=[2, 100, 2], arrivals_ns=[0, 10**10, 10**10])
    timing = timing if lookahead else SelectionTiming.EARLY
    config = _config(lookahead=lookahead, budget=7, timing=timing)
    record = _run(load, config=config, unchecked=True)
    single = _run(load, config=config, unchecked=True, stretches=False)
    assert _differences(record, single) == []
    assert record.events < single.events / 3


def test_a_long_steady_run_is_a_handful_of_events() -> None:
    """200 tokens of one request: prefill, one stretch, the end."""
    record = _run(plain_workload([4], max_tokens=[200]), lookahead=1)
    assert record.steps == 200
    assert record.events < 20


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_without_host_costs_both_loops_run_the_same_batches_at_the_same_times(seed: int) -> None:
    """All at time 0, ends by length, ample pool, nothing cached: lookahead has nothing to hide."""
    draw = np.random.default_rng(seed)
    workload = plain_workload(
        draw.integers(1, 80, 20).tolist(), max_tokens=draw.integers(1, 60, 20).tolist()
    )
    device = roofline_device(cpu_free=True)
    eager, overlap = (
        _run(workload, config=_config(lookahead=lookahead, prefix_caching=False), device=device)
        for lookahead in (0, 1)
    )
    for name in ("starts_ns", "ends_ns", "rows", "tokens"):
        column = f"step_{name}"
        assert getattr(eager, column).tolist() == getattr(overlap, column).tolist()
    assert eager.emission_times_ns.tolist() == overlap.emission_times_ns.tolist()


@given(st.integers(0, 10**6), st.integers(0, 1))
@settings(max_examples=10)
def test_pooled_gaps_are_those_between_the_tokens_of_each_request(
    seed: int, lookahead: int
) -> None:
    """Sum and number of the gaps are those of the requests, for any choice of requests."""
    record = _run(mixed_workload(seed, 4), lookahead=lookahead, device=roofline_device())
    chosen = np.arange(len(record.arrivals_ns)) % 3 != 0
    some = chosen & (record.output_tokens > 0)
    gaps, weights = record.token_gaps(chosen)
    assert int(weights.sum()) == int((record.output_tokens[some] - 1).sum())
    spans = record.last_tokens_ns[some] - record.first_tokens_ns[some]
    assert int((gaps * weights).sum()) == int(spans.sum())
    assert (gaps >= 0).all()
    assert (weights >= 0).all()


# -- faults -----------------------------------------------------------------------------------


class Tampered(Kernel):
    """A kernel whose commands somebody changes on their way to the host."""

    def __init__(self, config: KernelConfig, change: Callable[[Command], Command]) -> None:
        super().__init__(config)
        self._change = change

    def step(self, event: Event) -> tuple[Command, ...]:
        """Answer with changed commands."""
        return tuple(self._change(command) for command in super().step(event))

    def repeat(self, limit: int = 1) -> Repeat | None:  # noqa: ARG002 - none is allowed
        """Allow no stretch, so that every command passes by."""
        return None


def _wrong_fill(command: Command) -> Command:
    if isinstance(command, DispatchBatch) and command.batch_id == 2:
        return DispatchBatch(
            batch_id=2,
            fill_rows=command.fill_rows,
            fill_tokens=command.fill_tokens + 1,
            live=command.live,
        )
    return command


@pytest.mark.interpreted  # its kernel is a subclass
def test_a_wrong_fill_is_reported_with_request_batch_and_both_tokens() -> None:
    """The second batch gets a token that was never sampled."""
    workload = plain_workload([4])
    sampled = int(reference_tokens(_model(), workload.prompts, 0, 1)[0])
    simulation = Simulation(Tampered(_config(), _wrong_fill), workload, MACHINE, _model())
    with pytest.raises(SanitizerError) as caught:
        simulation.run()
    assert str(caught.value) == (
        f"request 'r0' in batch 2: token {sampled + 1} was filled in at position 4, it had sampled "
        f"{sampled}; the scheduler reused or mixed up what a row still needs"
    )
    assert (caught.value.request, caught.value.batch_id, caught.value.block) == ("r0", 2, None)


@pytest.mark.interpreted  # its kernel is a subclass
def test_without_the_sanitizer_a_wrong_fill_still_changes_every_later_token() -> None:
    """The first token stands, nothing after it does."""
    workload = plain_workload([4], max_tokens=[5])
    record = Simulation(
        Tampered(_config(), _wrong_fill),
        workload,
        MACHINE,
        _model(),
        sanitize=False,
        keep_tokens=True,
    ).run()
    oracle = reference_tokens(_model(), workload.prompts, 0, 5)
    assert record.tokens[0][0] == oracle[0]
    assert (record.tokens[0][1:] != oracle[1:]).all()


def test_an_observer_sees_every_event_with_its_answer() -> None:
    """Arrivals, and one end per request, among the commands."""
    seen: list[tuple[Event, tuple[Command, ...]]] = []
    record = _run(
        plain_workload([4, 5]), observers=[lambda event, commands: seen.append((event, commands))]
    )
    assert len(seen) == record.events
    arrivals = [event for event, _ in seen if isinstance(event, RequestArrived)]
    assert [event.request_id for event in arrivals] == ["r0", "r1"]
    handles = [c.handle for _, commands in seen for c in commands if isinstance(c, AdmitRequest)]
    assert handles == [1, 2]
    ends = [c for _, commands in seen for c in commands if isinstance(c, FinishRequest)]
    reasons = [command.reason for command in ends]
    assert reasons == [FinishReason.LENGTH, FinishReason.LENGTH]


class Idle(Kernel):
    """A kernel that admits requests and never selects one."""

    def step(self, event: Event) -> tuple[Command, ...]:
        """Answer arrivals only."""
        return super().step(event) if isinstance(event, RequestArrived) else ()


@pytest.mark.interpreted  # its kernel is a subclass
def test_a_kernel_that_stalls_is_an_error_with_time_and_number_of_requests() -> None:
    """Nothing happens by itself any more."""
    simulation = Simulation(Idle(_config()), plain_workload([4, 4]), MACHINE, _model())
    with pytest.raises(SimulationError) as caught:
        simulation.run()
    assert str(caught.value) == (
        "nothing is left to happen at 0 ns, but 2 requests have not ended; "
        "the kernel answered HostReady without a batch although it has work"
    )


def test_options_that_contradict_the_kernel_are_refused() -> None:
    """A closed loop needs a request, and both sides must mean the same EOS."""
    with pytest.raises(SimulationError) as caught:
        Simulation(Kernel(_config()), plain_workload([4]), MACHINE, _model(), closed_loop=0)
    assert str(caught.value) == "closed_loop=0 lets no request arrive; give at least 1"
    with pytest.raises(SimulationError) as caught:
        Simulation(Kernel(_config()), plain_workload([4]), MACHINE, HistoryHash())
    assert str(caught.value) == (
        "the token model ends with token None, the kernel with 7; give both the same eos_token_id"
    )


def test_progress_is_told_now_and_then() -> None:
    """Numbers of ended requests, never falling."""
    told: list[int] = []
    simulation = Simulation(
        Kernel(_config()),
        mixed_workload(1, 4, count=60),
        roofline_device(),
        _model(),
        stretches=False,
    )
    simulation.run(told.append)
    assert told
    assert told == sorted(told)
    assert simulation.ended == 60


@given(st.integers(0, 10**6), st.integers(0, 2), st.sampled_from(SelectionTiming))
@settings(max_examples=15)
def test_the_host_is_reported_ready_whenever_that_changes_something(
    seed: int, lookahead: int, timing: SelectionTiming
) -> None:
    """Where the kernel does not wait for the host, the event that is left out would do nothing."""
    if timing is not SelectionTiming.EARLY:
        lookahead = max(lookahead, 1)
    kernel = Kernel(_config(lookahead=lookahead, timing=timing))
    left_out = 0

    def ask(event: Event, _commands: tuple[Command, ...]) -> None:
        nonlocal left_out
        building = any(batch.state is BatchState.QUEUED for batch in kernel.batches())
        if building or isinstance(event, HostReady) or kernel.awaits_host():
            return
        before = kernel.digest()
        assert kernel.step(HostReady(at=kernel.now)) == ()
        assert kernel.digest() == before
        left_out += 1

    Simulation(kernel, mixed_workload(seed, 4), MACHINE, _model(), observers=[ask]).run()
    assert left_out
