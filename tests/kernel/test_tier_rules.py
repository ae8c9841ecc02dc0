"""Rules of the tiers, each against its definition, in every state that walks come across."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from stepahead import Kernel, KernelConfig, planning
from stepahead.host_cache import expire, next_deadline, untouched
from stepahead.state import Snapshot, State
from stepahead.transfers import Transfer, TransferKind
from stepahead.views import view_blocks
from stepahead_specs.machines import EOS
from stepahead_specs.oracle import HashModel
from stepahead_specs.tier_bench import TierBench
from stepahead_specs.tier_walk import tiers, wander

#: Not public: what a planner that looks for victims counts as coming.
IN_TRANSFER: Callable[[State], int] = vars(planning)["_in_transfer"]


@cache
def copies() -> list[tuple[KernelConfig, Snapshot]]:
    """Return copies of kernels with tiers, taken from walks."""
    found: list[tuple[KernelConfig, Snapshot]] = []
    for seed in range(40):
        choose = Random(seed).choice  # noqa: S311 - repeatable, not secret
        config = tiers(choose)
        if not config.host_pages or not (config.write_back or config.load_deadline_ns):
            continue
        bench = TierBench(config, HashModel(eos=EOS))
        wander(bench, choose, 8)
        kernel = Kernel(config)
        for number, (event, _) in enumerate(bench.journal):
            kernel.step(event)
            if number % 4 == 0 or kernel.transfers:
                found.append((config, kernel.snapshot()))
    return found


def states() -> Iterator[State]:
    """Iterate over the states of these kernels."""
    for config, copy in copies():
        state = State(config)
        state.restore(copy)
        yield state


def timed(state: State) -> list[Transfer]:
    """Return the loads that somebody waits for and nobody runs on."""
    return [
        entry
        for ident, entry in state.ledger.open.items()
        if entry.kind is TransferKind.LOAD
        and ident not in state.ledger.late
        and not (
            entry.layerwise and entry.handle in state.live and state.live[entry.handle].seat >= 0
        )
    ]


def test_blocks_are_untouched_up_to_the_first_whose_only_copy_would_go() -> None:
    """With write-back that one is copied first; a stretch stops before it."""
    bounded = free = 0
    for state in states():
        pool, there = state.pool, {key for key in state.pages.key.tolist() if key >= 0}
        keys: list[int] = pool.key[pool.queued()].tolist()
        lost = [place for place, key in enumerate(keys) if key >= 0 and key not in there]
        stops = bool(lost) and state.config.write_back
        assert untouched(state) == (lost[0] if stops else pool.available)
        bounded += stops
        free += not stops
    assert bounded
    assert free


def test_what_nobody_but_a_transfer_holds_counts_as_coming() -> None:
    """A block that a request holds as well is not freed by the end of the transfer."""
    shared = alone = 0
    for state in states():
        pinned = [view for view in view_blocks(state) if view.pins]
        coming = sum(view.pins == view.references for view in pinned)
        assert IN_TRANSFER(state) == coming
        alone += coming
        shared += len(pinned) - coming
    assert alone
    assert shared


def test_a_load_is_late_from_its_deadline_on() -> None:
    """Not a nanosecond before; the next deadline is that of the oldest that is waited for."""
    found = spared = 0
    for state in states():
        limit, loads = state.config.load_deadline_ns, timed(state)
        due = [load.issued_at + limit for load in loads]
        assert next_deadline(state) == (min(due) if limit and due else None)
        if not limit or not due:
            continue
        state.now = min(due) - 1
        expire(state)
        assert not state.ledger.late & {load.transfer_id for load in loads}
        state.now, counted = min(due), state.counters.expired_loads
        before, state.steady = set(state.ledger.late), None
        expire(state)
        expected = {load.transfer_id for load in loads if load.issued_at + limit == min(due)}
        assert state.ledger.late - before == expected
        assert state.counters.expired_loads == counted + len(expected)
        assert not any(state.ledger.waited_for(ident) for ident in expected)
        found += len(expected)
        spared += len(loads) - len(expected)
    assert found


def test_without_a_deadline_no_load_is_late() -> None:
    """However long it takes."""
    loads = 0
    for state in states():
        if not state.config.load_deadline_ns:
            loads += len(timed(state))
            state.now += 1 << 40
            expire(state)
            assert not state.ledger.late
    assert loads
