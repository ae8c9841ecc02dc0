"""What a scheduler author writes: six methods around a scheduler.

The kit plays client, host and device. It calls `prepare` while at most ``limits.lookahead`` batches
are outstanding, dispatches the oldest prepared batch as soon as the device is idle, and chooses
freely when requests come, when clients leave and when a batch comes back. All calls come from one
thread, and each is answered before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from stepahead_specs.conformance.history import Share, State
from stepahead_specs.records import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as the kit makes it; the fields are those of `history.Submitted`."""

    request: int
    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A batch that the scheduler chose; ``batch`` grows with every batch."""

    batch: int
    rows: Sequence[Share]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What clients get: (request, token) in order, then (request, reason) of last words."""

    emitted: Sequence[tuple[int, int]] = field(default_factory=tuple[tuple[int, int], ...])
    finished: Sequence[tuple[int, str]] = field(default_factory=tuple[tuple[int, str], ...])


class Adapter(Protocol):
    """One scheduler under test. Subclass it, so that later additions have a default."""

    @property
    def name(self) -> str:
        """Return the scheduler's name and version, for the page of results."""
        return type(self).__name__

    @property
    def waived(self) -> Mapping[str, str]:
        """Return the rules that the scheduler does not claim to keep, each with the reason."""
        return {}

    def submit(self, submission: Submission) -> str | None:
        """Take a request; return None, or why it is refused."""
        ...

    def cancel(self, request: int) -> Answer:
        """Take note that a client left; the request may have ended long ago."""
        ...

    def prepare(self) -> Selected | None:
        """Choose the next batch, or None if there is nothing to do now."""
        ...

    def dispatch(self, batch: int) -> Sequence[Sequence[int] | None] | None:
        """Return the input tokens of each row, `Share.count` of them, as the device gets them.

        None for a row whose request has ended, and None altogether if the inputs cannot be seen.
        """
        ...

    def complete(self, batch: int, tokens: Sequence[int | None]) -> Answer:
        """Take what the device sampled: one entry per row, None for a row that does not sample."""
        ...

    def observe(self) -> State | None:
        """Return free and held blocks, or None if they cannot be seen."""
        ...


#: Makes a fresh scheduler that keeps to the limits. ``module:name`` on the command line.
Factory: TypeAlias = Callable[[Limits], Adapter]

__all__ = ["Adapter", "Answer", "Factory", "Selected", "Share", "State", "Submission"]
