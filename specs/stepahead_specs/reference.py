"""The straightforward eager scheduler: the same rules, written for the reader and nobody else.

One request is one object, a list is a list, nothing is prepared ahead and prefix caching is off. A
kernel with lookahead 0 must give the same rows, block counts and tokens at every step. It shares no
code with the kernel and no data type either.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Job:
    """One request; ``rank`` orders the line and, reversed, the victims."""

    handle: int
    prompt: int
    final: int
    floor: int
    stops: frozenset[int]
    rank: tuple[int, int]
    output: list[int] = field(default_factory=list[int])
    scheduled: int = 0
    running: bool = False

    @property
    def known(self) -> int:
        return self.prompt + len(self.output)


@dataclass(frozen=True, slots=True)
class Share:
    """One row: ``count`` positions from ``position`` on; ``samples`` if the last one is known."""

    handle: int
    position: int
    count: int
    samples: bool


@dataclass(slots=True, kw_only=True)
class Reference:
    """The scheduler; options have the names and meanings of the kernel's configuration."""

    num_blocks: int
    block_size: int
    max_concurrency: int
    max_num_batched_tokens: int
    max_tokens_per_row: int
    max_model_len: int
    eos: int | None = None
    by_priority: bool = False
    prefill_first: bool = False
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])
    batch: list[Share] = field(default_factory=list[Share])
    preemptions: int = 0

    def arrive(
        self,
        handle: int,
        prompt: int,
        max_tokens: int,
        *,
        priority: int = 0,
        min_tokens: int = 0,
        stops: frozenset[int] = frozenset(),
        ignore_eos: bool = False,
    ) -> None:
        """Let a request wait; the caller has checked that it fits."""
        ends = stops if ignore_eos or self.eos is None else stops | {self.eos}
        self.jobs[handle] = Job(
            handle=handle,
            prompt=prompt,
            final=prompt + min(max_tokens, self.max_model_len - prompt),
            floor=min_tokens,
            stops=ends,
            rank=(priority if self.by_priority else 0, handle),
        )

    def cancel(self, handle: int) -> None:
        """Forget a request; what comes back for it is ignored."""
        self.jobs.pop(handle, None)

    def blocks(self, tokens: int) -> int:
        """Return how many blocks hold ``tokens`` positions."""
        return -(-tokens // self.block_size)

    def free(self) -> int:
        """Return how many blocks nobody holds."""
        return self.num_blocks - sum(self.blocks(job.scheduled) for job in self.jobs.values())

    def select(self) -> list[Share]:
        """Choose the next batch; an empty list means that there is nothing to run."""
        running, waiting = self._line(True), self._line(False)
        plan = self._grants(running)
        free, lacking, granted = self.free(), None, dict[int, int]()
        for job in running:
            count = plan.get(job.handle, 0)
            need = self.blocks(job.scheduled + count) - self.blocks(job.scheduled)
            if count and need > free:
                lacking = lacking or job
            if count and (not need or not lacking):
                free -= need
                granted[job.handle] = count
        if lacking:
            younger = [job for job in running if job.rank > lacking.rank]
            if younger:
                self._preempt(younger[-1])
                return self.select()
        else:
            left = self.max_num_batched_tokens - sum(
                count
                for handle, count in granted.items()
                if not self.prefill_first or self._decodes(self.jobs[handle]) is False
            )
            admitted = self._admit(waiting, len(running), left, free)
            granted |= admitted
            if self.prefill_first:
                self._squeeze(granted, running, left - sum(admitted.values()))
        self.batch = []
        for job in sorted((self.jobs[handle] for handle in granted), key=lambda job: job.rank):
            end = job.scheduled + granted[job.handle]
            self.batch.append(
                Share(job.handle, job.scheduled, end - job.scheduled, end >= job.known)
            )
            job.scheduled, job.running = end, True
        return self.batch

    def executed(self, tokens: dict[int, int]) -> list[tuple[int, str]]:
        """Apply the sampled token of each live handle; return who ended, and why."""
        ended: list[tuple[int, str]] = []
        for share in self.batch:
            if not share.samples or (job := self.jobs.get(share.handle)) is None:
                continue
            job.output.append(tokens[job.handle])
            stopped = job.output[-1] in job.stops and len(job.output) >= job.floor
            if stopped or job.known == job.final:
                ended.append((job.handle, "stop" if stopped else "length"))
                del self.jobs[job.handle]
        return ended

    def _line(self, running: bool) -> list[Job]:
        line = [job for job in self.jobs.values() if job.running is running]
        return sorted(line, key=lambda job: job.rank)

    def _decodes(self, job: Job) -> bool:
        return job.known - job.scheduled == 1

    def _grants(self, running: list[Job]) -> dict[int, int]:
        left, plan = self.max_num_batched_tokens, dict[int, int]()
        for job in sorted(running, key=lambda job: self._decodes(job) is self.prefill_first):
            want = min(job.known - job.scheduled, self.max_tokens_per_row)
            plan[job.handle] = min(want, left)
            left -= plan[job.handle]
        return plan

    def _admit(self, waiting: list[Job], seated: int, left: int, free: int) -> dict[int, int]:
        admitted: dict[int, int] = {}
        for job in waiting:
            if seated + len(admitted) >= self.max_concurrency or not left:
                break
            if self.blocks(job.known) > free:
                break
            admitted[job.handle] = min(job.known, self.max_tokens_per_row, left)
            left -= admitted[job.handle]
            free -= self.blocks(admitted[job.handle])
        return admitted

    def _squeeze(self, granted: dict[int, int], running: list[Job], left: int) -> None:
        for job in running:
            if job.handle in granted and self._decodes(job):
                if not left:
                    del granted[job.handle]
                left = max(left - 1, 0)

    def _preempt(self, victim: Job) -> None:
        victim.running, victim.scheduled = False, 0
        self.preemptions += 1
