"""Scenarios: scripts of events with the kernel's answers, to be read and to be compared.

A script in `specs/scenarios` is a sequence of steps, each of one or more command lines, a line
``----`` and the output. Lines that begin with ``#`` tell the story. The first step sets the limits.

    limits num_blocks=4 block_size=2 lookahead=1     make the kernel (eos_token_id is 0)
    arrive NAME prompt=3 tokens=4 [priority=..] [min_tokens=..] [keys=1,2] [stops=7]
    cancel NAME [handle=1]                           a client leaves
    ready                                            the host is ready
    prepared | refused                               the batch being built
    executed [TOKEN ...]                             the dispatched batch, a token per sampling row;
                                                     7,8,9: two accepted drafts and a token
    failed batch | device                            the dispatched batch, or everything
    woke ID | pause | resume | reset
    at TIME                                          later events happen then
    requests | blocks | audit                        what stands, in words

    python -m stepahead_specs.scenarios --rewrite    accept new output; read the diff first
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from stepahead import Kernel, KernelConfig, StepaheadError
from stepahead.commands import (
    AbandonBatch,
    AdmitRequest,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishRequest,
    PrepareBatch,
    RefuseRequest,
    WakeAt,
)
from stepahead.config import BatchPreference, SelectionTiming, WaitingOrder
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    Woke,
)
from stepahead_specs.bench import executed
from stepahead_specs.observer import sent

FOLDER: Final = Path(__file__).resolve().parents[1] / "scenarios"
_ENUMS: Final = {
    "order": WaitingOrder,
    "preference": BatchPreference,
    "timing": SelectionTiming,
}


class ScenarioError(StepaheadError):
    """A script that cannot be read; the sentence names the line."""


class Scenario:
    """One kernel, driven by lines of a script."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._at = 0
        self._names: dict[int, str] = {}
        self._batches: dict[int, PrepareBatch] = {}
        self._building = 0
        self._running = 0

    def run(self, line: str) -> Iterator[str]:
        """Carry out one command line; yield the output lines."""
        word, *arguments = line.split()
        if word == "limits":
            self._kernel = Kernel(_config(arguments))
            return
        if word == "at":
            self._at = int(arguments[0])
            return
        views: dict[str, Callable[[], Iterator[str]]] = {
            "requests": self._requests,
            "blocks": self._blocks,
            "audit": self._audit,
        }
        if word in views:
            yield from views[word]()
            return
        event = self._event(word, arguments)
        try:
            answer = self.kernel.step(event)
        except StepaheadError as error:
            yield f"error: {error}"
            return
        for command in answer:
            yield from self._told(command)
        if not answer:
            yield "nothing"

    @property
    def kernel(self) -> Kernel:
        """The kernel that `limits` made."""
        if self._kernel is None:
            raise ScenarioError("the first command of a scenario is `limits`")
        return self._kernel

    # -- events -------------------------------------------------------------------------------

    def _event(self, word: str, arguments: list[str]) -> Event:  # noqa: C901, PLR0911 - one per event
        at = self._at
        match word:
            case "arrive":
                return self._arrival(arguments)
            case "cancel":
                named = _named(arguments[1:])
                handle = int(named["handle"]) if "handle" in named else None
                return RequestCancelled(request_id=arguments[0], handle=handle, at=at)
            case "ready":
                return HostReady(at=at)
            case "prepared":
                return BatchPrepared(batch_id=self._building, at=at)
            case "refused":
                return BatchRefused(batch_id=self._building, at=at)
            case "executed":
                return self._executed([_numbers(argument) for argument in arguments])
            case "failed":
                scope = FailureScope(arguments[0])
                return BatchFailed(batch_id=self._running, scope=scope, at=at)
            case "woke":
                return Woke(wake_id=int(arguments[0]), at=at)
            case "pause":
                return PauseRequested(at=at)
            case "resume":
                return ResumeRequested(at=at)
            case "reset":
                return CacheResetRequested(at=at)
            case _:
                raise ScenarioError(f"{word!r} is no command; see `stepahead_specs.scenarios`")

    def _executed(self, sampled: list[list[int]]) -> BatchExecuted:
        command = self._batches.get(self._running)
        drafts: list[int] = []
        if command is not None and command.drafts is not None:
            drafts = command.drafts[command.samples].tolist()
        return executed(self._running, sampled, drafts, self._at)

    def _arrival(self, arguments: list[str]) -> RequestArrived:
        named = _named(arguments[1:])
        keys = np.array(_numbers(named.pop("keys", "")), dtype=np.int64)
        stops = tuple(_numbers(named.pop("stops", "")))
        return RequestArrived(
            request_id=arguments[0],
            prompt_length=int(named.pop("prompt")),
            max_tokens=int(named.pop("tokens")),
            at=self._at,
            arrived_at=self._at,
            block_keys=keys if len(keys) else None,
            stop_token_ids=stops,
            **{name: int(value) for name, value in named.items()},  # type: ignore[arg-type]
        )

    # -- output -------------------------------------------------------------------------------

    def _told(self, command: Command) -> Iterator[str]:
        match command:
            case AdmitRequest():
                self._names[command.handle] = command.request_id
                yield f"admit {command.request_id} as {command.handle}"
            case RefuseRequest():
                yield f"refuse {command.request_id} ({command.reason.value}): {command.detail}"
            case PrepareBatch():
                self._building = command.batch_id
                self._batches[command.batch_id] = command
                yield f"prepare batch {command.batch_id}"
                yield from (f"  {row}" for row in self._rows(command))
            case AbandonBatch():
                yield f"abandon batch {command.batch_id}"
            case DispatchBatch():
                self._running = command.batch_id
                yield from self._dispatched(command)
            case EmitTokens():
                for handle, _, tokens in sent(command):
                    yield f"emit {self._names[handle]}: {' '.join(map(str, tokens))}"
            case FinishRequest():
                reason, count = command.reason.value, command.output_tokens
                yield f"finish {command.request_id} ({reason}) after {count} tokens"
            case WakeAt():
                yield f"wake {command.wake_id} at {command.at}"
            case _:
                yield repr(command)

    def _rows(self, command: PrepareBatch) -> Iterator[str]:
        for row, handle in enumerate(command.handles):
            first = int(command.positions[row])
            last = first + int(command.token_counts[row]) - 1
            span = f"position {first}" if first == last else f"positions {first} to {last}"
            drafts = 0 if command.drafts is None else int(command.drafts[row])
            samples = f", {drafts} of them drafts" if drafts else ""
            samples += ", samples" if command.samples[row] else ""
            blocks = command.blocks[command.block_rows == row]
            new = f", blocks {' '.join(map(str, blocks))}" if len(blocks) else ""
            yield f"{self._names[int(handle)]} in seat {command.seats[row]}: {span}{samples}{new}"

    def _dispatched(self, command: DispatchBatch) -> Iterator[str]:
        handles = self._batches[command.batch_id].handles
        fills = [
            f"{self._names[int(handles[row])]} <- {token}"
            for row, token in zip(command.fill_rows, command.fill_tokens, strict=True)
            if command.live[row]
        ]
        dead = [self._names[int(handle)] for handle in handles[~command.live]]
        yield f"dispatch batch {command.batch_id}" + (f", fill {', '.join(fills)}" if fills else "")
        if dead:
            yield f"  {'left out' if command.pruned else 'masked'}: {', '.join(dead)}"

    def _requests(self) -> Iterator[str]:
        for seen in self.kernel.requests():
            intent = "" if seen.intent.value == 0 else f", to be {seen.intent.name.lower()}ed"
            yield (
                f"{seen.request_id} is {seen.state.name}{intent}: {seen.known} known, "
                f"{seen.scheduled} scheduled, {seen.settled} settled"
            )

    def _blocks(self) -> Iterator[str]:
        places: dict[str, list[int]] = {}
        for seen in self.kernel.blocks():
            places.setdefault(seen.place.value, []).append(seen.block)
        for place in sorted(places):
            yield f"{place}: {' '.join(map(str, places[place]))}"

    def _audit(self) -> Iterator[str]:
        yield from self.kernel.audit().problems or ("sound",)


