"""Log lines on standard error: for people, or as JSON lines."""

from __future__ import annotations

import sys
from typing import Literal

import structlog
from structlog.typing import FilteringBoundLogger, Processor


def start_log(log_format: Literal["console", "json"]) -> FilteringBoundLogger:
    """Return a logger that writes to standard error, without touching anybody else's logging."""
    render: Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return logger
