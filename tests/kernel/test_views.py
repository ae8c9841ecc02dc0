"""What the digest and the audit must not overlook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepahead import KernelConfig, SelectionTiming
from stepahead.admission import arrive
from stepahead.events import RequestArrived
from stepahead.state import State, Wake
from stepahead.views import audit, digest

PLAIN = KernelConfig(num_blocks=4, block_size=2, lookahead=1)
JUST_IN_TIME = replace(PLAIN, timing=SelectionTiming.JUST_IN_TIME)
TIERS = replace(PLAIN, host_pages=2, load_deadline_ns=9)
REMOTE = replace(PLAIN, lookahead=0, remote=True)


def waiting_state(config: KernelConfig) -> State:
    """Return the state of a kernel in which one request waits."""
    state = State(config)
    arrive(state, RequestArrived(request_id="a", prompt_length=3, max_tokens=2, at=0, arrived_at=0))
    return state


def _wake(state: State) -> None:
    state.wake = Wake(wake_id=1, at=5, selects=True)


def _transfer(state: State) -> None:
    state.ledger.next_id += 1


def _epoch(state: State) -> None:
    state.live[1].epoch += 1


def _lookup(state: State) -> None:
    state.live[1].remote_blocks += 1


def _pause(state: State) -> None:
    state.paused = True


def _block(state: State) -> None:
    state.pool.take(1)


@pytest.mark.parametrize(
    ("change", "config"),
    [
        (_wake, JUST_IN_TIME),
        (_wake, TIERS),
        (_transfer, TIERS),
        (_epoch, PLAIN),
        (_lookup, REMOTE),
        (_pause, PLAIN),
        (_block, PLAIN),
    ],
)
def test_whatever_may_change_a_later_command_changes_the_digest(
    change: Callable[[State], None], config: KernelConfig
) -> None:
    """Equal digests mean equal futures, so no such field may be left out."""
    state = waiting_state(config)
    before = digest(state)
    assert digest(waiting_state(config)) == before
    change(state)
    assert digest(state) != before


def test_the_audit_sees_a_block_that_is_queued_and_held() -> None:
    """Such a block would be handed out while somebody uses it."""
    state = waiting_state(PLAIN)
    assert audit(state).problems == ()
    state.pool.references[2] = 1
    assert audit(state).problems[0] == "0 blocks are queued twice, 1 queued and held"
