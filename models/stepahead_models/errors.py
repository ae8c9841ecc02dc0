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


class JournalError(StepaheadError):
    """A file is no journal, or something cannot be written into one."""


class TraceMismatch(StepaheadError):
    """A replay went another way than the journal says.

    Args:
        journal: name of the file.
        line: number of the first line that differs, from 1.
        recorded: what the journal says.
        replayed: what came out now.
    """

    def __init__(self, *, journal: str, line: int, recorded: str, replayed: str) -> None:
        self.journal = journal
        self.line = line
        self.recorded = recorded
        self.replayed = replayed
        super().__init__(
            f"{journal} line {line} is the first that differs\n"
            f"  recorded: {recorded}\n"
            f"  replayed: {replayed}"
        )
