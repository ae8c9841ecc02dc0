"""The random search over the kernel with all tiers on: any order of facts, the same tokens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from stepahead.config import SelectionTiming
from stepahead_models.codec import Json, encode
from stepahead_specs.machines import EOS
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.story import tell
from stepahead_specs.tier_bench import TierBench
from stepahead_specs.tier_walk import tiers, wander

EARLY = SelectionTiming.EARLY
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


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=30, deadline=None)
def test_an_empty_remote_store_changes_nothing_where_it_is_looked_up(seed: int) -> None:
    """Whatever happens, the answers are those of a kernel without remote store."""
    answers: list[list[Json]] = []
    for remote in (False, True):
        source = random.Random(seed)  # noqa: S311 # no secret
        config = replace(tiers(source.choice), lookahead=0, timing=EARLY, remote=remote)
        bench = NothingRemote(config, HashModel(eos=EOS))
        wander(bench, source.choice, 30)
        answers.append([encode(c) for _, commands in bench.journal for c in commands])
    assert answers[0] == answers[1]


class NothingRemote(TierBench):
    """A host whose every lookup finds nothing."""

    def arrive(self, ask: Ask, remote_blocks: int | None = None) -> int | None:
        """Report an arrival, whatever the walk would have it say."""
        del remote_blocks
        return super().arrive(ask, 0)


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
