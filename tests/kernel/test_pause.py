"""A pause that waits is reported by whatever event leaves nothing outstanding."""

from __future__ import annotations

import numpy as np

from stepahead import Kernel, KernelConfig
from stepahead.commands import AbandonBatch, ReportPaused
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
)


def test_a_pause_is_reported_when_the_last_batch_is_abandoned_as_it_is_built() -> None:
    """With pruning a batch of dead rows only ends the wait at BatchPrepared, not at the device."""
    kernel = Kernel(KernelConfig(num_blocks=8, lookahead=1, prune=True))
    arrival = RequestArrived(request_id="a", prompt_length=3, max_tokens=4, at=0, arrived_at=0)
    kernel.step(arrival)
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(HostReady(at=0))
    kernel.step(RequestCancelled(request_id="a", handle=None, at=0))
    kernel.step(PauseRequested(at=0))
    token = np.array([[9]], dtype=np.int64)
    assert kernel.step(BatchExecuted(batch_id=1, tokens=token, at=0)) == ()
    expected = (AbandonBatch(batch_id=2), ReportPaused())
    assert expected == kernel.step(BatchPrepared(batch_id=2, at=0))
