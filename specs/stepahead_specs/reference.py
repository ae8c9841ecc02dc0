"""The straightforward eager scheduler: the same rules, written for the reader and nobody else.

A kernel with lookahead 0 and without prefix caching must give the same rows, block counts and
tokens at every step. It shares no code with the kernel and no data type either.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Job:
    """One request; it ends at ``final``, or at a token of ``stops`` after ``floor`` outputs."""

    handle: int
    prompt: int
    final: int
    floor: int
    stops: frozenset[int]
    rank: tuple[int, int]
    output: list[int] = field(default_factory=list[int])
    scheduled: int = 0
    running: bool = False

    def known(self) -> int:
        """Return how many tokens are known."""
        return self.prompt + len(self.output)

    def decodes(self) -> bool:
        """Tell whether one token is missing in the KV cache."""
        return self.known() - self.scheduled == 1


@dataclass(frozen=True, slots=True)
class Share:
    """One row: ``count`` positions from ``position`` on; it samples at the known end."""

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
    prefill_first: bool = False
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])
    batch: list[Share] = field(default_factory=list[Share])
    preemptions: int = 0

    def arrive(self, job: Job) -> None:
        """Let a request wait that fits into the pool alone."""
        self.jobs[job.handle] = job

    def cancel(self, handle: int) -> None:
        """Forget a request; what comes back for it is ignored."""
        del self.jobs[handle]

    def blocks(self, tokens: int) -> int:
        """Return how many blocks hold ``tokens`` positions."""
        return -(-tokens // self.block_size)

    def free(self) -> int:
        """Return how many blocks nobody holds."""
        return self.num_blocks - sum(self.blocks(job.scheduled) for job in self.jobs.values())

    def select(self) -> list[Share]:
        """Choose the next batch; an empty list means that there is nothing to run."""
        line = sorted(self.jobs.values(), key=lambda job: job.rank)
        running = [job for job in line if job.running]
        short = len(running)  # jobs from here on keep to the blocks that they hold
        while True:
            plan, left = self._share(running, short)
            needs = [self._need(job, plan[job.handle]) for job in running]
            lacks = [i for i in range(len(needs)) if sum(needs[: i + 1]) > self.free()]
            if not lacks:
                break
            short = lacks[0]
            if self._preempt(running[short + 1 :], sum(needs[: short + 1])):
                return self.select()
        if short == len(running):
            left = self._admit([job for job in line if not job.running], running, plan, left)
        if self.prefill_first:
            for job in running:
                if job.decodes():
                    plan[job.handle] = min(plan[job.handle], left)
                    left -= plan[job.handle]
        self.batch = [self._run(job, plan[job.handle]) for job in line if plan.get(job.handle)]
        return self.batch

    def executed(self, tokens: dict[int, int]) -> list[tuple[int, str]]:
        """Apply the sampled token of each live handle; return who ended, and why."""
        ended: list[tuple[int, str]] = []
        for share in self.batch:
            job = self.jobs.get(share.handle)
            if job is None or not share.samples:
                continue
            job.output.append(tokens[job.handle])
            stopped = job.output[-1] in job.stops and len(job.output) >= job.floor
            if stopped or job.known() == job.final:
                ended.append((job.handle, "stop" if stopped else "length"))
                self.cancel(job.handle)
        return ended

    def _share(self, running: list[Job], short: int) -> tuple[dict[int, int], int]:
        """Give out the budget; under prefill-first each decode row stands for one token for now."""
        left, plan = self.max_num_batched_tokens, dict[int, int]()
        for job in sorted(running, key=lambda job: not job.decodes()):
            want = min(job.known() - job.scheduled, self.max_tokens_per_row)
            if running.index(job) >= short:
                want = min(want, -job.scheduled % self.block_size)
            if not (self.prefill_first and job.decodes()):
                left -= (want := min(want, left))
            plan[job.handle] = want
        return plan, left

    def _need(self, job: Job, count: int) -> int:
        return self.blocks(job.scheduled + count) - self.blocks(job.scheduled)

    def _admit(
        self, waiting: list[Job], running: list[Job], plan: dict[int, int], left: int
    ) -> int:
        spare = self.free() - sum(self._need(job, job.known() - job.scheduled) for job in running)
        for job in waiting:
            spare -= self.blocks(job.known())
            if len(plan) == self.max_concurrency or spare < 0 or not left:
                break
            plan[job.handle] = min(job.known(), self.max_tokens_per_row, left)
            left -= plan[job.handle]
        return left

    def _run(self, job: Job, count: int) -> Share:
        share = Share(job.handle, job.scheduled, count, job.scheduled + count == job.known())
        job.scheduled, job.running = job.scheduled + count, True
        return share

    def _preempt(self, younger: list[Job], need: int) -> bool:
        found = False
        while younger and need > self.free():
            victim = younger.pop()
            victim.running, victim.scheduled, found = False, 0, True
            self.preemptions += 1
        return found
