"""The tiers behind KV memory, one situation at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepahead.commands import FinishReason, LoadBlocks, StoreBlocks
from stepahead.config import KernelConfig
from stepahead.errors import ConfigError, HostContractError
from stepahead.events import (
    BatchExecuted,
    CacheResetRequested,
    CacheTarget,
    HostReady,
    TransferDone,
)
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.tier_bench import TierBench

PROMPT = tuple(range(8))
OTHER = tuple(range(20, 28))


def bench(**options: Any) -> TierBench:  # noqa: ANN401 - options of the kernel
    """Return a kernel with room for one request of 8 tokens and 2 outputs, and 16 host pages."""
    limits: dict[str, Any] = {
        "num_blocks": 9,
        "block_size": 1,
        "max_model_len": 24,
        "host_pages": 16,
        "write_through_threshold": 1,
    }
    return TierBench(KernelConfig(**(limits | options)), HashModel())


def ask(room: TierBench, prompt: tuple[int, ...] = PROMPT) -> int:
    """Let a request for two tokens arrive; return its handle."""
    name = f"r{len(room.asks)}"
    handle = room.arrive(Ask(request_id=name, prompt=prompt, max_tokens=2))
    assert handle is not None
    return handle


def serve(room: TierBench, prompt: tuple[int, ...] = PROMPT) -> None:
    """Serve one request, transfers included."""
    ask(room, prompt)
    room.drain()


def go(room: TierBench, turns: int = 40) -> None:
    """Let host and device go on without any report of a transfer."""
    for _ in range(turns):
        if room.building is not None:
            room.prepared()
        elif room.ready_due:
            room.host_ready()
        elif room.may_execute():
            room.executed()


def warm(**options: Any) -> TierBench:  # noqa: ANN401 - options of the kernel
    """Return a kernel whose host has `PROMPT` and whose KV memory has something else."""
    room = bench(**options)
    serve(room)
    serve(room)
    serve(room, OTHER)
    assert room.kernel.counters.stored_blocks >= 7  # the last prompt block is never hit
    return room


def runs(room: TierBench) -> bool:
    """Tell whether a batch is on the device."""
    return room.on_device is not None


def only(room: TierBench) -> int:
    """Return the one open transfer."""
    (ident,) = room.transfers
    return ident


# -- to the host ----------------------------------------------------------------------------------


def test_a_prefix_is_copied_at_its_hit_count() -> None:
    """With a threshold of 2 the second hit stores the blocks, all in one transfer."""
    room = bench(write_through_threshold=2)
    serve(room)
    serve(room)
    assert not room.happened
    serve(room)
    assert room.happened == {"StoreBlocks": 1}
    assert room.kernel.counters.stored_blocks == 7


def test_without_a_threshold_nothing_is_copied() -> None:
    """None switches write-through off."""
    room = bench(write_through_threshold=None)
    for _ in range(4):
        serve(room)
    assert not room.happened


def test_a_page_has_no_key_before_its_store_is_complete() -> None:
    """What is on its way is neither loaded nor stored a second time."""
    room = bench()
    serve(room)
    ask(room)
    go(room)
    (store,) = room.transfers.values()
    assert (room.kernel.pages.key < 0).all()
    ask(room)
    go(room)
    assert list(room.transfers.values()) == [store]


def test_a_failed_store_is_not_a_copy() -> None:
    """The page is free again and the next hit tries once more."""
    room = bench()
    serve(room)
    ask(room)
    go(room)
    room.transfer_failed(only(room))
    assert (room.kernel.pages.key < 0).all()
    assert room.kernel.pages.available == 16
    ask(room)
    go(room)
    assert isinstance(room.transfers[only(room)], StoreBlocks)


def test_a_refused_store_is_not_a_copy() -> None:
    """With one page, one block is copied and six are not; nothing else happens to those."""
    room = bench(host_pages=1)
    serve(room)
    serve(room)
    assert room.kernel.counters.stored_blocks == 1
    assert room.kernel.counters.refused_stores == 6


def test_a_block_is_not_reused_while_a_store_reads_it() -> None:
    """The next request needs all blocks; it waits for the store although nobody holds them."""
    room = bench()
    serve(room)
    ask(room)
    go(room)
    assert not room.live()
    other = ask(room, OTHER)
    go(room)
    assert room.kernel.requests()[0].seat is None
    room.transfer_done(only(room))
    go(room)
    assert room.seen.requests[other].finish == FinishReason.LENGTH.value
    room.drain()


def test_what_is_written_back_is_read_before_its_block_is_written() -> None:
    """A batch that got the blocks is prepared and not dispatched before the copy is complete."""
    room = bench(write_back=True, write_through_threshold=None)
    serve(room)
    ask(room, OTHER)
    go(room)
    assert isinstance(room.transfers[only(room)], StoreBlocks)
    assert not runs(room)
    room.transfer_done(only(room))
    assert runs(room)
    room.drain()
    serve(room)
    assert room.kernel.counters.host_tokens == 7


def test_without_write_back_what_was_not_promoted_is_lost() -> None:
    """An evicted block without a copy is computed again."""
    room = bench(write_through_threshold=None)
    serve(room)
    serve(room, OTHER)
    serve(room)
    assert room.kernel.counters.hit_tokens == 0
    assert not room.happened


# -- from the host --------------------------------------------------------------------------------


def test_a_request_waits_for_its_load_and_hits_it() -> None:
    """It stays QUEUED until the report, then computes its last prompt token only."""
    room = warm()
    ask(room)
    go(room)
    (request,) = room.kernel.requests()
    assert request.seat is None
    room.transfer_done(only(room))
    room.drain()
    assert room.kernel.counters.host_tokens == 7
    assert room.kernel.counters.hit_tokens == 14  # once on the NPU, once from the host


def test_a_failed_load_is_computed() -> None:
    """The request goes on without it, once, and nothing wrong is said."""
    room = warm()
    handle = ask(room)
    go(room)
    room.transfer_failed(only(room))
    go(room)
    assert room.seen.requests[handle].finish == FinishReason.LENGTH.value
    assert not room.transfers
    assert room.kernel.counters.host_tokens == 0
    room.drain()


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_a_cancel_during_a_load_ends_the_request_at_once(*, layerwise: bool, failed: bool) -> None:
    """Blocks and pages stay until the report, whatever it says; then all of them are back."""
    room = warm(layerwise_reload=layerwise)
    handle = ask(room)
    room.host_ready()
    room.cancel(room.asks[handle].request_id, handle)
    assert room.seen.requests[handle].finish == FinishReason.ABORT.value
    held = {block.block for block in room.kernel.blocks() if block.pins}
    assert len(held) == 7
    ident = only(room)
    go(room)
    assert {block.block for block in room.kernel.blocks() if block.pins} == held
    (room.transfer_failed if failed else room.transfer_done)(ident)
    room.drain()


def test_the_same_id_may_come_again_while_its_load_drains() -> None:
    """The second stay waits for the first one's load instead of reading the same pages twice."""
    room = warm()
    handle = ask(room)
    go(room)
    name = room.asks[handle].request_id
    room.cancel(name, handle)
    room.arrive(replace(room.asks[handle]))
    go(room)
    room.transfer_done(only(room))
    room.drain()
    assert room.happened["LoadBlocks"] == 1


