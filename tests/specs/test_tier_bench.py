"""The random search over the kernel with all tiers on: any order of facts, the same tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from stepahead.config import BatchPreference, KernelConfig, SelectionTiming
from stepahead_specs.machines import EOS
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.story import tell
from stepahead_specs.tier_bench import TierBench

LONGEST = 12 + 4  # prompt and output of `turns`
#: What `test_the_search_reaches_every_kind_of_transfer` wants to have seen.
WANTED = (
    "host_tokens",
    "remote_tokens",
    "stored_blocks",
    "refused_stores",
    "failed_transfers",
    "expired_loads",
    "ignored_transfers",
    "preemptions",
)


@st.composite
def tiers(draw: st.DrawFn) -> KernelConfig:
    """Draw a kernel with a small pool, a few host pages, and any of the options."""
    block_size = draw(st.sampled_from((1, 2, 4)))
    least = -(-(LONGEST - 1) // block_size)
    lookahead = draw(st.integers(0, 3))
    late = draw(st.booleans()) and lookahead > 0
    pages = draw(st.sampled_from((4, 1, 2, 16, 0)))
    return KernelConfig(
        num_blocks=draw(st.integers(least, least + 4)),
        block_size=block_size,
        max_concurrency=draw(st.sampled_from((1, 2, 4))),
        max_num_batched_tokens=draw(st.sampled_from((64, 5))),
        max_tokens_per_row=draw(st.sampled_from((64, 3))),
        max_model_len=24,
        lookahead=lookahead,
        preference=draw(st.sampled_from(list(BatchPreference))),
        timing=SelectionTiming.JUST_IN_TIME if late else SelectionTiming.EARLY,
        late_joiners=draw(st.booleans()),
        prune=draw(st.booleans()),
        eos_token_id=EOS,
        host_pages=pages,
        write_through_threshold=draw(st.sampled_from((1, 2, None))),
        write_back=pages > 0 and draw(st.booleans()),
        layerwise_reload=pages > 0 and draw(st.booleans()),
        load_deadline_ns=draw(st.sampled_from((0, 0, 15))),
        remote=lookahead == 0 and draw(st.booleans()),
    )


@st.composite
def turns(draw: st.DrawFn) -> Ask:
    """Draw a turn of one of three conversations, long enough that two of them fill the pool."""
    length = draw(st.sampled_from((12, 11, 9, 6, 1)))
    family = 20 * draw(st.integers(0, 2))
    return Ask(
        request_id="",
        prompt=tuple(range(family, family + length)),
        max_tokens=draw(st.integers(1, 4)),
        eos_at=draw(st.sampled_from((None, None, 0, 1))),
    )


def wander(bench: TierBench, data: st.DataObject, steps: int) -> None:
    """Let anything happen that may, ``steps`` times, then let everything come to its end."""
    for _ in range(steps):
        kind = data.draw(st.sampled_from(("run", "run", "arrive", "arrive", "go", "go", "other")))
        if kind == "run":
            run_on(bench, data.draw(st.sampled_from((5, 20, 60))))
        elif kind == "go":
            moves: list[Callable[[], object]] = [*bench.moves()]
            moves.extend(partial(bench.transfer_failed, ident) for ident in bench.transfers)
            if moves:
                data.draw(st.sampled_from(moves))()
        elif kind == "arrive":
            for _ in range(data.draw(st.integers(1, 4))):
                bench.arrive(replace(data.draw(turns()), request_id=f"r{len(bench.journal)}"))
        else:
            data.draw(st.sampled_from([*others(bench)]))()
    bench.drain()


def run_on(bench: TierBench, turns: int) -> None:
    """Take the most urgent move that there is, ``turns`` times."""
    for _ in range(turns):
        if (move := next(bench.moves(), None)) is not None:
            move()


def others(bench: TierBench) -> Iterator[Callable[[], object]]:
    """Iterate over what may happen and is not the course of things."""
    yield bench.pause_or_resume
    yield bench.reset_cache
    closed = next(i for i in range(1, 1000) if i not in bench.transfers)
    yield partial(bench.report_again, closed)
    for handle in bench.live():
        yield partial(bench.cancel, bench.asks[handle].request_id, handle)
    if bench.building is not None:
        yield bench.refused


def search(data: st.DataObject) -> TierBench:
    """Run one example; a failure carries the run in words."""
    config = data.draw(tiers())
    bench = TierBench(config, HashModel(eos=EOS))
    try:
        wander(bench, data, data.draw(st.integers(1, 40)))
    except Exception:
        note(f"{config}\n{tell(bench.journal)}")
        raise
    return bench


@given(data=st.data())
@settings(max_examples=150)
def test_tokens_are_the_truth_whatever_the_tiers_do(data: st.DataObject) -> None:
    """Loads, stores, failures, deadlines, cancels, refusals in any order lose and mix nothing."""
    search(data)


@pytest.mark.campaign
@given(data=st.data())
@settings(max_examples=5000, deadline=None)
def test_tokens_are_the_truth_in_a_long_search(data: st.DataObject) -> None:
    """As above, with thousands of examples."""
    search(data)


def test_the_search_reaches_every_kind_of_transfer() -> None:
    """What is never reached is nothing about which the search says something."""
    reached: Counter[str] = Counter()

    @given(data=st.data())
    @settings(max_examples=300, derandomize=True, database=None, deadline=None)
    def run(data: st.DataObject) -> None:
        counters = search(data).kernel.counters
        reached.update(name for name in WANTED if getattr(counters, name))

    run()
    assert sorted(set(WANTED) - set(reached)) == []
