"""The invariants of speculation speak up: a sound moment is spoiled, and they say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepahead.config import KernelConfig
from stepahead_specs.bench import Bench
from stepahead_specs.invariants import INVARIANTS, drafts
from stepahead_specs.observation import Observation
from stepahead_specs.oracle import Ask, HashModel

CONFIG = KernelConfig(
    num_blocks=9,
    block_size=2,
    max_concurrency=2,
    max_num_batched_tokens=16,
    num_speculative_tokens=2,
)


def _drafting() -> Bench:
    """The prompts are computed; batch 2 has two drafts for request 1 and one for request 2."""
    bench = Bench(CONFIG, HashModel())
    bench.arrive(Ask(request_id="a", prompt=(1, 2, 3, 4, 5), max_tokens=4))
    bench.arrive(Ask(request_id="b", prompt=(7, 8, 9), max_tokens=3))
    bench.host_ready()
    bench.prepared()
    bench.executed()
    bench.host_ready()
    return bench


def drafted() -> Observation:
    """Batch 2 has been selected, with drafts."""
    return _drafting().seen


def rejected() -> Observation:
    """Batch 2 has come back, and no draft was right."""
    bench = _drafting()
    bench.prepared()
    bench.luck = 0
    bench.executed()
    return bench.seen


def _row(seen: Observation, index: int, **changes: int) -> None:
    batch = seen.batches[2]
    rows = list(batch.rows)
    rows[index] = replace(rows[index], **changes)  # type: ignore[arg-type]
    batch.rows = tuple(rows)


def _request(seen: Observation, handle: int, **changes: int) -> None:
    assert seen.account is not None
    requests = dict(seen.account.requests)
    requests[handle] = replace(requests[handle], **changes)  # type: ignore[arg-type]
    seen.account = replace(seen.account, requests=requests)


def _without_row(seen: Observation) -> None:
    """Request 2 has no row in batch 2."""
    seen.batches[2].rows = seen.batches[2].rows[:1]
    _request(seen, 2, scheduled=3)


SPOILED: list[
    tuple[str, Callable[[], Observation], Callable[[Observation], object], tuple[str, ...]]
] = [
    (
        "drafts_follow_one_sampled_token",
        drafted,
        lambda seen: _row(seen, 1, count=3, drafts=2),
        (
            (
                "the row of request 2 in batch 2 reads 1 known tokens from 3 on and has 2 drafts, "
                "1 may be"
            ),
        ),
    ),
    (
        "a_rejected_draft_leaves_nothing",
        rejected,
        lambda seen: _request(seen, 1, scheduled=8, settled=8),
        (
            "request 1 has 8 settled positions, and its 7 known tokens can have 6",
            (
                "request 1 has 8 scheduled positions and no row out, its rows and what was "
                "rejected of them leave 6"
            ),
        ),
    ),
    (
        "no_row_is_left_out_for_a_draft",
        drafted,
        _without_row,
        ("request 2 has no row, and request 1 has drafts",),
    ),
    (
        "drafts_take_what_is_left",
        drafted,
        lambda seen: _row(seen, 0, count=2, drafts=1),
        (
            (
                "request 1 has 1 drafts of 2, and there is room: 2 blocks are free, its positions "
                "end at 7"
            ),
        ),
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


def test_every_rule_of_drafts_has_a_spoiled_moment() -> None:
    """A rule that nothing has ever broken may be unable to speak."""
    named = {entry[0] for entry in SPOILED}
    assert {e.name for e in INVARIANTS if e.rule.__module__ == drafts.__name__} == named
