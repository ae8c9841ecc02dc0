"""The invariants of the tiers speak up: a sound moment is spoiled, and they say what is wrong."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepahead.config import KernelConfig
from stepahead.events import CacheTarget
from stepahead_specs.invariants import INVARIANTS, tiers
from stepahead_specs.observation import Observation
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.records import Index, Ints
from stepahead_specs.tier_bench import TierBench

CONFIG = KernelConfig(
    num_blocks=9,
    block_size=2,
    max_concurrency=2,
    max_num_batched_tokens=16,
    lookahead=1,
    host_pages=4,
    write_through_threshold=1,
)


def _tiers(config: KernelConfig = CONFIG) -> TierBench:
    """Request 2 repeats request 1, which is over: it hits two blocks, which are to be stored."""
    bench = TierBench(config, HashModel())
    bench.arrive(Ask(request_id="a", prompt=(1, 2, 3, 4, 5), max_tokens=2))
    bench.drain()
    bench.arrive(Ask(request_id="b", prompt=(1, 2, 3, 4, 5), max_tokens=2))
    while not bench.transfers:
        next(bench.moves())()
    return bench


def storing() -> Observation:
    """A store of blocks 0 and 1 to pages 0 and 1 is open."""
    return _tiers().seen


def stored() -> Observation:
    """A store of blocks 0 and 1 to pages 0 and 1 is complete."""
    bench = _tiers()
    bench.transfer_done(1)
    return bench.seen


def loading() -> Observation:
    """KV memory was reset; request 3 waits for a load of pages 0 and 1 to blocks 4 and 5."""
    return _loading().seen


def _loading() -> TierBench:
    bench = _tiers()
    bench.drain()
    bench.reset_cache(CacheTarget.NPU)
    bench.arrive(Ask(request_id="c", prompt=(1, 2, 3, 4, 5), max_tokens=2))
    bench.host_ready()
    return bench


def dispatched() -> Observation:
    """As above, layer by layer: a batch of request 3 is dispatched, the load still runs."""
    bench = _tiers(replace(CONFIG, layerwise_reload=True))
    bench.drain()
    bench.reset_cache(CacheTarget.NPU)
    bench.arrive(Ask(request_id="c", prompt=(1, 2, 3, 4, 5), max_tokens=2))
    bench.host_ready()
    bench.prepared()
    return bench.seen


def left() -> Observation:
    """The client for whom the one load is has left."""
    bench = _loading()
    bench.cancel("c")
    return bench.seen


def drained() -> Observation:
    """Nothing is live, outstanding or in transfer."""
    bench = _tiers()
    bench.drain()
    return bench.seen


def _ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _memory(seen: Observation, name: str, **changes: object) -> None:
    """Change columns of the account of the blocks, or of the pages."""
    assert seen.account is not None
    changed = replace(getattr(seen.account, name), **changes)
    seen.account = replace(seen.account, **{name: changed})


def _also(seen: Observation, **changes: object) -> None:
    """Let another transfer be open, like the one that is."""
    (transfer,) = seen.transfers.values()
    other = replace(transfer, ident=transfer.ident + 1, **changes)  # type: ignore[arg-type]
    seen.transfers[other.ident] = other


def _held(seen: Observation) -> None:
    """Let request 3 hold a block that is being loaded."""
    assert seen.account is not None
    requests = dict(seen.account.requests)
    requests[3] = replace(requests[3], blocks=_ints(4))
    seen.account = replace(seen.account, requests=requests)


SPOILED: list[
    tuple[str, Callable[[], Observation], Callable[[Observation], object], tuple[str, ...]]
] = [
    (
        "every_page_is_in_one_place",
        storing,
        lambda seen: _memory(seen, "pages", queue=_ints(1, 3, 3)),
        (
            "page 1 is pending (held, free for use: False, True)",
            "page 2 is free (held, free for use: False, False)",
            "page 2 is nowhere: not held, not free, in no outstanding batch",
            "page 3 stands 2 times in the line of free pages",
        ),
    ),
    (
        "a_page_is_in_one_transfer",
        storing,
        _also,
        ("page 0 is in transfers [1, 2] at once", "page 1 is in transfers [1, 2] at once"),
    ),
    (
        "what_a_transfer_needs_is_not_free",
        loading,
        lambda seen: _memory(seen, "blocks", queue=_ints(5, 6)),
        ("block 5 may be handed out during transfer 2",),
    ),
    (
        "nobody_writes_what_a_store_reads",
        loading,
        lambda seen: _also(seen, store=True),
        (
            "load 2 writes block 4, store 3 reads it",
            "load 2 writes block 5, store 3 reads it",
        ),
    ),
    (
        "a_copy_is_of_what_its_key_says",
        loading,
        lambda seen: seen.pages.spoil(_ints(1), -7),
        ("transfer 2 begins to copy page 1 as key 1, it has no such content",),
    ),
    (
        "a_load_is_of_its_requests_prefix",
        loading,
        lambda seen: setattr(seen.now, "asked", [replace(seen.transfers[2], keys=_ints(1, 0))]),
        ("load 2 asks for keys [1, 0], those of request 3 that can be there are [0, 1]",),
    ),
    (
        "what_a_load_writes_has_no_other_user",
        loading,
        _held,
        ("load 2 writes block 4, which request 3 holds",),
    ),
    (
        "a_pin_belongs_to_a_transfer",
        loading,
        lambda seen: _memory(seen, "blocks", pins=_ints(0, 0, 1, 0, 1, 0, 0, 0, 0)),
        (
            "block 2 has 1 pins, transfers account for 0",
            "block 5 has no pin and is being loaded",
        ),
    ),
    (
        "a_transfer_is_open_until_it_is_reported",
        stored,
        lambda seen: setattr(
            seen,
            "account",
            replace(seen.account, transfers=frozenset({1})),  # type: ignore[type-var]
        ),
        ("transfer 1 is reported, and the scheduler waits for it",),
    ),
    (
        "what_was_copied_can_be_found",
        stored,
        lambda seen: _memory(seen, "pages", index=Index(_ints(0), _ints(0))),
        ("transfer 1 is complete, and key 1 leads nowhere",),
    ),
    (
        "nothing_is_kept_when_nothing_is_left",
        drained,
        lambda seen: _memory(seen, "pages", queue=_ints(0, 1)),
        ("2 of 4 pages are free at quiescence",),
    ),
    (
        "a_key_stands_for_written_content",
        storing,
        lambda seen: _memory(seen, "pages", keys=_ints(0, -1, -1, -1)),
        ("page 0 has key 0, but transfer 1 wrote what nobody may read into it",),
    ),
    (
        "keys_and_blocks_agree",
        stored,
        lambda seen: _memory(seen, "pages", index=Index(_ints(0, 1), _ints(1, 1))),
        (
            "key 0 leads to page 1, which has key 1",
            "page 0 has key 0, which leads to 1",
        ),
    ),
    (
        "a_live_row_reads_its_own_history",
        dispatched,
        lambda seen: seen.transfers.clear(),
        (
            "batch 5 reads slot 0 of request 3: block 4 has 0 written positions, 2 are read",
            "batch 5 reads slot 1 of request 3: block 5 has 0 written positions, 2 are read",
        ),
    ),
    (
        "a_reset_forgets_everything",
        storing,
        lambda seen: setattr(seen.now, "reset", True),
        (
            "block 0 still has key 0 after the reset",
            "block 1 still has key 1 after the reset",
            "the cache is reset during transfer 1, which brings content back",
        ),
    ),
    (
        "a_pause_waits_for_the_device",
        loading,
        lambda seen: setattr(seen.now, "paused", 1),
        ("the pause is reported and transfer 2 is open",),
    ),
    (
        "idle_means_that_nothing_is_left",
        left,
        lambda seen: setattr(seen, "account", replace(seen.account, idle=True)),  # type: ignore[type-var]
        ("the scheduler calls itself idle, and transfer 2 is open",),
    ),
    (
        "every_request_ends",
        left,
        lambda _: None,
        ("transfer 2 is still open",),
    ),
]


@pytest.mark.parametrize(
    ("rule", "moment", "spoil", "sentences"), SPOILED, ids=[entry[0] for entry in SPOILED]
)
def test_a_spoiled_moment_is_named_in_full(
    told: Callable[[str, Observation, Callable[[Observation], object]], tuple[str, ...]],
    rule: str,
    moment: Callable[[], Observation],
    spoil: Callable[[Observation], object],
    sentences: tuple[str, ...],
) -> None:
    """The sound moment is silent; the spoiled one is told in the exact words."""
    assert told(rule, moment(), spoil) == sentences


def test_every_rule_of_the_tiers_has_a_spoiled_moment() -> None:
    """A rule that nothing has ever broken may be unable to speak."""
    named = {entry[0] for entry in SPOILED}
    assert {e.name for e in INVARIANTS if e.rule.__module__ == tiers.__name__} <= named
