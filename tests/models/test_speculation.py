"""Speculative decoding: same tokens whatever is proposed, drafts as good as asked, exact costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import BatchPreference, Kernel, KernelConfig
from stepahead.commands import Command, EmitTokens, FinishReason, FinishRequest, PrepareBatch
from stepahead.events import BatchExecuted, Event
from stepahead_models.closed_form import ClosedForm
from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.device import Device
from stepahead_models.errors import SimulationError
from stepahead_models.examples import (
    VOCABULARY,
    constant_device,
    mixed_workload,
    plain_workload,
    roofline_device,
)
from stepahead_models.executor import Executor
from stepahead_models.journal import JournalWriter, replay_journal
from stepahead_models.record import Outcome, RunRecord
from stepahead_models.simulation import Observer, Simulation
from stepahead_models.speculation import Acceptance, DraftCosts, Drafter
from stepahead_models.tokens import HistoryHash, Ints, reference_tokens
from stepahead_models.workload import Workload

EOS = 7
MODEL = HistoryHash(vocab_size=VOCABULARY, eos_token_id=EOS)
CLOSED = ClosedForm(vocab_size=VOCABULARY, eos_token_id=EOS)
#: Build 100, fill 10, notice 5, sample 20 + 1 per position, publish 30 + 2 per row + 3 per token.
CPU = CpuModel(
    build=CpuTerms(base_ns=100),
    fill=CpuTerms(base_ns=10),
    synchronisation=CpuTerms(base_ns=5),
    host_sampling=CpuTerms(base_ns=20, per_row_ns=1),
    result_processing=CpuTerms(base_ns=30, per_row_ns=2, per_token_ns=3),
)
MACHINE = constant_device(1000, CPU)
ALWAYS, HALF, NEVER = 1_000_000, 500_000, 0


def _acceptance(probability_ppm: int, seed: int = 0) -> Acceptance:
    return Acceptance(seed=seed, probability_ppm=probability_ppm)


def _config(  # noqa: PLR0913 - limits of a kernel, by keyword
    drafts: int,
    *,
    num_blocks: int = 4000,
    block_size: int = 4,
    max_num_batched_tokens: int = 64,
    max_tokens_per_row: int = 64,
    preference: BatchPreference = BatchPreference.DECODE_FIRST,
    prune: bool = False,
) -> KernelConfig:
    return KernelConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_concurrency=16,
        max_num_batched_tokens=max_num_batched_tokens,
        max_tokens_per_row=max_tokens_per_row,
        max_model_len=256,
        num_speculative_tokens=drafts,
        preference=preference,
        prune=prune,
        eos_token_id=EOS,
    )


def _run(  # noqa: PLR0913 - options of a simulation, by keyword
    workload: Workload,
    config: KernelConfig,
    *,
    probability_ppm: int = HALF,
    device: Device = MACHINE,
    model: HistoryHash | ClosedForm = MODEL,
    stretches: bool = True,
    observers: Sequence[Observer] = (),
) -> RunRecord:
    return Simulation(
        Kernel(config),
        workload,
        device,
        model,
        stretches=stretches,
        keep_tokens=True,
        acceptance=_acceptance(probability_ppm),
        observers=observers,
    ).run()


def _reference(workload: Workload, request: int, count: int) -> Ints:
    eos_at = int(workload.eos_at[request])
    return reference_tokens(MODEL, workload.prompts, request, count, eos_at=eos_at)


@dataclass
class Tried:
    """An observer that counts rows by what became of their drafts."""

    drafted: int = 0
    accepted: int = 0
    #: Drafts that were looked at: the accepted ones, and the first wrong one of a row.
    tried: int = 0
    _drafts: dict[int, Ints] = field(default_factory=dict[int, Ints])

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """See one step."""
        if isinstance(event, BatchExecuted) and event.accepted is not None:
            drafts = self._drafts[event.batch_id]
            self.drafted += int(drafts.sum())
            self.accepted += int(event.accepted.sum())
            self.tried += int((event.accepted + (event.accepted < drafts)).sum())
        for command in commands:
            if isinstance(command, PrepareBatch) and command.drafts is not None:
                self._drafts[command.batch_id] = command.drafts[command.samples]


# -- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [4000, 45])
@pytest.mark.parametrize("probability_ppm", [NEVER, HALF, 800_000, ALWAYS])
@pytest.mark.parametrize("drafts", [0, 1, 2, 3, 4])
def test_tokens_do_not_depend_on_width_or_quality_of_the_drafts(
    drafts: int, probability_ppm: int, num_blocks: int
) -> None:
    """Checked and not, with room and preempting: those of the request alone, and no block stays."""
    workload = mixed_workload(3, 4)
    config = _config(drafts, num_blocks=num_blocks)
    device = roofline_device()
    record = _run(workload, config, probability_ppm=probability_ppm, device=device)
    for request, tokens in record.tokens.items():
        assert tokens.tolist() == _reference(workload, request, len(tokens)).tolist()
        assert len(tokens) == record.output_tokens[request]
    stops = record.outcomes == Outcome.STOP
    assert (record.output_tokens[stops] == workload.eos_at[stops]).all()
    by_length = record.outcomes == Outcome.LENGTH
    assert (record.output_tokens[by_length] == workload.max_tokens[by_length]).all()
    assert record.leaked_blocks == 0
    assert (record.counters["preemptions"] > 0) == (num_blocks == 45)
    assert (record.counters["drafted_tokens"] > 0) == (drafts > 0)
    unchecked = _run(workload, config, probability_ppm=probability_ppm, device=device, model=CLOSED)
    assert unchecked.journal_digest == record.journal_digest
    assert unchecked.counters == record.counters
    assert unchecked.output_tokens.tolist() == record.output_tokens.tolist()
    assert unchecked.emission_times_ns.tolist() == record.emission_times_ns.tolist()


@given(st.data())
@settings(max_examples=15)
def test_any_trace_gets_its_own_tokens_with_any_drafts(data: st.DataObject) -> None:
    """Pools from one request up, budgets and rows from one token: drafts shrink, tokens stay."""
    seed = data.draw(st.integers(0, 10**6), "workload")
    block_size = data.draw(st.sampled_from([1, 2, 4, 8]), "block size")
    workload = mixed_workload(seed, block_size, count=12)
    # The longest request has 79 + 79 tokens.
    config = _config(
        data.draw(st.integers(0, 6), "drafts"),
        block_size=block_size,
        num_blocks=data.draw(st.integers(160, 400), "tokens in the pool") // block_size,
        max_num_batched_tokens=data.draw(st.integers(1, 64), "budget"),
        max_tokens_per_row=data.draw(st.integers(1, 64), "longest row"),
        preference=data.draw(st.sampled_from(list(BatchPreference)), "preference"),
        prune=data.draw(st.booleans(), "prune"),
    )
    probability_ppm = data.draw(st.sampled_from([NEVER, 300_000, HALF, 900_000, ALWAYS]), "quality")
    device = roofline_device(data.draw(st.sampled_from([1, 30]), "speed"))
    record = _run(workload, config, probability_ppm=probability_ppm, device=device)
    for request, tokens in record.tokens.items():
        assert tokens.tolist() == _reference(workload, request, len(tokens)).tolist()
    assert record.leaked_blocks == 0
    single = _run(workload, config, probability_ppm=probability_ppm, device=device, stretches=False)
    unchecked = _run(workload, config, probability_ppm=probability_ppm, device=device, model=CLOSED)
    assert record.journal_digest == single.journal_digest == unchecked.journal_digest
    assert record.counters == single.counters == unchecked.counters
    assert record.emission_times_ns.tolist() == unchecked.emission_times_ns.tolist()
    gaps, weights = record.token_gaps()
    some = record.output_tokens > 0
    assert int(weights.sum()) == int((record.output_tokens[some] - 1).sum())
    spans = (record.last_tokens_ns - record.first_tokens_ns)[some]
    assert int((gaps * weights).sum()) == int(spans.sum())
    # The budget of a batch and the longest row hold for drafts too.
    assert (record.step_tokens <= config.max_num_batched_tokens).all()


def test_an_eos_among_accepted_drafts_ends_the_request_there() -> None:
    """Drafts behind the EOS are right as well, and come to nothing."""
    workload = plain_workload([4], max_tokens=[40], eos_at=[4])
    emitted: list[EmitTokens] = []
    ends: list[FinishRequest] = []
    returned: list[Ints] = []

    def watch(event: Event, commands: tuple[Command, ...]) -> None:
        if isinstance(event, BatchExecuted) and event.accepted is not None:
            returned.append(event.accepted)
        emitted.extend(c for c in commands if isinstance(c, EmitTokens))
        ends.extend(c for c in commands if isinstance(c, FinishRequest))

    record = _run(workload, _config(8), probability_ppm=ALWAYS, observers=[watch])
    assert [accepted.tolist() for accepted in returned] == [[8]]
    assert [None if c.counts is None else c.counts.tolist() for c in emitted] == [None, [3]]
    assert [(end.reason, end.output_tokens) for end in ends] == [(FinishReason.STOP, 4)]
    assert record.tokens[0].tolist() == _reference(workload, 0, 4).tolist()
    assert record.tokens[0][-1] == EOS
    assert record.extra_tokens.tolist() == [2]


def test_a_client_that_leaves_after_a_token_leaves_when_the_step_that_brought_it_is_out() -> None:
    """It wanted 3 tokens; the second step brings numbers 2 to 6 at once, and it gets them all."""
    workload = plain_workload([4], max_tokens=[40], cancel_after_tokens=[3])
    record = _run(workload, _config(4), probability_ppm=ALWAYS)
    assert record.outcomes.tolist() == [Outcome.CANCELLED]
    assert record.output_tokens.tolist() == [6]
    assert record.ends_ns.tolist() == record.last_tokens_ns.tolist()
    assert record.tokens[0].tolist() == _reference(workload, 0, 6).tolist()


def test_a_run_with_drafts_replays_from_its_journal(tmp_path: Path) -> None:
    """Drafts, accepted counts and cut emissions come back as they were; preemptions included."""
    path = tmp_path / "drafts.jsonl"
    kernel = Kernel(_config(3, num_blocks=45))
    with JournalWriter(path, kernel) as writer:
        record = Simulation(
            kernel,
            mixed_workload(3, 4, count=30),
            roofline_device(),
            MODEL,
            acceptance=_acceptance(HALF),
            observers=[writer],
        ).run()
    replayed = replay_journal(path)
    assert (replayed.digest, replayed.state) == (writer.digest, kernel.digest())
    assert (replayed.lines, replayed.torn) == (record.events, False)
    assert record.counters["preemptions"] > 0
    lines = path.read_text(encoding="utf-8").splitlines()
    verified = [line for line in lines if '"accepted":[' in line]
    assert len(verified) > 20
    # However many tokens it brought, it stands for one device step.
    assert all('"steps":1' in line for line in verified)


# -- proposals --------------------------------------------------------------------------------


@pytest.mark.parametrize("probability_ppm", [100_000, HALF, 800_000])
def test_drafts_are_right_as_often_as_asked_for(probability_ppm: int) -> None:
    """Of those looked at; within 5 standard deviations, for seeds that are as good as any."""
    tried = Tried()
    workload = mixed_workload(5, 4, count=200, cancels=False)
    record = _run(
        workload,
        _config(4, max_num_batched_tokens=512),
        probability_ppm=probability_ppm,
        device=roofline_device(),
        observers=[tried],
    )
    share = probability_ppm / 1e6
    assert tried.tried > 2000
    assert (
        abs(tried.accepted / tried.tried - share) < 5 * (share * (1 - share) / tried.tried) ** 0.5
    )
    assert record.counters["drafted_tokens"] == tried.drafted
    assert record.counters["accepted_tokens"] == tried.accepted


def test_whether_a_draft_is_right_depends_on_seed_request_and_place_alone() -> None:
    """Not on what stands beside it in a batch, on the width, or on where the row begins."""
    acceptance = _acceptance(HALF, seed=11)
    requests, places = np.arange(40)[:, None], np.arange(50)
    coins = acceptance.right(acceptance.draw(requests, places))
    for width in (1, 3, 7):
        for offset in (0, 5, 31):
            rows = np.array([3, 39, 0])
            counts = np.array([width, 1, 0])
            accepted = acceptance.accepted(rows, np.full(3, offset), counts)
            for row, count, found in zip(rows, counts, accepted, strict=True):
                run = coins[row, offset : offset + count].tolist()
                assert found == (run.index(False) if False in run else count)
    other = _acceptance(HALF, seed=12)
    differing = coins != other.right(other.draw(requests, places))
    assert 0.4 < differing.mean() < 0.6
    assert 0.4 < (coins[1:] != coins[:-1]).mean() < 0.6
    assert 0.4 < (coins[:, 1:] != coins[:, :-1]).mean() < 0.6


@pytest.mark.parametrize("probability_ppm", [NEVER, HALF, ALWAYS])
def test_a_draft_is_the_token_to_come_or_another_one(probability_ppm: int) -> None:
    """Those that are right are, and those that are not differ; EOS is proposed like any other."""
    workload = plain_workload([4, 9, 1], max_tokens=[40] * 3, eos_at=[5, -1, 30])
    acceptance = _acceptance(probability_ppm)
    drafter = Drafter(MODEL, workload.prompts, workload.eos_at, acceptance)
    oracle = np.stack([_reference(workload, request, 40) for request in range(3)])
    # Forward, as a run goes, with a step back as after an undone selection.
    for offset in (1, 2, 3, 8, 6, 21, 1):
        drafts = drafter.propose(np.array([2, 0]), np.full(2, offset), np.array([7, 3]))
        assert drafts.shape == (7, 2)
        for column, (row, count) in enumerate(((2, 7), (0, 3))):
            ahead = np.arange(offset, offset + count)
            right = acceptance.right(acceptance.draw(np.array([row]), ahead))
            assert ((drafts[:count, column] == oracle[row, ahead]) == right).all()
            assert (drafts[:count, column] >= 0).all()
            assert (drafts[:count, column] < VOCABULARY).all()
    if probability_ppm == ALWAYS:
        assert EOS in drafter.propose(np.array([0]), np.array([2]), np.array([4]))


@pytest.mark.parametrize(("size", "eos"), [(2, None), (3, 1), (5, None)])
def test_a_wrong_draft_differs_in_a_tiny_vocabulary_too(size: int, eos: int | None) -> None:
    """Where a token drawn blindly would often be right."""
    model = HistoryHash(vocab_size=size, eos_token_id=eos)
    workload = plain_workload([4], max_tokens=[300])
    drafter = Drafter(model, workload.prompts, workload.eos_at, _acceptance(NEVER))
    drafts = drafter.propose(np.array([0]), np.array([0]), np.array([300]))[:, 0]
    assert (drafts != reference_tokens(model, workload.prompts, 0, 300)).all()
    assert set(drafts.tolist()) == set(range(size))


# -- costs ------------------------------------------------------------------------------------


def test_a_step_with_drafts_pays_for_passes_proposals_positions_and_tokens() -> None:
    """Prompt, then a row with 2 drafts, then the last token's row, which has none.

    Prompt: 100 build, 10 fill, 1000 step, 5 + 21 collect, 30 + 2 + 3 publish: 1,171. Drafts:
    100 + 2 x 40 + 2 x 7 build, 10, 1000, 5 + 20 + 3 collect, 30 + 2 + 3 x 3 publish: 1,273.
    """
    device = Device(npu=MACHINE.npu, cpu=CPU, drafter=DraftCosts(step_ns=40, token_ns=7))
    workload = plain_workload([4], max_tokens=[5])
    record = _run(workload, _config(2), probability_ppm=ALWAYS, device=device)
    assert record.step_tokens.tolist() == [4, 3, 1]
    assert record.emission_times_ns.tolist() == [1171, 1171 + 1273, 1171 + 1273 + 1171]
    assert record.first_tokens_ns.tolist() == [1171]
    assert record.extra_tokens.tolist() == [2]
    gaps, weights = record.token_gaps()
    pooled = sorted(np.repeat(gaps, weights).tolist())
    assert pooled == [0, 0, 1171, 1273]


def test_passes_are_paid_once_per_batch_and_tokens_one_by_one() -> None:
    """The widest row decides how often the proposer runs."""
    costs = DraftCosts(step_ns=100, token_ns=1)
    assert costs.total_ns(np.array([3, 0, 1])) == 304
    assert costs.total_ns(np.array([], dtype=np.int64)) == 0


def test_a_slower_host_proposes_slower() -> None:
    """Proposing is the host's work: a CPU scale counts for it."""
    costs = DraftCosts(step_ns=40, token_ns=7)
    device = Device(npu=MACHINE.npu, cpu=CPU.scaled(3), drafter=costs)
    plain = Device(npu=MACHINE.npu, cpu=CPU.scaled(3))
    workload = plain_workload([4], max_tokens=[4])
    slow, free = (
        _run(workload, _config(2), probability_ppm=ALWAYS, device=machine)
        for machine in (device, plain)
    )
    assert slow.duration_ns - free.duration_ns == 3 * (2 * 40 + 2 * 7)


