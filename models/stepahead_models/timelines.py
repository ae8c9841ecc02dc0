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
        self.cpu_busy_ns = 0
        self.cpu_hidden_ns = 0

    def work(self, duration_ns: int) -> int:
        """The host works for so long, as soon as it is free; return when it is done."""
        start = self.host_free_at
        end = self.host_free_at = start + duration_ns
        self.cpu_busy_ns += duration_ns
        hidden = min(end, self.npu_end) - max(start, self.npu_start)
        if hidden > 0:
            self.cpu_hidden_ns += hidden
        return end

    def run_npu(self, duration_ns: int) -> tuple[int, int]:
        """The NPU starts when the host has done its work so far; return start and end."""
        self.npu_start = self.host_free_at
        self.npu_end = self.npu_start + duration_ns
        return self.npu_start, self.npu_end