def test_a_reload_layer_by_layer_starts_at_once() -> None:
    """The batch is on the device while the load runs; its blocks have no key yet."""
    room = warm(layerwise_reload=True)
    ask(room)
    go(room)
    assert room.on_device is not None
    (load,) = room.transfers.values()
    assert (room.kernel.pool.key[load.blocks] < 0).all()
    room.drain()
    assert room.kernel.counters.host_tokens == 7


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_a_failed_reload_voids_the_epoch(lookahead: int, turns: int) -> None:
    """Selected, prepared or on the device: the rows are dead, the request computes everything."""
    room = warm(layerwise_reload=True, lookahead=lookahead)
    handle = ask(room)
    go(room, turns)
    room.transfer_failed(only(room))
    (request,) = room.kernel.requests()
    assert (request.seat, request.epoch) == (None, 1)
    assert not any(row.live for batch in room.kernel.batches() for row in batch.rows)
    room.drain()
    assert room.seen.requests[handle].finish == FinishReason.LENGTH.value


def test_a_batch_cannot_come_back_before_the_load_that_it_ran_on() -> None:
    """A host that says so is told; the kernel is unchanged."""
    room = warm(layerwise_reload=True)
    ask(room)
    go(room)
    assert room.on_device is not None
    before = room.kernel.digest()
    built = room.built[room.on_device].command
    with pytest.raises(HostContractError) as caught:
        room.kernel.step(
            BatchExecuted(
                batch_id=built.batch_id, tokens=built.positions[None, :], at=room.kernel.now
            )
        )
    assert str(caught.value) == (
        f"batch {built.batch_id} came back before transfer {only(room)} that it ran on; report "
        "TransferDone or TransferFailed first"
    )
    assert room.kernel.digest() == before


