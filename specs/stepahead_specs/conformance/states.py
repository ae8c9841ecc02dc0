"""From the state that an engine tells to the account that the rules read.

What an engine does not tell is derived from what was seen: the state of a request from its oldest
row, the place of a block from where it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from stepahead_specs.conformance.history import State
from stepahead_specs.observation import Observation
from stepahead_specs.records import (
    DISPATCHED,
    FREE,
    HELD,
    NONE,
    PENDING,
    Account,
    MemoryAccount,
    RequestAccount,
    tally,
)


def account(seen: Observation, state: State | None) -> Account | None:
    """Return the engine's own view after a fact, or None where it tells none."""
    if state is None:
        return None
    known = [request for request in seen.live() if request.handle not in state.held]
    held = {**state.held, **{request.handle: () for request in known}}
    return Account(
        requests={handle: _request(seen, handle, held[handle], state) for handle in held},
        batches={},
        blocks=_blocks(seen.limits.num_blocks, state),
    )


def _request(seen: Observation, handle: int, blocks: Sequence[int], state: State) -> RequestAccount:
    request = seen.requests.get(handle)
    rows = seen.rows_of(handle)
    if rows:
        derived = "dispatched" if rows[0][0].state == DISPATCHED else "prepared"
    else:
        derived = "filled" if blocks else "queued"
    counts = (state.counts or {}).get(handle)
    return RequestAccount(
        handle=handle,
        state=derived,
        epoch=max(request.epoch, 0) if request is not None else 0,
        known=counts.known if counts else 0,
        scheduled=counts.scheduled if counts else 0,
        settled=counts.settled if counts else 0,
        intent="none",
        seat=None,
        blocks=np.array(blocks, dtype=np.int64),
    )


def _blocks(num_blocks: int, state: State) -> MemoryAccount:
    queue = np.array(state.free, dtype=np.int64)
    named = chain.from_iterable(state.held.values())
    held = tally(np.fromiter(named, dtype=np.int64), num_blocks) > 0
    places = np.where(held, HELD, np.where(tally(queue, num_blocks) > 0, FREE, PENDING))
    references = held.astype(np.int64)
    counted = np.array(state.references or (), dtype=np.int64)[:num_blocks]
    references[: len(counted)] = counted
    nothing = np.zeros(num_blocks, dtype=np.int64)
    return MemoryAccount(
        places=places,
        references=references,
        pins=nothing,
        keys=nothing + NONE,
        queue=queue,
    )
