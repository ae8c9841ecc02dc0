"""The journal: every event and its commands, chained, one JSON line each; and its replay.

The first line is a header with the schema and the kernel's configuration. Every other line has the
event, the commands, how many device steps the event stands for, and a digest that chains all lines
so far: the first 128 bits of SHA-256 over the digest before and the canonical bytes of the line
without it. Every 1,024th event also has a digest of the kernel's whole state. A line counts once
its line feed is written, so a journal that was cut at any byte is good up to its last whole line.

The last line says how many events there were. It is written when the run has come to its end, so a
journal without it is one of a run that broke, or was cut. Journals of schema 1 have no such line,
and their events no ``turn_times``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from stepahead import Kernel, StepaheadError
from stepahead.commands import Command
from stepahead.config import KernelConfig
from stepahead.events import BatchExecuted, Event
from stepahead_models.codec import Json, canonical, decode_config, decode_event, encode
from stepahead_models.errors import JournalError, TraceMismatch

SCHEMA: Final = 2
#: The first schema whose journals end with a mark.
_END_MARKED: Final = 2
#: The first schema whose stretches say when each turn was that the kernel learns from.
_TIMED: Final = 2
_READ: Final = (1, SCHEMA)
STATE_EVERY: Final = 1024
_DIGEST_CHARS: Final = 32
_START: Final = "0" * _DIGEST_CHARS


class JournaledKernel(Protocol):
    """What the journal asks of the kernel that it follows."""

    @property
    def config(self) -> KernelConfig:
        """Return its limits."""
        ...

    def digest(self) -> str:
        """Return a digest of its whole state."""
        ...


def _chain(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:_DIGEST_CHARS]


def _body(event: Event, commands: tuple[Command, ...]) -> dict[str, Json]:
    return {
        "event": encode(event),
        "commands": [encode(command) for command in commands],
        "steps": _steps(event),
    }


def _steps(event: Event) -> int:
    """Return how many device steps an event stands for; drafts are verified in one."""
    if not isinstance(event, BatchExecuted):
        return 0
    return len(event.tokens) if event.accepted is None else 1


class JournalWriter:
    """Writes a journal; give it to a `Simulation` as an observer, inside a ``with`` block.

    Leaving the block ends the journal with its mark, unless by an error: then the run has no end.

    Args:
        path: the file, which is replaced.
        kernel: the kernel whose events and commands come; it has seen none yet.
    """

    def __init__(self, path: Path, kernel: JournaledKernel) -> None:
        self._file: Final = path.open("wb")
        self._kernel: Final = kernel
        self.lines = 0
        #: Digest of everything so far.
        self.digest = _START
        self._write({"journal": SCHEMA, "config": encode(kernel.config)})

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Write the end mark, where nothing went wrong, and close the file."""
        if error is None:
            self._write({"end": self.lines})
        self._file.close()

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Write one line."""
        self.lines += 1
        line = _body(event, commands)
        if self.lines % STATE_EVERY == 0:
            line["state"] = self._kernel.digest()
        self._write(line)

    def _write(self, line: dict[str, Json]) -> None:
        body = canonical(line)
        self.digest = _chain(self.digest, body)
        self._file.write(body[:-1] + f',"digest":"{self.digest}"}}\n'.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay found: the journal tells the truth, up to ``lines``.

    Args:
        schema: the form of the file.
        lines: events that were replayed.
        digest: chained digest after the last line.
        state: digest of the kernel's state at the end.
        ended: the file has its end mark; never so before schema 2.
        torn: the file ends in the middle of a line, which was ignored.
    """

    schema: int
    lines: int
    digest: str
    state: str
    ended: bool
    torn: bool

    @property
    def incomplete(self) -> bool:
        """Tell whether an end mark should be there and is not."""
        return not self.ended and self.schema >= _END_MARKED


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Json] | None]]:
    """Yield number (from 1) and content of every line; None for one that is not whole.

    Raises:
        JournalError: a whole line is no JSON object.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                yield number, None
                return
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise JournalError(f"{path.name} line {number} is no JSON: {error}") from error
            if not isinstance(line, dict):
                raise JournalError(f"{path.name} line {number} is no JSON object")
            yield number, line


def replay_journal(path: Path) -> Replay:
    """Feed the events of a journal to a new kernel and compare everything.

    Raises:
        JournalError: the file is no journal of a schema that is read here, or goes on behind its
            end.
        TraceMismatch: the first line that the kernel answers otherwise, or that was changed.
    """
    name, lines = path.name, read_lines(path)
    _, header = next(lines, (0, None))
    header = header or {}
    schema = header.get("journal")
    if not isinstance(schema, int) or schema not in _READ:
        raise JournalError(
            f"{name} is no journal of schema {' or '.join(map(str, _READ))}; its first line says "
            f"{schema!r}"
        )
    digest = _check(name, 1, header, _START, None)
    kernel = Kernel(decode_config(header.get("config")))
    events, ended, torn = 0, False, False
    for number, line in lines:
        if ended:
            raise JournalError(f"{name} line {number} stands behind the end of the journal")
        if line is None:
            torn = True
        elif schema >= _END_MARKED and "end" in line:
            digest = _check_end(name, number, line, digest, events)
            ended = True
        else:
            _replay_line(name, number, _completed(line, schema), kernel)
            events += 1
            state = kernel.digest() if events % STATE_EVERY == 0 else None
            digest = _check(name, number, line, digest, state)
    return Replay(
        schema=schema,
        lines=events,
        digest=digest,
        state=kernel.digest(),
        ended=ended,
        torn=torn,
    )


def _check_end(name: str, number: int, line: dict[str, Json], digest: str, events: int) -> str:
    if line["end"] != events:
        raise TraceMismatch(
            journal=name,
            line=number,
            recorded=f"the end after {line['end']} events",
            replayed=f"the end after {events} events",
        )
    return _check(name, number, line, digest, None)


def _completed(line: dict[str, Json], schema: int) -> dict[str, Json]:
    """Return a line with what events have that its schema did not know."""
    event = line.get("event")
    if schema < _TIMED and isinstance(event, dict) and event.get("type") == BatchExecuted.__name__:
        return {**line, "event": {"turn_times": None, **event}}
    return line


def _replay_line(name: str, number: int, line: dict[str, Json], kernel: Kernel) -> None:
    try:
        event = decode_event(line.get("event"))
        commands = kernel.step(event)
    except StepaheadError as error:
        raise TraceMismatch(
            journal=name, line=number, recorded=_show(line.get("commands")), replayed=str(error)
        ) from error
    body = _body(event, commands)
    for key in ("event", "commands", "steps"):
        if body[key] != line.get(key):
            raise TraceMismatch(
                journal=name, line=number, recorded=_show(line.get(key)), replayed=_show(body[key])
            )


def _check(name: str, number: int, line: dict[str, Json], before: str, state: str | None) -> str:
    recorded_state = line.get("state")
    if recorded_state != state:
        raise TraceMismatch(
            journal=name,
            line=number,
            recorded=f"state {recorded_state}",
            replayed=f"state {state}",
        )
    recorded = line.pop("digest", None)
    digest = _chain(before, canonical(line))
    if recorded != digest:
        raise TraceMismatch(
            journal=name, line=number, recorded=f"digest {recorded}", replayed=f"digest {digest}"
        )
    return digest


def _show(value: Json) -> str:
    return canonical(value).decode()