def test_a_refused_batch_leaves_its_load_running() -> None:
    """The request waits in line again, for the load that was begun."""
    room = warm(layerwise_reload=True)
    ask(room)
    room.host_ready()
    room.refused()
    go(room)
    assert room.kernel.requests()[0].seat is None
    room.transfer_done(only(room))
    room.drain()
    assert room.happened["LoadBlocks"] == 1


def test_a_load_that_takes_too_long_counts_as_failed() -> None:
    """The request goes on at its deadline; what comes later is ignored and lets the blocks go."""
    room = warm(load_deadline_ns=50, num_blocks=18)
    serve(room, tuple(range(40, 57)))  # evicts the first prompt from the larger pool
    handle = ask(room)
    go(room)
    assert room.wake is not None
    room.woke_in_time()
    go(room)
    assert room.seen.requests[handle].finish == FinishReason.LENGTH.value
    assert room.kernel.counters.expired_loads == 1
    room.transfer_done(only(room))
    assert room.kernel.counters.ignored_transfers == 1
    assert room.kernel.counters.host_tokens == 0
    room.drain()


def test_what_a_load_overwrites_is_written_back_before() -> None:
    """The load waits for those copies, and the next request finds them."""
    room = warm(write_back=True)
    ask(room)
    go(room)
    assert isinstance(room.transfers[only(room)], StoreBlocks)
    room.transfer_done(only(room))
    go(room)
    assert isinstance(room.transfers[only(room)], LoadBlocks)
    room.drain()
    before = room.kernel.counters.host_tokens
    serve(room, OTHER)
    assert room.kernel.counters.host_tokens > before


def test_one_page_can_be_loaded_while_write_back_wants_it() -> None:
    """Making room for a load must not evict the source of that load."""
    room = bench(host_pages=1, write_back=True)
    for prompt in (PROMPT, PROMPT, OTHER, PROMPT, OTHER, PROMPT):
        serve(room, prompt)
    assert room.kernel.counters.host_tokens > 0


# -- remote ---------------------------------------------------------------------------------------


def test_a_remote_store_may_have_a_part() -> None:
    """As many blocks as it had are hit, and the rest is computed."""
    room = bench(remote=True, host_pages=4)
    serve(room)
    serve(room)  # four blocks find a page, and go on to the remote store from there
    room.reset_cache()
    before = room.kernel.counters.hit_tokens
    serve(room)
    counters = room.kernel.counters
    assert (counters.host_tokens, counters.remote_tokens) == (0, 4)
    assert counters.hit_tokens - before == 4


@pytest.mark.parametrize(
    ("found", "asked"), [(None, [5, 6]), (7, [5, 6]), (6, [5]), (5, []), (2, []), (0, [])]
)
def test_a_load_asks_for_what_the_lookup_found_behind_the_cached_prefix(
    found: int | None, asked: list[int]
) -> None:
    """Five blocks are on the NPU; a lookup counts from the first block of the prompt on."""
    room = bench(remote=True, host_pages=0, num_blocks=16)
    serve(room, PROMPT[:5])
    room.arrive(Ask(request_id="late", prompt=PROMPT, max_tokens=1), found)
    go(room)
    loads = [c for _, commands in room.journal for c in commands if isinstance(c, LoadBlocks)]
    assert [load.keys.tolist() for load in loads if load.handle > 1] == ([asked] if asked else [])


