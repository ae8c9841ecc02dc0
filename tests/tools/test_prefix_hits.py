"""What the prefix cache could have had, and why it had less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepahead import Kernel, KernelConfig
from stepahead_models.closed_form import ClosedForm
from stepahead_models.cpu import CpuModel
from stepahead_models.examples import constant_device
from stepahead_models.loading import load_workload
from stepahead_models.record import RunRecord
from stepahead_models.simulation import Simulation
from stepahead_models.traces import Trace, block_keys, bundled_trace, plan_requests, read_trace
from stepahead_tools.prefix_hits import HitWatch, Reuse, Shortfall, count_reuse

SLICE = read_trace(bundled_trace()).limit(300)


def _replay(
    trace: Trace, block_size: int, *, num_blocks: int | None = None, closed: bool = True
) -> tuple[RunRecord, Shortfall]:
    lengths = trace.input_lengths + trace.output_lengths
    config = KernelConfig(
        num_blocks=num_blocks or int((-(-lengths // block_size)).sum()),
        block_size=block_size,
        max_model_len=int(lengths.max()) + 1,
    )
    plan = plan_requests(trace, "length", config.max_model_len)
    workload = load_workload(trace, plan, block_size=block_size, vocab_size=1000)
    watch = HitWatch(block_size, block_keys(trace, block_size).key_count)
    device = constant_device(50_000_000, CpuModel.zero())
    model = ClosedForm(vocab_size=1000)
    record = Simulation(
        Kernel(config),
        workload,
        device,
        model,
        closed_loop=1 if closed else None,
        observers=(watch,),
    ).run()
    return record, watch.shortfall


@pytest.mark.parametrize("block_size", [512, 128])
def test_an_unbounded_cache_hits_what_the_trace_says(block_size: int) -> None:
    """One request at a time, block for block the independent count."""
    reuse = count_reuse(SLICE, block_size)
    record, shortfall = _replay(SLICE, block_size)
    assert record.counters["hit_tokens"] == reuse.hit_tokens > 0
    assert shortfall == Shortfall(hit=reuse.hit_blocks)


def test_every_token_that_was_seen_before_is_hit_or_has_a_reason() -> None:
    """Whole blocks, what lies beyond them, and the last token add up."""
    reuse = count_reuse(SLICE, 128)
    assert reuse.seen == reuse.hit_tokens + reuse.partial_tokens + reuse.last_tokens


def test_equal_arrivals_find_nothing_yet() -> None:
    """Everybody at once: what somebody else is computing cannot be hit."""
    burst = replace(SLICE, arrivals_ns=np.zeros_like(SLICE.arrivals_ns))
    reuse = count_reuse(burst, 512)
    record, shortfall = _replay(burst, 512, closed=False)
    assert shortfall.in_flight > 0
    assert shortfall.evicted == 0
    assert shortfall.hit + shortfall.in_flight == reuse.hit_blocks
    assert record.counters["hit_tokens"] <= reuse.hit_tokens


def test_a_small_memory_evicts() -> None:
    """With little more room than for the longest request, prefixes are gone too soon."""
    longest = int((-(-(SLICE.input_lengths + SLICE.output_lengths) // 512)).max())
    record, shortfall = _replay(SLICE, 512, num_blocks=longest + 8)
    assert shortfall.evicted > 0
    assert shortfall.in_flight == 0
    assert record.counters["hit_tokens"] == shortfall.hit * 512


def test_a_prompt_that_ends_with_a_block_computes_its_last_token() -> None:
    """Two equal prompts of two whole blocks: one is hit, the other one holds the last token."""
    twice = SLICE.limit(2)
    length = 1024
    same = replace(
        twice,
        input_lengths=np.array([length, length]),
        output_lengths=np.array([1, 1]),
        hash_ids=np.array([1, 2, 1, 2]),
        hash_offsets=np.array([0, 2, 4]),
    )
    assert count_reuse(same, 512) == Reuse(
        tokens=2048,
        blocks=4,
        seen=1024,
        hit_tokens=512,
        hit_blocks=1,
        partial_tokens=0,
        last_tokens=512,
    )
    record, _ = _replay(same, 512)
    assert record.counters["hit_tokens"] == 512
