"""From an error to one sentence for the user and an exit code."""

from __future__ import annotations

from typing import Final

from stepahead.errors import ConfigError
from stepahead_models.errors import JournalError, SanitizerError, SimulationError, TraceMismatch
from stepahead_models.npu import DeviceModelError
from stepahead_models.product import (
    InvalidOption,
    UnknownLoop,
    UnreadableConfiguration,
    UnsupportedConfiguration,
)
from stepahead_models.traces import TraceError
from stepahead_specs.conformance.history import HistoryError
from stepahead_specs.mutants import StaleMutant
from stepahead_tools.errors import (
    Disagreement,
    HistoryBroken,
    Incomplete,
    OptionError,
    RunBroken,
    Survived,
)
from stepahead_tools.extras import lacking

FOUND_WRONG: Final = 1
NOT_USABLE: Final = 2

_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (OptionError, NOT_USABLE),
    (InvalidOption, NOT_USABLE),
    (UnknownLoop, NOT_USABLE),
    (UnreadableConfiguration, NOT_USABLE),
    (UnsupportedConfiguration, NOT_USABLE),
    (ConfigError, NOT_USABLE),
    (DeviceModelError, NOT_USABLE),
    (TraceError, NOT_USABLE),
    (OSError, NOT_USABLE),
    (JournalError, NOT_USABLE),
    (HistoryError, NOT_USABLE),
    (StaleMutant, NOT_USABLE),
    (HistoryBroken, FOUND_WRONG),
    (Survived, FOUND_WRONG),
    (Disagreement, FOUND_WRONG),
    (Incomplete, FOUND_WRONG),
    (SanitizerError, FOUND_WRONG),
    (TraceMismatch, FOUND_WRONG),
    (RunBroken, FOUND_WRONG),
    (SimulationError, FOUND_WRONG),
)


def failure(error: Exception) -> tuple[str, int] | None:
    """Return the sentence and the exit code of a foreseen error; None for a bug of ours."""
    if isinstance(error, OSError) and error.filename is not None:
        reason = (error.strerror or type(error).__name__).lower()
        return f"stepahead: {error.filename}: {reason}; check the path", NOT_USABLE
    if isinstance(error, ModuleNotFoundError):
        told = lacking(error)
        return None if told is None else (f"stepahead: {told}", NOT_USABLE)
    if isinstance(error, OverflowError):
        sentence = "a time or a size went beyond 64 bits; lower what was asked for"
        return f"stepahead: {sentence} ({error})", NOT_USABLE
    for kind, code in _CODES:
        if isinstance(error, kind):
            return f"stepahead: {error}", code
    return None
