"""A stretch taken apart is what single steps would have been, and is checked like them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead.commands import DispatchBatch, EmitTokens, FinishRequest, PrepareBatch
from stepahead.events import BatchExecuted
from stepahead_models.closed_form import ClosedForm
from stepahead_models.codec import Json, encode
from stepahead_models.dma import Dma, DmaChannel
from stepahead_models.examples import mixed_workload, roofline_device
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash
from stepahead_specs.accounts import account
from stepahead_specs.bench import Bench
from stepahead_specs.invariants import InvariantViolated, Kind, check
from stepahead_specs.mutants import Edit, applied
from stepahead_specs.observation import Observation
from stepahead_specs.observer import Observer, UnforeseenStretch, limits
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.turns import Step

EOS = 3
CONFIG = KernelConfig(
    num_blocks=60,
    block_size=4,
    max_concurrency=8,
    max_num_batched_tokens=32,
    max_model_len=400,
    eos_token_id=EOS,
)
CHANNEL = DmaChannel(latency_ns=10_000, bytes_per_s=1e9)
DMA = Dma(to_device=CHANNEL, to_host=CHANNEL, bytes_per_token=1, layers=4)
#: What a step is compared by; when it happened is another matter.
DECISIONS = (PrepareBatch, DispatchBatch, EmitTokens, FinishRequest)


class Watch:
    """Observes a run, stretches taken apart, and checks every step; keeps what it saw."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps: list[Step] = []
        self.stretches = 0
        #: The first batch of each.
        self.first: set[int] = set()
        self.observer = Observer(Observation(limits(kernel.config)))

    def __call__(self, *step: Any) -> None:  # noqa: ANN401 # an event and its answer
        *between, last = self.observer.apart(*step)
        self.stretches += bool(between)
        if between:
            self.first.add(step[0].batch_id)
        self.steps += [*between, last]
        for one in between:
            self.observer.saw(*one).accounted(None)
            check(self.observer.seen)
        self.observer.saw(*last).accounted(account(self.kernel))
        check(self.observer.seen)
        self.observer.foresee(self.kernel.repeat())

    def decisions(self) -> dict[str, list[Json]]:
        """Return what was decided and what came back, by kind, each in its order."""
        found: dict[str, list[Json]] = {kind.__name__: [] for kind in (*DECISIONS, BatchExecuted)}
        for event, commands in self.steps:
            if isinstance(event, BatchExecuted):
                found["BatchExecuted"].append([event.batch_id, event.tokens.tolist()])
            for command in commands:
                if isinstance(command, DECISIONS):
                    found[type(command).__name__].append(encode(command))
        return found


def _run(seed: int, config: KernelConfig, *, stretches: bool) -> Watch:
    kernel = Kernel(config)
    watch = Watch(kernel)
    # Only unchecked runs cross prompts in stretches, and begin one with rows that have ended.
    model = (HistoryHash if seed % 2 else ClosedForm)(seed=seed, vocab_size=1000, eos_token_id=EOS)
    Simulation(
        kernel,
        mixed_workload(seed, config.block_size, count=12),
        replace(roofline_device((1, 3, 30)[seed % 3]), dma=DMA),
        model,
        stretches=stretches,
        observers=(watch,),
    ).run()
    check(watch.observer.seen, Kind.EVENTUALLY)
    return watch


def _configs() -> st.SearchStrategy[KernelConfig]:
    def make(lookahead: int, blocks: int, pages: int, late: bool, prune: bool) -> KernelConfig:  # noqa: FBT001
        return replace(
            CONFIG,
            max_num_batched_tokens=32 if late else 12,
            lookahead=lookahead,
            num_blocks=blocks,
            prune=prune,
            timing=SelectionTiming.JUST_IN_TIME if late and lookahead else SelectionTiming.EARLY,
            host_pages=pages,
            write_back=pages > 0,
            layerwise_reload=pages > 0,
        )

    return st.builds(
        make,
        st.integers(0, 3),
        st.sampled_from((100, 300)),
        st.sampled_from((0, 0, 40)),
        st.booleans(),
        st.booleans(),
    )


