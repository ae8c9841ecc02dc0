"""Runs with host pages, reloads and a remote store: exact times, and tokens that never change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepahead import Kernel, KernelConfig
from stepahead.commands import LoadBlocks
from stepahead_models.closed_form import ClosedForm
from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.device import Device
from stepahead_models.dma import Dma, DmaChannel
from stepahead_models.errors import SanitizerError, SimulationError
from stepahead_models.examples import VOCABULARY, constant_device, mixed_workload, roofline_device
from stepahead_models.executor import Executor
from stepahead_models.record import RunRecord
from stepahead_models.remote import InProcessStore
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash, Ints, Prompts
from stepahead_models.workload import Workload

EOS = 7
# 1 byte per ns and 1 byte per token: a copy of n tokens takes 10 + n ns.
CHANNEL = DmaChannel(bytes_per_s=1e9, latency_ns=10)
DMA = Dma(to_device=CHANNEL, to_host=CHANNEL, bytes_per_token=1, layers=4)
# About 0.5 ms per block of 4 tokens: of the order of a device step of `roofline_device`.
SLOW = DmaChannel(bytes_per_s=1e9, latency_ns=100_000)
SLOW_DMA = replace(DMA, to_device=SLOW, to_host=SLOW, bytes_per_token=100_000)


def _config(**options: Any) -> KernelConfig:  # noqa: ANN401 # options of the kernel
    limits: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_concurrency": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "write_through_threshold": 1,
        "eos_token_id": EOS,
    }
    return KernelConfig(**(limits | options))


def _simulation(
    config: KernelConfig,
    workload: Workload,
    device: Device,
    **options: Any,  # noqa: ANN401 # options of the simulation
) -> Simulation:
    model = HistoryHash(vocab_size=VOCABULARY, eos_token_id=EOS)
    return Simulation(Kernel(config), workload, device, model, keep_tokens=True, **options)


def _turns(*conversations: int, prompt: int = 8) -> Workload:
    """Return requests one after the other, each asking for one token after a known prompt."""
    count = len(conversations)
    groups = prompt // 4
    ids = np.concatenate([np.arange(groups) + 100 * number for number in conversations])

    def keys(index: int) -> Ints:
        found: Ints = ids[index * groups : (index + 1) * groups]
        return found

    never = np.full(count, -1, dtype=np.int64)
    return Workload(
        prompts=Prompts(
            request_ids=tuple(f"r{index}" for index in range(count)),
            lengths=np.full(count, prompt, dtype=np.int64),
            vocab_size=VOCABULARY,
            hash_offsets=np.arange(count + 1, dtype=np.int64) * groups,
            hash_ids=ids,
            hash_block_size=4,
        ),
        arrivals_ns=np.arange(count, dtype=np.int64) * 100_000,
        max_tokens=np.ones(count, dtype=np.int64),
        eos_at=never,
        cancel_after_ns=never,
        cancel_after_tokens=never,
        priorities=np.zeros(count, dtype=np.int64),
        block_keys=keys,
    )


# -- exact times ----------------------------------------------------------------------------------


def _first_tokens(record: RunRecord) -> list[int]:
    times: list[int] = (record.first_tokens_ns - record.arrivals_ns).tolist()
    return times


@pytest.mark.parametrize(
    ("layerwise", "last"),
    [
        (False, 14 + 1000),  # the load of one block of 4 tokens, then the step
        (True, 11 + 1000),  # the first of four layers is there after 11 ns
    ],
)
def test_a_reload_costs_what_is_exposed(*, layerwise: bool, last: int) -> None:
    """The fourth turn finds its first block on the host, and computes the rest."""
    device = replace(constant_device(1000, CpuModel.zero()), dma=DMA)
    config = _config(num_blocks=2, host_pages=8, layerwise_reload=layerwise)
    simulation = _simulation(config, _turns(1, 1, 2, 1), device)
    assert _first_tokens(simulation.run()) == [1000, 1000, 1000, last]
    times = simulation.transfer_times
    assert (times.loads, times.stores, times.load_ns, times.store_ns) == (1, 1, 14, 14)
    assert times.exposed_ns == (11 if layerwise else 0)


def test_setting_a_copy_up_costs_the_host() -> None:
    """As the test above, with 5 ns per copy and 3 per block, on a host that is half as fast."""
    device = replace(
        constant_device(1000, CpuModel.zero().scaled(2)),
        dma=DMA,
        submit=CpuTerms(base_ns=5, per_block_ns=3),
    )
    simulation = _simulation(_config(num_blocks=2, host_pages=8), _turns(1, 1, 2, 1), device)
    record = simulation.run()
    # The first hit stores a block once its token is out; the load delays the last request.
    assert _first_tokens(record) == [1000, 1000, 1000, 16 + 14 + 1000]
    assert record.cpu_busy_ns == 2 * 16


def test_the_last_layer_decides_when_the_copy_is_slower_than_the_step() -> None:
    """A copy of 4,000 ns: the last of four layers runs after it, 250 ns."""
    slow = replace(DMA, bytes_per_token=1000, to_device=replace(CHANNEL, latency_ns=0))
    device = replace(constant_device(1000, CpuModel.zero()), dma=slow)
    config = _config(num_blocks=2, host_pages=8, layerwise_reload=True)
    record = _simulation(config, _turns(1, 1, 2, 1), device).run()
    assert _first_tokens(record)[-1] == 4000 + 250


def test_copies_of_one_direction_queue() -> None:
    """The second store begins when the first has ended; a load does not wait for either."""
    device = replace(constant_device(1000, CpuModel.zero()), dma=DMA)
    workload = replace(_turns(1, 2, 1, 2), arrivals_ns=np.array([0, 0, 5000, 5000]))
    simulation = _simulation(_config(host_pages=8), workload, device)
    simulation.run()
    assert simulation.now == 6018  # both hits came back in one batch: one store of two blocks
    assert simulation.transfer_times.stores == 1


def test_an_absent_prefix_costs_nothing() -> None:
    """A lookup at arrival finds nothing, so nothing is asked for."""
    store = InProcessStore(link=CHANNEL, block_bytes=4)
    device = constant_device(1000, CpuModel.zero())
    record = _simulation(_config(remote=True), _turns(1), device, remote=store).run()
    assert _first_tokens(record) == [1000]
    assert store.requests == 0


def test_a_prefix_that_was_found_and_is_lost_costs_a_remote_request() -> None:
    """The store answers after its latency that it has nothing; then the prompt is computed."""
    store = InProcessStore(link=CHANNEL, block_bytes=4, miss_ppm=1_000_000)
    store.put(np.array([100, 101]), np.zeros((2, 4), dtype=np.uint64))
    device = constant_device(1000, CpuModel.zero())
    record = _simulation(_config(remote=True), _turns(1), device, remote=store).run()
    assert _first_tokens(record) == [1010]
    assert store.requests == 1
    assert record.counters["remote_tokens"] == 0


# -- tokens ---------------------------------------------------------------------------------------

TIERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "write-through": {"host_pages": 40},
    "write-back": {"host_pages": 40, "write_through_threshold": None, "write_back": True},
    "both, few pages": {"host_pages": 7, "write_back": True},
    "layer-wise": {"host_pages": 40, "layerwise_reload": True},
    "all, with a deadline": {
        "host_pages": 20,
        "write_back": True,
        "layerwise_reload": True,
        "load_deadline_ns": 1_000_000,
    },
}


@pytest.mark.parametrize("failure_ppm", [0, 400_000])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("name", TIERS)
def test_no_tier_changes_a_token(name: str, lookahead: int, failure_ppm: int) -> None:
    """Whatever is stored, loaded or fails: the same tokens, no leak, and single steps agree."""
    device = replace(roofline_device(), dma=replace(SLOW_DMA, failure_ppm=failure_ppm))
    workload = mixed_workload(3, 4, count=40, cancels=False)
    reference = _simulation(_config(prefix_caching=False), workload, device).run()
    config = _config(lookahead=lookahead, **TIERS[name])
    runs = [
        _simulation(config, workload, device, stretches=stretches).run()
        for stretches in (False, True)
    ]
    for record in runs:
        assert record.leaked_blocks == 0
        assert record.checksums.tolist() == reference.checksums.tolist()
        assert record.outcomes.tolist() == reference.outcomes.tolist()
    assert runs[0].ends_ns.tolist() == runs[1].ends_ns.tolist()
    assert runs[0].counters == runs[1].counters
    if name != "plain":
        assert runs[0].counters["stored_blocks"] > 0
        assert (runs[0].counters["failed_transfers"] > 0) == (failure_ppm > 0)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_cancels_during_transfers_leak_nothing(lookahead: int) -> None:
    """Clients leave at all moments; what is left agrees with a run without tiers."""
    device = replace(roofline_device(), dma=replace(SLOW_DMA, failure_ppm=200_000))
    for seed in range(4):
        workload = mixed_workload(seed, 4, count=40)
        config = _config(lookahead=lookahead, **TIERS["all, with a deadline"])
        record = _simulation(config, workload, device).run()
        assert record.leaked_blocks == 0


@pytest.mark.parametrize("share", [0, 300_000])
def test_a_remote_store_may_lose_and_fail(share: int) -> None:
    """Under eager, with and without misses and failures, the tokens are the same."""
    device = replace(roofline_device(), dma=SLOW_DMA)
    workload = mixed_workload(5, 4, count=40, cancels=False)
    reference = _simulation(_config(prefix_caching=False), workload, device).run()
    store = InProcessStore(link=SLOW, block_bytes=400, miss_ppm=share, failure_ppm=share)
    config = _config(remote=True, host_pages=4)
    record = _simulation(config, workload, device, remote=store).run()
    assert record.checksums.tolist() == reference.checksums.tolist()
    assert record.counters["remote_tokens"] > 0
    assert (record.counters["failed_transfers"] > 0) == (share > 0)


@pytest.mark.parametrize("name", ["write-through", "both, few pages", "layer-wise"])
def test_an_empty_remote_store_costs_nobody(name: str) -> None:
    """A store that keeps nothing: every time and every hit on NPU and host is as without it."""
    device = replace(roofline_device(), dma=SLOW_DMA)
    workload = mixed_workload(5, 4, count=60)
    tiers = TIERS[name] | {"num_blocks": 24}
    without = _simulation(_config(**tiers), workload, device).run()
    store = InProcessStore(link=SLOW, block_bytes=400, blocks_max=0)
    with_it = _simulation(_config(**tiers, remote=True), workload, device, remote=store).run()
    assert without.counters["host_tokens"] > 0
    assert with_it.counters == without.counters
    assert with_it.ends_ns.tolist() == without.ends_ns.tolist()


def test_a_run_without_memory_has_the_same_times() -> None:
    """Tokens in closed form, the same loads and stores at the same times."""
    device = replace(roofline_device(), dma=SLOW_DMA)
    workload = mixed_workload(3, 4, count=40, cancels=False)
    config = _config(**TIERS["layer-wise"])
    checked = _simulation(config, workload, device).run()
    model = ClosedForm(vocab_size=VOCABULARY, eos_token_id=EOS)
    quick = Simulation(Kernel(config), workload, device, model).run()
    assert quick.ends_ns.tolist() == checked.ends_ns.tolist()
    assert quick.counters == checked.counters


# -- what is noticed ------------------------------------------------------------------------------


@pytest.mark.parametrize("layerwise", [False, True])
def test_a_wrong_page_is_noticed(*, layerwise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy engine that loads another block's content is caught by the sanitizer."""
    device = replace(constant_device(1000, CpuModel.zero()), dma=DMA)
    config = _config(num_blocks=4, host_pages=8, layerwise_reload=layerwise)
    simulation = _simulation(config, _turns(1, 1, 2, 1, prompt=16), device)
    load = Executor.load

    def wrong(executor: Executor, command: LoadBlocks) -> None:
        load(executor, replace(command, pages=command.pages[::-1]))

    monkeypatch.setattr(Executor, "load", wrong)
    with pytest.raises(SanitizerError) as caught:
        simulation.run()
    assert "holds other content than the prompt" in str(caught.value)


def test_a_device_without_copy_engines_cannot_store() -> None:
    """The sentence says what is missing and what to do."""
    simulation = _simulation(
        _config(host_pages=8), _turns(1, 1), constant_device(1000, CpuModel.zero())
    )
    with pytest.raises(SimulationError) as caught:
        simulation.run()
    assert str(caught.value) == (
        "transfer 1 needs a copy engine and the device has none; give the device a dma model, or "
        "leave host_pages at 0"
    )


def test_remote_loads_need_a_remote_store() -> None:
    """The sentence says what is missing and what to do."""
    simulation = _simulation(
        _config(remote=True), _turns(1), constant_device(1000, CpuModel.zero())
    )
    with pytest.raises(SimulationError) as caught:
        simulation.run()
    assert str(caught.value) == (
        "transfer 1 asks for a remote store and there is none; give the simulation one, or leave "
        "remote off"
    )
