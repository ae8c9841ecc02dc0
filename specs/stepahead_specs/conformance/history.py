"""A history: what one scheduler did, one fact per line, in JSON.

The first line is an `Opened`; every other line is one call of the scheduler and its whole answer,
in the order of the calls. Field names are those of the classes here, with ``fact`` for the kind of
the line, and what has its default may be left out::

    {"fact": "opened", "format": 1, "scheduler": "mine 1.0", "limits": {...}}
    {"fact": "submitted", "request": 0, "name": "a", "prompt": [11, 12, 13], "max_tokens": 2}
    {"fact": "prepared", "batch": 1, "rows": [{"request": 0, "position": 0, "count": 3,
     "samples": true, "blocks": [0, 1]}]}
    {"fact": "dispatched", "batch": 1, "inputs": [[11, 12, 13]]}
    {"fact": "completed", "batch": 1, "tokens": [7], "emitted": [[0, 7]]}

No scheduler is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from stepahead_specs.records import Limits

FORMAT: Final = 1


class HistoryError(ValueError):
    """A file is not a history; nothing is said about the scheduler."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}:{line}: {problem}")


class Told(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What all parts of a history share: immutable, named fields, none but the known ones."""


class Share(Told, frozen=True, kw_only=True):
    """One row: ``count`` positions of one request from ``position`` on.

    Args:
        request: whose row it is; a number that is never used again.
        position: its first KV position; equals the tokens whose KV exists or is in flight.
        count: how many positions, at least 1.
        samples: the row returns one sampled token, the one of sequence position
            ``position + count``; with drafts, up to that one.
        epoch: how often the request has been preempted.
        seat: the place of the request in the tables of the device, where places are reused.
        blocks: its whole block table, from position 0 on; None where blocks are not told.
        drafts: how many of the positions, the last ones, are drafts of a speculation.
    """

    request: int
    position: int
    count: int
    samples: bool
    epoch: int = 0
    seat: int | None = None
    blocks: tuple[int, ...] | None = None
    drafts: int = 0


class Counts(Told, frozen=True, kw_only=True):
    """A live request in the words of the scheduler: known tokens, scheduled and settled positions.

    Scheduled counts the positions given to rows, settled those of batches that came back.
    """

    known: int
    scheduled: int
    settled: int


class State(Told, frozen=True, kw_only=True):
    """The scheduler's own view after the call.

    Args:
        free: blocks that may be handed out, cached ones included.
        held: live request to its blocks, in the order of its positions.
        references: per block, how many tables of live requests name it.
        counts: per live request.
    """

    free: tuple[int, ...]
    held: dict[int, tuple[int, ...]]
    references: tuple[int, ...] | None = None
    counts: dict[int, Counts] | None = None


class Promise(Told, frozen=True, kw_only=True):
    """The output that a request gives when it runs alone, and why it ends: stop or length."""

    tokens: tuple[int, ...]
    reason: str


class Opened(Told, frozen=True, kw_only=True, tag_field="fact", tag="opened"):
    """The first line: what the scheduler was told to keep to."""

    format: int
    limits: Limits
    scheduler: str = "a scheduler"


class Submitted(Told, frozen=True, kw_only=True, tag_field="fact", tag="submitted"):
    """A client asked for tokens.

    Args:
        request: a number that grows with every submission.
        name: the client's label; it may come again once the earlier request has ended.
        prompt: token ids.
        max_tokens: output tokens at most; prompt and output together keep to ``max_model_len``.
        priority: smaller is served first, where ``limits.by_priority`` says so.
        min_tokens: a stop token before this many output tokens does not end the request.
        ignore_eos: the EOS token of the limits does not end it.
        stop_token_ids: further tokens that end it.
        refused: why it never entered, or None.
        promise: what it gives alone, where somebody knows.
    """

    request: int
    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    refused: str | None = None
    promise: Promise | None = None
    state: State | None = None


class Cancelled(Told, frozen=True, kw_only=True, tag_field="fact", tag="cancelled"):
    """A client left; ``finished`` are (request, reason) of the last words that followed."""

    request: int
    finished: tuple[tuple[int, str], ...] = ()
    state: State | None = None


class Prepared(Told, frozen=True, kw_only=True, tag_field="fact", tag="prepared"):
    """The scheduler chose the next batch and its inputs were built; no rows: nothing to do.

    ``batch`` grows with every batch.
    """

    batch: int | None = None
    rows: tuple[Share, ...] = ()
    state: State | None = None


class Dispatched(Told, frozen=True, kw_only=True, tag_field="fact", tag="dispatched"):
    """The device got the batch.

    ``inputs`` has the input tokens of each row, ``count`` of them but for the drafts, None for a
    row whose request has ended; None altogether where inputs are not told.
    """

    batch: int
    inputs: tuple[tuple[int, ...] | None, ...] | None = None
    state: State | None = None


class Completed(Told, frozen=True, kw_only=True, tag_field="fact", tag="completed"):
    """The device gave the batch back.

    Args:
        batch: which one.
        tokens: one entry per row: what it sampled, None where it does not sample; of a row with
            drafts a list, those that were right and the token behind them.
        emitted: (request, token) that went out to clients, in order.
        finished: (request, reason) of the last words; stop or length, abort after a cancel.
    """

    batch: int
    tokens: tuple[int | tuple[int, ...] | None, ...]
    emitted: tuple[tuple[int, int], ...] = ()
    finished: tuple[tuple[int, str], ...] = ()
    state: State | None = None


class Drained(Told, frozen=True, kw_only=True, tag_field="fact", tag="drained"):
    """Clients, host and device have done their part: every request must have ended."""

    state: State | None = None


Fact: TypeAlias = Submitted | Cancelled | Prepared | Dispatched | Completed | Drained

_OPENED: Final = msgspec.json.Decoder(Opened)
_FACT: Final[msgspec.json.Decoder[Fact]] = msgspec.json.Decoder(Fact)


def read(path: Path) -> tuple[Opened, Iterator[tuple[int, Fact]]]:
    """Open a history; return its first line, and each further one with its number.

    Raises:
        HistoryError: a line is not what it should be; also while iterating.
    """
    lines = _lines(path)
    number, line = next(lines, (1, b""))
    try:
        opened = _OPENED.decode(line)
    except msgspec.DecodeError as error:
        raise HistoryError(path, number, f"the first line must open a history: {error}") from error
    if opened.format != FORMAT:
        problem = f"history format {opened.format} is not known; write format {FORMAT}"
        raise HistoryError(path, number, problem)
    return opened, _facts(path, lines)


def write(path: Path, opened: Opened, facts: Iterable[Fact]) -> None:
    """Write a history that `read` understands."""
    lines = [msgspec.json.encode(opened), *(msgspec.json.encode(fact) for fact in facts)]
    path.write_bytes(b"\n".join(lines) + b"\n")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _facts(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, Fact]]:
    for number, line in lines:
        try:
            yield number, _FACT.decode(line)
        except msgspec.DecodeError as error:
            raise HistoryError(path, number, f"not a fact of a history: {error}") from error
