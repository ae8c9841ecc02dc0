"""A small scheduler with overlap, written without looking at ours: the kit is tried on it.

First come, first served; prompts in chunks; one step or more prepared ahead; blocks of ended
requests wait until the last step that may write them is back; the youngest is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Job:
    """One request."""

    number: int
    prompt: tuple[int, ...]
    limit: int
    stops: frozenset[int]
    output: list[int] = field(default_factory=list[int])
    blocks: list[int] = field(default_factory=list[int])
    scheduled: int = 0
    #: Steps that hold a part of this job, and how many of them will return a token.
    steps: list[int] = field(default_factory=list[int])
    promised: int = 0
    preempted: int = 0
    done: bool = False

    def tokens(self) -> int:
        """Count the tokens that are known or will be returned by steps that are under way."""
        return len(self.prompt) + len(self.output) + self.promised


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` positions of a job from ``first`` on, in one step."""

    job: Job
    first: int
    count: int
    samples: bool
    epoch: int
    blocks: tuple[int, ...]


class SmallScheduler:
    """The scheduler; `schedule` may run ahead of `finish` by any number of steps."""

    def __init__(self, blocks: int, block_size: int, jobs_max: int, budget: int) -> None:
        self.free = list(range(blocks))
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.steps: dict[int, list[Piece]] = {}
        self._block_size = block_size
        self._jobs_max = jobs_max
        self._budget = budget
        self.fenced: list[tuple[int, list[int]]] = []
        self._last = 0

    def add(self, job: Job) -> None:
        """Let a job wait."""
        self.waiting.append(job)

    def abort(self, job: Job) -> bool:
        """End a job; return whether it was still there."""
        if job.done:
            return False
        self.end(job)
        return True

    def schedule(self) -> tuple[int, list[Piece]] | None:
        """Choose the next step."""
        pieces: list[Piece] = []
        left = self._budget
        short = False
        for job in list(self.running):
            if job not in self.running:
                break  # it was preempted for an older one
            count = min(job.tokens() - job.scheduled, left)
            if len(job.output) + job.promised >= job.limit or count <= 0:
                continue
            if not self._room(job, count):
                short = True
                break
            pieces.append(self._piece(job, count))
            left -= count
        while self.waiting and left and not short and len(self.running) < self._jobs_max:
            job = self.waiting[0]
            if self._blocks(job.tokens()) > len(self.free):
                break
            self.running.append(self.waiting.pop(0))
            pieces.append(self._piece(job, min(job.tokens(), left)))
            left -= pieces[-1].count
        if not pieces:
            return None
        self._last += 1
        self.steps[self._last] = pieces
        for piece in pieces:
            piece.job.steps.append(self._last)
        return self._last, pieces

    def inputs(self, step: int) -> list[list[int] | None]:
        """Return what the device reads; None for a job that has ended."""
        return [None if p.job.done else self.tokens_of(p) for p in self.steps[step]]

    def tokens_of(self, piece: Piece) -> list[int]:
        """Return the tokens of a piece; all are known when its step is dispatched."""
        known = [*piece.job.prompt, *piece.job.output]
        return known[piece.first : piece.first + piece.count]

    def finish(self, step: int, sampled: Iterable[int | None]) -> list[tuple[Job, int]]:
        """Take a step that came back; return each new token with its job."""
        out: list[tuple[Job, int]] = []
        for piece, token in zip(self.steps.pop(step), sampled, strict=True):
            job = piece.job
            job.steps.remove(step)
            if job.done or token is None:
                continue
            job.promised -= 1
            job.output.append(token)
            out.append((job, token))
            if token in job.stops or len(job.output) == job.limit:
                self.end(job)
        for fence, blocks in [entry for entry in self.fenced if entry[0] <= step]:
            self.fenced.remove((fence, blocks))
            self.free.extend(blocks)
        return out

    def end(self, job: Job) -> None:
        """Forget a job; its blocks come back when no step can touch them any more."""
        job.done = True
        (self.running if job in self.running else self.waiting).remove(job)
        self.release(job)

    def release(self, job: Job) -> None:
        """Give a job's blocks back, behind the last step that may write them."""
        if job.steps:
            self.fenced.append((max(job.steps), job.blocks))
        else:
            self.free.extend(job.blocks)
        job.blocks = []

    def preempt(self, job: Job) -> None:
        """Send the youngest job back to the head of the line; it starts again."""
        self.running.remove(job)
        self.release(job)
        job.scheduled = 0
        job.preempted += 1
        self.waiting.insert(0, job)

    def _room(self, job: Job, count: int) -> bool:
        while self._blocks(job.scheduled + count) - len(job.blocks) > len(self.free):
            youngest = self.running[-1]
            if youngest is job or youngest.steps:
                return False  # what is under way will bring blocks
            self.preempt(youngest)
        return True

    def _piece(self, job: Job, count: int) -> Piece:
        first, end = job.scheduled, job.scheduled + count
        while len(job.blocks) < self._blocks(end):
            job.blocks.append(self.free.pop(0))
        samples = end == job.tokens()
        job.scheduled = end
        job.promised += samples
        return Piece(job, first, count, samples, job.preempted, tuple(job.blocks))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
