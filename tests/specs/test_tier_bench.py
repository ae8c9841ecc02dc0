"""The random search over the kernel with all tiers on: any order of facts, the same tokens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from stepahead_specs.machines import EOS
from stepahead_specs.oracle import HashModel
from stepahead_specs.story import tell
from stepahead_specs.tier_bench import TierBench
from stepahead_specs.tier_walk import tiers, wander

#: What a search must have seen to say something about it.
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


def search(data: st.DataObject) -> None:
    """Run one example; a failure carries the run in words."""

    def choose(options: Sequence[Any]) -> Any:  # noqa: ANN401 # one of the options
        return data.draw(st.sampled_from(options))

    bench = TierBench(tiers(choose), HashModel(eos=EOS))
    try:
        wander(bench, choose, data.draw(st.integers(1, 40)))
    except Exception:
        note(f"{bench.config}\n{tell(bench.journal)}")
        raise


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_tokens_are_the_truth_whatever_the_tiers_do(data: st.DataObject) -> None:
    """Loads, stores, failures, deadlines, cancels, refusals in any order lose and mix nothing."""
    search(data)


@pytest.mark.campaign
@given(data=st.data())
@settings(max_examples=5000, deadline=None)
def test_tokens_are_the_truth_in_a_long_search(data: st.DataObject) -> None:
    """As above, with thousands of examples."""
    search(data)


def test_seeded_runs_reach_every_kind_of_transfer() -> None:
    """The same search by a random source; what it never reached it would say nothing about."""
    reached: Counter[str] = Counter()
    for seed in range(120):
        source = random.Random(seed)  # noqa: S311 # no secret
        bench = TierBench(tiers(source.choice), HashModel(eos=EOS))
        wander(bench, source.choice, 30)
        reached.update(name for name in WANTED if getattr(bench.kernel.counters, name))
    assert sorted(set(WANTED) - set(reached)) == []
