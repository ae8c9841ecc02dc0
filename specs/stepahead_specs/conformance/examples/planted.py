"""The small scheduler with one bug each, of kinds that real engines have had."""

from __future__ import annotations

from collections.abc import Iterable

from stepahead_specs.conformance.examples.small import Job, SmallScheduler
from stepahead_specs.conformance.examples.small_adapter import SmallAdapter


class FreesTooEarly(SmallScheduler):
    """Blocks of an ended job are free although a step under way still writes them."""

    def release(self, job: Job) -> None:
        """Free the blocks at once."""
        self.free.extend(job.blocks)
        job.blocks = []


class FillsByRow(SmallScheduler):
    """A sampled token goes to the row of the same number, not to the job that sampled it."""

    def __init__(self, blocks: int, block_size: int, jobs_max: int, budget: int) -> None:
        super().__init__(blocks, block_size, jobs_max, budget)
        self._by_row: list[int | None] = []

    def inputs(self, step: int) -> list[list[int] | None]:
        """Take the last input of a decode piece from the row of the step before."""
        filled = super().inputs(step)
        for row, (piece, tokens) in enumerate(zip(self.steps[step], filled, strict=True)):
            token = self._by_row[row] if row < len(self._by_row) else None
            if tokens and piece.first >= len(piece.job.prompt) and token is not None:
                tokens[-1] = token
        return filled

    def finish(self, step: int, sampled: Iterable[int | None]) -> list[tuple[Job, int]]:
        """Keep what came back by row."""
        self._by_row = list(sampled)
        return super().finish(step, self._by_row)


class WaitsForTheNextStep(SmallScheduler):
    """Blocks of an ended job wait for the step after the newest; it may never come."""

    def release(self, job: Job) -> None:
        """Fence the blocks one step too far."""
        if job.steps:
            self.fenced.append((max(job.steps) + 1, job.blocks))
            job.blocks = []
        else:
            super().release(job)


class EarlyFreeAdapter(SmallAdapter):
    """Drives `FreesTooEarly`."""

    scheduler = FreesTooEarly


class FillByRowAdapter(SmallAdapter):
    """Drives `FillsByRow`."""

    scheduler = FillsByRow


class NextStepAdapter(SmallAdapter):
    """Drives `WaitsForTheNextStep`."""

    scheduler = WaitsForTheNextStep