def test_more_than_was_asked_for_is_no_answer() -> None:
    """A report of more blocks than the transfer has changes nothing."""
    room = warm()
    ask(room)
    go(room)
    with pytest.raises(HostContractError) as caught:
        room.kernel.step(TransferDone(transfer_id=only(room), at=room.kernel.now, blocks=9))
    assert str(caught.value) == (
        f"transfer {only(room)} is reported complete with 9 blocks; only a load from the remote "
        "store may fill some of its 7 blocks"
    )


# -- pause, reset, configuration ------------------------------------------------------------------


def test_a_pause_is_reported_when_the_last_transfer_is() -> None:
    """No batch is outstanding, and still there is one store."""
    room = bench()
    serve(room)
    ask(room)
    go(room)
    room.pause()
    assert not room.journal[-1][1]
    room.transfer_done(only(room))
    assert [type(command).__name__ for command in room.journal[-1][1]] == ["ReportPaused"]


@pytest.mark.parametrize(
    ("target", "hits", "loads"),
    [(CacheTarget.ALL, 0, 0), (CacheTarget.NPU, 7, 1), (CacheTarget.HOST, 7, 0)],
)
def test_a_reset_forgets_the_tiers_that_are_meant(
    target: CacheTarget, hits: int, loads: int
) -> None:
    """After a reset of both nothing is hit; after one of them the other one still is."""
    room = bench(num_blocks=18)
    serve(room)
    serve(room)
    before = room.kernel.counters.hit_tokens
    (answer,) = room.kernel.step(CacheResetRequested(at=room.kernel.now, target=target))
    assert answer.done is True  # type: ignore[union-attr]
    serve(room)
    assert room.kernel.counters.hit_tokens - before == hits
    assert room.happened["LoadBlocks"] == loads


def test_a_reset_is_refused_during_a_transfer() -> None:
    """A store is open, nothing else is: busy."""
    room = bench()
    serve(room)
    ask(room)
    go(room)
    (answer,) = room.kernel.step(CacheResetRequested(at=room.kernel.now))
    assert answer.done is False  # type: ignore[union-attr]


def test_an_unknown_transfer_is_counted_and_ignored() -> None:
    """A late acknowledgement names a transfer that is closed."""
    room = bench()
    room.report_again(7)
    assert room.kernel.counters.ignored_transfers == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"host_pages": 4, "prefix_caching": False},
            "host_pages=4 is not usable; give 0 without prefix_caching",
        ),
        ({"write_back": True}, "write_back=True is not usable; give False without host_pages"),
        (
            {"layerwise_reload": True},
            "layerwise_reload=True is not usable; give False without host_pages",
        ),
        (
            {"remote": True, "lookahead": 1},
            "remote=True is not usable; give False with lookahead above 0",
        ),
        (
            {"write_through_threshold": 0},
            "write_through_threshold=0 is not usable; give None or an integer >= 1",
        ),
    ],
)
def test_tiers_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    """Each sentence names the option and what to give instead."""
    with pytest.raises(ConfigError) as caught:
        KernelConfig(num_blocks=4, **options)
    assert str(caught.value) == sentence


def test_a_snapshot_keeps_pages_and_transfers() -> None:
    """Restored in the middle of a load, the kernel goes on exactly as it did."""
    room = warm(layerwise_reload=True)
    ask(room)
    go(room, 2)
    kernel, ident = room.kernel, only(room)
    saved, digest = kernel.snapshot(), kernel.digest()
    kernel.step(TransferDone(transfer_id=ident, at=kernel.now))
    first = kernel.digest()
    assert first != digest
    kernel.restore(saved)
    assert kernel.digest() == digest
    kernel.step(TransferDone(transfer_id=ident, at=kernel.now))
    assert kernel.digest() == first
    kernel.step(HostReady(at=kernel.now))
