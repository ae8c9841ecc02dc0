"""Errors of the simulators: what was found wrong, with whom, and what it means."""

from __future__ import annotations

from stepahead.errors import StepaheadError


class SimulationError(StepaheadError):
    """The simulation cannot go on: nothing is left to happen although requests are live."""


class SanitizerError(StepaheadError):
    """A row read or was about to read KV that is not its own history, or got a wrong input.

    Args:
        request: id of the request whose row it is.
        batch_id: the batch.
        block: the block, or None when the fault is in no block.
        fault: what is wrong, as the end of the sentence.
    """

    def __init__(self, *, request: str, batch_id: int, block: int | None, fault: str) -> None:
        self.request = request
        self.batch_id = batch_id
        self.block = block
        self.fault = fault
        where = f"batch {batch_id}" if block is None else f"batch {batch_id}, block {block}"
        super().__init__(
            f"request {request!r} in {where}: {fault}; "
            "the scheduler reused or mixed up what a row still needs"
        )
