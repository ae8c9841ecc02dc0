"""Rules of the tiers, each against its definition, in every state that walks come across."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import takewhile

import numpy as np

from stepahead import Kernel, KernelConfig, planning
from stepahead.commands import LoadBlocks, StoreBlocks
from stepahead.events import TransferDone, TransferFailed
from stepahead.host_cache import begin, expire, find, next_deadline, take, untouched
from stepahead.state import State
from stepahead.transfers import Transfer, TransferKind
from stepahead.views import view_blocks
from stepahead_specs.runs import Copy, copies, wandered

#: Not public: what a planner that looks for victims counts as coming.
IN_TRANSFER: Callable[[State], int] = vars(planning)["_in_transfer"]


@cache
def taken() -> list[Copy]:
    """Return copies of kernels that write back, or have a deadline for loads."""
    runs = (copies(wandered(seed, 8), 3) for seed in range(40))
    found = [copy for run in runs for copy in run if copy.config.host_pages]
    return [copy for copy in found if copy.config.write_back or copy.config.load_deadline_ns]


def states() -> Iterator[State]:
    """Iterate over the states of these kernels."""
    return (copy.state() for copy in taken())


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


def pages_of(state: State) -> dict[int, int]:
    """Return the host pages by key."""
    return {key: page for page, key in enumerate(state.pages.key.tolist()) if key >= 0}


def test_what_loses_its_only_copy_is_written_back_shallowest_first() -> None:
    """As far as there are pages, the first of their queue; the rest is counted as refused."""
    kept = refused = 0
    for copy in taken():
        if not copy.config.write_back:
            continue
        for share in (1, 2):
            state = copy.state()
            count = state.pool.available // share
            queue: list[int] = state.pool.queued().tolist()[:count]
            key: list[int] = state.pool.key.tolist()
            free: list[int] = state.pages.queued().tolist()
            there = pages_of(state).keys() | state.ledger.storing
            lost = [b for b in reversed(queue) if key[b] >= 0 and key[b] not in there]
            stored, before = lost[: len(free)], state.counters.refused_stores
            receipt = take(state, count)
            assert receipt.blocks.tolist() == queue
            assert state.counters.refused_stores - before == len(lost) - len(stored)
            kept += len(stored)
            refused += len(lost) - len(stored)
            if not stored:
                assert state.outbox == []
                continue
            (command,) = state.outbox
            assert isinstance(command, StoreBlocks)
            assert command.blocks.tolist() == stored
            assert command.keys.tolist() == [key[block] for block in stored]
            assert command.pages.tolist() == free[: len(stored)]
            entry = state.ledger.open[command.transfer_id]
            assert (entry.kind, entry.issued_at) == (TransferKind.WRITE_BACK, state.now)
            assert (entry.transfer_id, entry.handle) == (command.transfer_id, 0)
            assert entry.held.tolist() == []
            assert state.ledger.storing >= {key[block] for block in stored}
            assert state.ledger.guards(command.blocks[-1:])
    assert kept
    assert refused


def test_a_reload_is_what_the_host_has_of_the_prefix_but_for_pages_of_late_loads() -> None:
    """A page that a load still reads whose end nobody waits for is not read a second time."""
    found = stuck = 0
    for state in states():
        if state.config.load_deadline_ns and timed(state):
            state.now += state.config.load_deadline_ns
            expire(state)
        page_of = pages_of(state)
        late = {p for ident in state.ledger.late for p in state.ledger.open[ident].pages.tolist()}
        for stay in state.live.values():
            stay.load_epoch = -1
            for cached in range(len(stay.keys) + 1):
                wanted: list[int] = stay.keys[cached:].tolist()
                known = [page_of[key] for key in takewhile(page_of.__contains__, wanted)]
                pages = known[: next((i for i, p in enumerate(known) if p in late), len(known))]
                reload = find(state, stay, stay.keys, cached)
                stuck += len(pages) < len(known)
                found += len(pages) > 0
                if pages:
                    assert reload is not None
                    assert (reload.keys.tolist(), reload.pages.tolist()) == (
                        wanted[: len(pages)],
                        pages,
                    )
                    continue
                remote: list[int] = stay.keys[cached : stay.remote_blocks].tolist()
                if not state.config.remote or not remote:
                    assert reload is None
                else:
                    assert reload is not None
                    assert (reload.keys.tolist(), reload.pages.tolist()) == (remote, [])
            stay.load_epoch = stay.epoch
            assert find(state, stay, stay.keys, 0) is None
    assert found
    assert stuck


def test_a_load_waits_for_copies_of_what_it_overwrites() -> None:
    """They are asked for once per epoch, without the load's own source; else nothing is touched."""
    began = waited = 0
    for state in states():
        for stay in [*state.live.values()]:
            cached = state.pool.match(stay.keys)
            reload = find(state, stay, stay.keys, len(cached))
            if stay.seat >= 0 or reload is None or not state.config.write_back:
                continue
            pages = set(reload.pages.tolist())
            queue = [b for b in state.pool.queued().tolist() if b not in set(cached.tolist())]
            blocks = queue[: len(reload.keys)]
            if len(blocks) < len(reload.keys):
                continue
            key: list[int] = state.pool.key.tolist()
            there = pages_of(state).keys() | state.ledger.storing
            lost = [b for b in reversed(blocks) if key[b] >= 0 and key[b] not in there]
            free = [page for page in state.pages.queued().tolist() if page not in pages]
            stored = [] if stay.cleared_epoch == stay.epoch else lost[: len(free)]
            guarded = bool(stored) or state.ledger.guards(np.array(blocks))
            before = [*state.pool.queued().tolist()]
            begin(state, stay, cached, reload)
            stores = [c for c in state.outbox if isinstance(c, StoreBlocks)]
            loads = [c for c in state.outbox if isinstance(c, LoadBlocks)]
            assert [store.blocks.tolist() for store in stores] == [stored] * bool(stored)
            assert [load.blocks.tolist() for load in loads] == [blocks] * (not guarded)
            assert stay.cleared_epoch == stay.epoch
            if guarded:
                assert state.pool.queued().tolist() == before
            began += not guarded
            waited += guarded
            break
    assert began
    assert waited


def test_a_report_of_a_transfer_that_is_not_open_changes_nothing_but_a_counter() -> None:
    """Done or failed, it is late or was never asked for."""
    kernel = Kernel(KernelConfig(num_blocks=4, host_pages=2))
    before = kernel.digest()
    for count, event in enumerate((TransferDone, TransferFailed) * 2, start=1):
        assert kernel.step(event(transfer_id=7, at=0)) == ()
        assert kernel.counters.ignored_transfers == count
    assert kernel.digest() == before