def replay(text: str) -> str:
    """Run a script and return it with the output that the kernel gives now.

    Raises:
        ScenarioError: a step has no ``----`` line, or a command cannot be read.
    """
    scenario = Scenario()
    steps: list[str] = []
    for step in text.strip("\n").split("\n\n"):
        story = [line for line in step.split("\n") if line.startswith("#")]
        rest = [line for line in step.split("\n") if not line.startswith("#")]
        if not rest:
            steps.append("\n".join(story))
            continue
        if "----" not in rest:
            raise ScenarioError(f"the step {rest[0]!r} has no ---- line; add one, and --rewrite")
        lines = rest[: rest.index("----")]
        output = [told for line in lines for told in scenario.run(line)]
        steps.append("\n".join([*story, *lines, "----", *output]))
    return "\n\n".join(steps) + "\n"


def _config(arguments: list[str]) -> KernelConfig:
    options: dict[str, object] = {"eos_token_id": 0, "block_size": 1, "max_model_len": 64}
    for name, value in _named(arguments).items():
        if name in _ENUMS:
            options[name] = _ENUMS[name](value)
        else:
            options[name] = value == "yes" if value in {"yes", "no"} else int(value)
    return KernelConfig(**options)  # type: ignore[arg-type]


def _named(arguments: list[str]) -> dict[str, str]:
    pairs = (argument.partition("=") for argument in arguments)
    return {name: value for name, _, value in pairs}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def main(arguments: list[str]) -> int:
    """Compare every script with what the kernel says now, or rewrite them; return the exit code."""
    stale: list[str] = []
    for path in sorted(FOLDER.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        now = replay(text)
        if now != text:
            stale.append(path.name)
            if "--rewrite" in arguments:
                path.write_text(now, encoding="utf-8")
    for name in stale:
        sys.stderr.write(f"{name} says something else now\n")
    return 1 if stale and "--rewrite" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
