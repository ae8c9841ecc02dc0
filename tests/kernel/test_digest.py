"""The digest, fact by fact: what can influence a later command changes it, nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from stepahead import KernelConfig, SelectionTiming
from stepahead.arrays import Ints
from stepahead.blocks import BlockPool
from stepahead.commands import FinishReason
from stepahead.state import State, Wake
from stepahead.views import digest
from stepahead_specs.runs import Copy, copies, walked, wandered

#: Changes one fact and returns True, or returns False where the state does not have it.
Fact = Callable[[State], bool]


def other(value: Any) -> Any:  # noqa: ANN401, PLR0911 - one case per kind of value
    """Return another value of the same kind."""
    match value:
        case bool():
            return not value
        case Enum():
            kinds = list(type(value))
            return kinds[(kinds.index(value) + 1) % len(kinds)]
        case int():
            return value + 1
        case str():
            return value + "x"
        case frozenset():
            return frozenset([99, *cast("frozenset[int]", value)])
        case np.ndarray():
            return other_array(cast("Ints", value))
        case tuple():
            return (*value, 1)
        case _:
            raise TypeError(f"no other {type(value)}")


def other_array(value: Ints) -> Ints:
    """Return a copy with another last entry, or with an entry if there is none."""
    if not len(value):
        return np.array([1])
    changed = value.copy()
    changed[-1] = not changed[-1] if changed.dtype == bool else changed[-1] + 1
    return changed


def fact_of(holder: Callable[[State], Any], name: str) -> Fact:
    """Return the change of a field of whatever ``holder`` finds in a state, None: nothing."""

    def change(state: State) -> bool:
        found = holder(state)
        if found is None:
            return False
        setattr(found, name, other(getattr(found, name)))
        return True

    return change


def seated(state: State) -> Any:  # noqa: ANN401 - see `fact_of`
    """Return a request with a seat."""
    return next((stay for stay in state.live.values() if stay.seat >= 0), None)


def waiting(state: State) -> Any:  # noqa: ANN401 - see `fact_of`
    """Return a request without."""
    return next((stay for stay in state.live.values() if stay.seat < 0), None)


def running(state: State) -> Any:  # noqa: ANN401 - see `fact_of`
    """Return the oldest outstanding batch."""
    return state.outstanding[0] if state.outstanding else None


def filled(state: State) -> Any:  # noqa: ANN401 - see `fact_of`
    """Return a batch that is back and not retired."""
    return state.filled[0] if state.filled else None


def entry(pool: Callable[[State], BlockPool], name: str) -> Fact:
    """Return the change of one entry of an array of a pool."""

    def change(state: State) -> bool:
        array: Ints = getattr(pool(state), name)
        if len(array):
            array[0] += 1
        return len(array) > 0

    return change


def turned(pool: Callable[[State], BlockPool]) -> Fact:
    """Return the change of the order in which blocks are reused: the first comes last."""

    def change(state: State) -> bool:
        found = pool(state)
        if found.available > 1:
            found.release(found.hit(found.queued()[:1]).blocks, 0)
        return found.available > 1

    return change


def _column(state: State) -> bool:
    stay = seated(state)
    if stay is None:
        return False
    state.columns.arena[-1, stay.seat] += 1
    return True


def _table(state: State) -> bool:
    stay = seated(state)
    if stay is None or not state.columns.blocks[stay.seat]:
        return False
    state.columns.table[stay.seat, 0] += 1
    return True


def _token(state: State) -> bool:
    stay = seated(state)
    if stay is None or not len(state.columns.sampled(stay.seat)):
        return False
    state.columns.tokens[stay.seat, 0] += 1
    return True


def _fence(state: State) -> bool:
    state.pool.fence[0] = state.pool.passed + 5
    return True


def _pending(state: State) -> bool:
    state.pool.pending.append((1, np.array([0])))
    return True


def _order(state: State) -> bool:
    state.order = np.append(state.order, 0)
    return True


def _dead(state: State) -> bool:
    if not state.outstanding:
        return False
    state.outstanding[-1].dead[0] = FinishReason.ERROR
    return True


def _drafts(state: State) -> bool:
    """The last rows of a batch are drafts, or there are more of them."""
    if not state.outstanding:
        return False
    batch = state.outstanding[-1]
    drafts = np.zeros(len(batch.seats), dtype=np.int64) if batch.drafts is None else batch.drafts
    batch.drafts = drafts + 1
    return True


def _more_drafts(state: State) -> bool:
    return any(batch.drafts is not None for batch in state.outstanding) and _drafts(state)


def _transfer(name: str) -> Fact:
    def change(state: State) -> bool:
        for ident, transfer in state.ledger.open.items():
            value = other(getattr(transfer, name))
            state.ledger.open[ident] = replace(transfer, **{name: value})
            return True
        return False

    return change


def _free_seat(state: State) -> bool:
    state.columns.free_seats.append(77)
    return True


def _fenced_seat(state: State) -> bool:
    state.fenced_seats.append((9, 9))
    return True


def _loading(state: State) -> bool:
    state.ledger.loading[77] = 7
    return True


def _storing(state: State) -> bool:
    state.ledger.storing.add(77)
    return True


def _late(state: State) -> bool:
    state.ledger.late.add(77)
    return True


def _wake(state: State) -> bool:
    state.wake = Wake(wake_id=77, at=7, selects=True)
    return True


def _kv(state: State) -> BlockPool:
    return state.pool


def _pages(state: State) -> BlockPool:
    return state.pages


_STAY = [
    "request_id",
    "handle",
    "rank",
    "prompt",
    "final",
    "floor",
    "eos",
    "stops",
    "keys",
    "epoch",
    "sampled",
    "settled_before",
]
_BATCH = ["batch_id", "state", "seats", "handles", "epochs", "positions", "ends", "samples", "live"]
_STATE = ["next_batch", "next_handle", "paused", "pause_due", "device_failed"]

ALWAYS: dict[str, Fact] = {
    **{f"seated {name}": fact_of(seated, name) for name in _STAY},
    **{f"waiting {name}": fact_of(waiting, name) for name in _STAY},
    **{f"running {name}": fact_of(running, name) for name in _BATCH},
    **{f"filled {name}": fact_of(filled, name) for name in _BATCH},
    **{name: fact_of(lambda state: state, name) for name in _STATE},
    "block references": entry(_kv, "references"),
    "block key": entry(_kv, "key"),
    "block order": turned(_kv),
    "block fence": _fence,
    "passed": fact_of(_kv, "passed"),
    "pending": _pending,
    "column": _column,
    "block table": _table,
    "token": _token,
    "order": _order,
    "free seats": _free_seat,
    "fenced seats": _fenced_seat,
    "dead": _dead,
    "drafts": _drafts,
}
_TRANSFER = [
    "transfer_id",
    "kind",
    "blocks",
    "pages",
    "keys",
    "issued_at",
    "prefix",
    "handle",
    "epoch",
    "layerwise",
]
WITH_TIERS: dict[str, Fact] = {
    "page references": entry(_pages, "references"),
    "page key": entry(_pages, "key"),
    "page order": turned(_pages),
    "block uses": entry(_kv, "uses"),
    **{f"transfer {name}": _transfer(name) for name in _TRANSFER},
    "next transfer": fact_of(lambda state: state.ledger, "next_id"),
    "loading": _loading,
    "storing": _storing,
    "late": _late,
    "wake": _wake,
    "seated load_epoch": fact_of(seated, "load_epoch"),
    "waiting cleared_epoch": fact_of(waiting, "cleared_epoch"),
    "loads": fact_of(running, "loads"),
}
JUST_IN_TIME: dict[str, Fact] = {
    "wake": _wake,
    "joinable": fact_of(lambda state: state, "joinable"),
    "margin": fact_of(lambda state: state.timing, "margin"),
    "dispatched_at": fact_of(running, "dispatched_at"),
}


@cache
def plain_states() -> list[Copy]:
    """Return states of kernels without tiers."""
    return [copy for seed in range(8) for copy in copies(walked(seed), 5)]


@cache
def tier_states() -> list[Copy]:
    """Return states of kernels with tiers."""
    runs = (copies(wandered(seed, 6), 5) for seed in range(12))
    return [copy for run in runs for copy in run if copy.config.host_pages]


def holds(fact: Fact, copy: Copy) -> bool | None:
    """Tell whether a change of the fact changes the digest; None if the state does not have it."""
    state = copy.state()
    before = digest(state)
    return digest(state) != before if fact(state) else None


def overlooked(fact: Fact, taken: list[Copy], most: int = 12) -> tuple[int, int]:
    """Return in how many states the digest overlooks the fact, and how many of them have it.

    It looks until ``most`` have it, in states that are apart from each other.
    """
    seen: list[bool] = []
    for start in range(7):
        for copy in taken[start::7]:
            if len(seen) < most and (told := holds(fact, copy)) is not None:
                seen.append(told)
    return seen.count(False), len(seen)


@pytest.mark.parametrize("fact", ALWAYS.values(), ids=ALWAYS.keys())
def test_whatever_can_influence_a_later_command_changes_the_digest(fact: Fact) -> None:
    """Equal digests mean equal futures, with and without tiers."""
    for taken in (plain_states(), tier_states()):
        missed, had = overlooked(fact, taken)
        assert (missed, had > 0) == (0, True)


@pytest.mark.parametrize("fact", WITH_TIERS.values(), ids=WITH_TIERS.keys())
def test_with_tiers_their_facts_count_as_well(fact: Fact) -> None:
    """A transfer that is open, and what waits for it, decides what comes next."""
    missed, had = overlooked(fact, tier_states())
    assert (missed, had > 0) == (0, True)


@pytest.mark.parametrize("fact", JUST_IN_TIME.values(), ids=JUST_IN_TIME.keys())
def test_just_in_time_what_was_learnt_counts_as_well(fact: Fact) -> None:
    """What is known of durations decides when to select."""
    timed = SelectionTiming.JUST_IN_TIME
    missed, had = overlooked(fact, [copy for copy in plain_states() if copy.config.timing is timed])
    assert (missed, had > 0) == (0, True)


def _free_column(state: State) -> bool:
    if not state.columns.free_seats:
        return False
    state.columns.arena[:, state.columns.free_seats[0]] += 1
    state.columns.table[state.columns.free_seats[0]] += 1
    return True


def _beyond(state: State) -> bool:
    stay = seated(state)
    if stay is None:
        return False
    state.columns.table[stay.seat, state.columns.blocks[stay.seat] :] += 1
    state.columns.tokens[stay.seat, len(state.columns.sampled(stay.seat)) :] += 1
    return True


def _passed(state: State) -> bool:
    state.pool.fence[state.pool.fence <= state.pool.passed] = 0
    return True


@pytest.mark.parametrize("stale", [_free_column, _beyond, _passed])
def test_what_no_rule_reads_leaves_the_digest_alone(stale: Fact) -> None:
    """Else stretched and single-stepped runs, which leave other rests, would not be equal."""
    missed, had = overlooked(stale, plain_states() + tier_states(), most=1_000)
    assert missed == had > 0


def test_how_many_drafts_there_are_counts() -> None:
    """Not only that there are some."""
    missed, had = overlooked(_more_drafts, [c for n in range(40) for c in copies(walked(n), 3)])
    assert (missed, had > 0) == (0, True)


def test_in_a_large_pool_every_block_counts() -> None:
    """Whatever NumPy leaves out when it prints a long array."""
    state = State(KernelConfig(num_blocks=5_000))
    seen = {digest(state)}
    for block in (0, 17, 2_500, 4_982, 4_999):
        state.pool.references[block] += 1
        seen.add(digest(state))
    assert len(seen) == 6