@given(st.integers(0, 10**6), _configs())
@settings(max_examples=10, deadline=None)
def test_a_stretch_taken_apart_is_its_single_steps(seed: int, config: KernelConfig) -> None:
    """Each selection with its blocks, each dispatch with its tokens, each token that goes out."""
    leapt = _run(seed, config, stretches=True)
    single = _run(seed, config, stretches=False)
    assert leapt.decisions() == single.decisions()
    assert single.stretches == 0


def _leading(watch: Watch) -> set[str]:
    """Tell how the first batch of a stretch differed from those behind it, of all stretches."""
    found: set[str] = set()
    commands = [command for _, answer in watch.steps for command in answer]
    batches = {c.batch_id: c for c in commands if isinstance(c, PrepareBatch)}
    for batch_id in watch.first:
        running, later = batches[batch_id], batches[batch_id + 1]
        if len(running.seats) > len(later.seats):
            found.add("rows have ended")
        if running.token_counts.max() > later.token_counts.max():
            found.add("prompts end")
    return found


def test_such_runs_have_stretches() -> None:
    """What is never taken apart is not compared."""
    for lookahead in range(4):
        config = replace(CONFIG, num_blocks=300, lookahead=lookahead)
        assert _run(1, config, stretches=True).stretches > 0
        led = [_leading(_run(seed, config, stretches=True)) for seed in (2, 4, 6)]
        assert set().union(*led) == {"prompts end"} | ({"rows have ended"} if lookahead else set())


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (Edit("leap", "columns.scheduled[seats] = outstanding[-1].ends", "pass"), "INV-21"),
        (Edit("leap", "growth.slots] = receipt.blocks", "growth.slots] = 0"), "INV-2"),
        (Edit("leap", "state.next_batch += turns", "state.next_batch += turns - 1"), "INV-27"),
        (Edit("fill", "offsets=offsets,", "offsets=offsets + turns,"), "INV-10"),
    ],
    ids=["nothing is scheduled", "wrong blocks", "a number twice", "wrong places"],
)
@pytest.mark.interpreted  # it edits functions
def test_a_defect_of_a_stretch_is_noticed(edit: Edit, key: str) -> None:
    """The kernel makes it in one move, and what it then says must fit what it stands for."""
    config = replace(CONFIG, num_blocks=300, lookahead=1)
    with applied([edit]), pytest.raises(InvariantViolated, match=key):
        _run(1, config, stretches=True)


def test_a_stretch_that_nobody_foresaw_is_refused() -> None:
    """The observer cannot know which blocks were taken in between."""
    observer = Observer(Observation(limits(CONFIG)))
    tokens = np.zeros((2, 1), dtype=np.int64)
    event = BatchExecuted(batch_id=4, tokens=tokens, at=0)
    with pytest.raises(UnforeseenStretch) as told:
        observer.apart(event, ())
    assert str(told.value) == (
        "batch 4 comes back after 2 steps, and what they would be was not asked before; call "
        "foresee(kernel.repeat()) after each step"
    )
    with pytest.raises(UnforeseenStretch) as told:
        observer.saw(event, ())
    assert str(told.value) == "batch 4 comes back after 2 steps; take the stretch apart first"


def test_a_batch_with_drafts_is_one_step() -> None:
    """It returns several tokens of a request, but nothing happened in between."""
    bench = Bench(replace(CONFIG, num_speculative_tokens=3), HashModel(eos=EOS))
    bench.arrive(Ask(request_id="a", prompt=(1, 2, 3), max_tokens=9))
    bench.drain()
    backs = [
        (event, commands) for event, commands in bench.journal if isinstance(event, BatchExecuted)
    ]
    event, commands = max(backs, key=lambda step: step[0].tokens.shape)
    assert event.tokens.shape == (4, 1)
    assert bench.observer.apart(event, commands) == [(event, commands)]
