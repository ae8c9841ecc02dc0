"""The host thread and the NPU as two timelines: when each is free, and how they overlap."""

from __future__ import annotations


class Timelines:
    """Integer ns since the start of the run; jobs and device steps come in order of time."""

    def __init__(self) -> None:
        #: When the host thread has done all its work so far.
        self.host_free_at = 0
        #: The newest device step.
        self.npu_start = -1
        self.npu_end = -1
        self.npu_busy_ns = 0
        self.cpu_busy_ns = 0
        self.cpu_hidden_ns = 0
        #: Preparations with a device step to hide behind, those that outlasted it, and by how much.
        self.preparations = 0
        self.exposed_preparations = 0
        self.exposed_ns = 0
        #: The newest preparation outlasted the device step.
        self.late = False

    def work(self, duration_ns: int) -> int:
        """The host works for so long, as soon as it is free; return when it is done."""
        start = self.host_free_at
        end = self.host_free_at = start + duration_ns
        self.cpu_busy_ns += duration_ns
        # A device step begins when the host is free, so before the work.
        if end <= self.npu_end:
            self.cpu_hidden_ns += duration_ns
        elif start < self.npu_end:
            self.cpu_hidden_ns += self.npu_end - start
        return end

    def prepare(self, duration_ns: int, live_since: int) -> int:
        """The host builds a batch for so long; return when it is done.

        There is no device step to hide behind before the first one, and after an idle time: when
        the NPU was done before ``live_since``, the time since when some request has been live.
        """
        start = self.host_free_at
        end = self.work(duration_ns)
        self.late = False
        if self.npu_end >= live_since:
            self.preparations += 1
            exposed = end - max(start, self.npu_end)
            if exposed > 0:
                self.late = True
                self.exposed_preparations += 1
                self.exposed_ns += exposed
        return end

    def run_npu(self, duration_ns: int) -> tuple[int, int]:
        """The NPU starts when the host has done its work so far; return start and end."""
        self.npu_start = self.host_free_at
        self.npu_end = self.npu_start + duration_ns
        self.npu_busy_ns += duration_ns
        return self.npu_start, self.npu_end
