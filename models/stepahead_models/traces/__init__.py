"""Request traces: read them, change their load, plan how requests end, key their prompts.

Needs msgspec and zstandard, which ``stepahead[cli]`` installs. A trace knows nothing of the kernel
or of a device: it is what clients did.
"""

from stepahead_models.traces.bundled import bundled_trace, demo_trace
from stepahead_models.traces.columns import Trace
from stepahead_models.traces.keys import BlockKeys, block_keys
from stepahead_models.traces.plan import Ends, RequestPlan, plan_requests
from stepahead_models.traces.problems import (
    BadLine,
    TraceError,
    UnknownTraceFormat,
    UnusableTrace,
)
from stepahead_models.traces.reading import read_trace
from stepahead_models.traces.writing import write_jsonl

__all__ = [
    "BadLine",
    "BlockKeys",
    "Ends",
    "RequestPlan",
    "Trace",
    "TraceError",
    "UnknownTraceFormat",
    "UnusableTrace",
    "block_keys",
    "bundled_trace",
    "demo_trace",
    "plan_requests",
    "read_trace",
    "write_jsonl",
]
