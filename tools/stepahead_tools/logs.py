"""Log lines on standard error: for people, or as JSON lines.

The lines are those of structlog, which renders the ones for machines. A line for people is put
together here: most runs write a single one, and importing structlog takes longer than reading the
trace.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Literal, Protocol


class Log(Protocol):
    """Takes one event with its circumstances."""

    def info(self, event: str, /, **circumstances: object) -> object:
        """Tell what happens."""
        ...

    def warning(self, event: str, /, **circumstances: object) -> object:
        """Tell what may not be as wanted."""
        ...


class ConsoleLog:
    """Lines for people."""

    def info(self, event: str, /, **circumstances: object) -> None:
        """Tell what happens."""
        self._write("info", event, circumstances)

    def warning(self, event: str, /, **circumstances: object) -> None:
        """Tell what may not be as wanted."""
        self._write("warning", event, circumstances)

    @staticmethod
    def _write(level: str, event: str, circumstances: dict[str, object]) -> None:
        stamp = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        facts = "".join(f" {name}={circumstances[name]!r}" for name in sorted(circumstances))
        sys.stderr.write(f"{stamp} [{level:<9}] {event}{facts}\n")
        sys.stderr.flush()


def start_log(log_format: Literal["console", "json"]) -> Log:
    """Return a logger that writes to standard error, without touching anybody else's logging."""
    return ConsoleLog() if log_format == "console" else _json_log()


def _json_log() -> Log:
    import structlog  # noqa: PLC0415 # for these lines only

    logger: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return logger
