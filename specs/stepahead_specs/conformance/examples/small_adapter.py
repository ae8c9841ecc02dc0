"""The adapter of the small scheduler: all that its author had to write for the kit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from stepahead_specs.conformance.adapter import Adapter, Answer, Selected, Share, State, Submission
from stepahead_specs.conformance.examples.small import Job, SmallScheduler
from stepahead_specs.records import Limits


class SmallAdapter(Adapter):
    """Drives a `SmallScheduler`."""

    scheduler: ClassVar[type[SmallScheduler]] = SmallScheduler

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: dict[int, Job] = {}
        self._under_test = self.scheduler(
            limits.num_blocks,
            limits.block_size,
            limits.max_concurrency,
            limits.max_num_batched_tokens,
        )

    def submit(self, submission: Submission) -> str | None:
        """Take a request."""
        stops = set(submission.stop_token_ids)
        if self._limits.eos_token_id is not None and not submission.ignore_eos:
            stops.add(self._limits.eos_token_id)
        room = self._limits.max_model_len - len(submission.prompt)
        job = Job(
            number=submission.request,
            prompt=submission.prompt,
            limit=min(submission.max_tokens, room),
            stops=frozenset(stops),
        )
        self._jobs[job.number] = job
        self._under_test.add(job)
        return None

    def cancel(self, request: int) -> Answer:
        """End a request at once."""
        ended = self._under_test.abort(self._jobs[request])
        return Answer(finished=[(request, "abort")] if ended else [])

    def prepare(self) -> Selected | None:
        """Choose the next step."""
        chosen = self._under_test.schedule()
        if chosen is None:
            return None
        step, pieces = chosen
        rows = [
            Share(
                request=piece.job.number,
                position=piece.first,
                count=piece.count,
                samples=piece.samples,
                epoch=piece.epoch,
                blocks=piece.blocks,
            )
            for piece in pieces
        ]
        return Selected(batch=step, rows=rows)

    def dispatch(self, batch: int) -> Sequence[Sequence[int] | None]:
        """Return the inputs of a step."""
        return self._under_test.inputs(batch)

    def complete(self, batch: int, tokens: Sequence[int | None]) -> Answer:
        """Take what was sampled."""
        out = self._under_test.finish(batch, tokens)
        finished = [
            (job.number, "stop" if token in job.stops else "length")
            for job, token in out
            if job.done
        ]
        return Answer(emitted=[(job.number, token) for job, token in out], finished=finished)

    def observe(self) -> State:
        """Tell where the blocks are."""
        held = {n: tuple(job.blocks) for n, job in self._jobs.items() if not job.done}
        return State(free=tuple(self._under_test.free), held=held)