def test_the_npu_samples_every_verified_position() -> None:
    """Per step 40 + 2 ns per position, inside the device step; the host samples none."""
    device = Device(npu=MACHINE.npu, cpu=CPU, npu_sampler=CpuTerms(base_ns=40, per_row_ns=2))
    record = _run(
        plain_workload([4], max_tokens=[4]), _config(2), probability_ppm=ALWAYS, device=device
    )
    assert (record.step_ends_ns - record.step_starts_ns).tolist() == [1042, 1046]


# -- refusals ---------------------------------------------------------------------------------


def test_a_kernel_that_speculates_needs_to_know_how_well() -> None:
    """Before anything runs."""
    with pytest.raises(SimulationError) as caught:
        Simulation(Kernel(_config(2)), plain_workload([4]), MACHINE, MODEL)
    assert str(caught.value) == (
        "the kernel speculates with num_speculative_tokens=2, but nothing says how often a draft "
        "is right; give the simulation an acceptance"
    )


def test_an_executor_without_a_drafter_says_so() -> None:
    """At the first batch with drafts, by number."""
    workload = plain_workload([4])
    executor = Executor(_config(1), MODEL, workload.prompts, workload.eos_at, sanitize=False)
    one, nothing = np.ones(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    batch = PrepareBatch(
        batch_id=9,
        seats=0 * one,
        handles=one,
        epochs=0 * one,
        positions=4 * one,
        token_counts=2 * one,
        samples=np.ones(1, dtype=bool),
        block_rows=nothing,
        block_slots=nothing,
        blocks=nothing,
        history_rows=nothing,
        history_positions=nothing,
        history_tokens=nothing,
        drafts=one,
    )
    with pytest.raises(SimulationError) as caught:
        executor.prepare(batch)
    assert str(caught.value) == (
        "batch 9 has rows with drafts, but nobody proposes any; give the executor a drafter"
    )


@pytest.mark.parametrize("probability_ppm", [-1, 1_000_001])
def test_an_acceptance_is_a_probability(probability_ppm: int) -> None:
    """Refused with the range."""
    with pytest.raises(SimulationError) as caught:
        _acceptance(probability_ppm)
    assert str(caught.value) == (
        f"an acceptance of {probability_ppm} ppm is no probability; give 0 to 1000000"
    )
