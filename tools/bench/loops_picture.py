"""Draw what happens when a request arrives in the middle of a device step, under each loop.

    .venv/bin/python tools/bench/loops_picture.py            # writes specs/just-in-time.svg

Eight requests decode on the simulated RNGD card; a ninth with a prompt of 128 tokens arrives when
two fifths of a step are over. Every bar is a job or a step of that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from stepahead import Kernel, KernelConfig
from stepahead.commands import Command, DispatchBatch, EmitTokens, PrepareBatch
from stepahead.events import BatchExecuted, BatchPrepared, Event, HostReady
from stepahead_models.closed_form import ClosedForm
from stepahead_models.device import Device
from stepahead_models.profiles import load_profile
from stepahead_models.record import RunRecord
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import Prompts
from stepahead_models.workload import Workload
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP, Loop

TARGET: Final = Path(__file__).resolve().parents[2] / "specs" / "just-in-time.svg"
PROFILE: Final = load_profile("rngd-llama-3.1-8b")
ROWS: Final = 8
SETTLED_NS: Final = 2_000_000_000
LEFT, RIGHT, WIDTH = 128, 16, 1000
LANE, GAP, TOP = 22, 26, 34
BEFORE_NS, AFTER_NS = 12_000_000, 88_000_000
FILLS: Final = {
    "step": "#9db4c8",
    "with newcomer": "#d98841",
    "build": "#5b8c5a",
    "fill": "#b3574f",
    "publish": "#b9a13c",
    "collect": "#7d6b91",
}


@dataclass(slots=True)
class Jobs:
    """Sees the events of a run and remembers when the host did what."""

    spans: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    built_since: int = 0
    filling: int = -1
    publishing: int = -1

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Note one event and its answer."""
        at = event.at
        if isinstance(event, BatchPrepared):
            self.spans.append(("build", self.built_since, at))
        if isinstance(event, BatchExecuted):
            self.spans.append(("collect", event.ended_at, at))
        if isinstance(event, HostReady) and self.publishing >= 0:
            self.spans.append(("publish", self.publishing, at))
            self.publishing = -1
        for command in commands:
            if isinstance(command, PrepareBatch):
                self.built_since = at
            elif isinstance(command, DispatchBatch):
                self.spans.append(("fill", at, -1))
            elif isinstance(command, EmitTokens):
                self.publishing = at


def run(loop: Loop, newcomer_at: int | None) -> tuple[RunRecord, Jobs]:
    """Run the eight requests, and the ninth if it comes."""
    count = ROWS if newcomer_at is None else ROWS + 1
    arrivals = np.zeros(count, dtype=np.int64)
    if newcomer_at is not None:
        arrivals[-1] = newcomer_at
    never = np.full(count, -1, dtype=np.int64)
    ids = tuple(f"r{index}" for index in range(count))
    load = Workload(
        prompts=Prompts(
            request_ids=ids, lengths=np.full(count, 128, dtype=np.int64), vocab_size=1000
        ),
        arrivals_ns=arrivals,
        max_tokens=np.full(count, 200, dtype=np.int64),
        eos_at=never,
        cancel_after_ns=never,
        cancel_after_tokens=never,
        priorities=np.zeros(count, dtype=np.int64),
    )
    kernel = Kernel(
        KernelConfig(
            num_blocks=4000,
            max_num_batched_tokens=1024,
            lookahead=loop.lookahead,
            timing=loop.timing,
        )
    )
    jobs = Jobs()
    simulation = Simulation(
        kernel,
        load,
        Device.of(PROFILE),
        ClosedForm(vocab_size=1000),
        stretches=False,
        observers=[jobs],
    )
    return simulation.run(), jobs


def lanes(loop: Loop, top: int) -> Iterator[str]:
    """Yield the two lanes of one loop as SVG."""
    quiet, _ = run(loop, None)
    step = int(np.searchsorted(quiet.step_starts_ns, SETTLED_NS))
    begun, ended = int(quiet.step_starts_ns[step]), int(quiet.step_ends_ns[step])
    arrival = begun + (ended - begun) * 2 // 5
    record, jobs = run(loop, arrival)
    origin = arrival - BEFORE_NS
    first = int(record.first_tokens_ns[-1])

    def x(at: int) -> float:
        place = LEFT + (at - origin) * (WIDTH - LEFT - RIGHT) / (BEFORE_NS + AFTER_NS)
        return round(min(max(place, LEFT), WIDTH - RIGHT), 1)

    def bar(name: str, begin: int, end: int, y: int) -> str:
        width = round(x(end) - x(begin), 1)
        if width <= 0:
            return ""
        return (
            f'<rect x="{x(begin)}" y="{y}" width="{width}" height="{LANE}" fill="{FILLS[name]}"/>'
        )

    yield f'<text x="0" y="{top + 15}" font-weight="bold">{escape(loop.name)}</text>'
    yield f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">NPU</text>'
    yield f'<text x="{LEFT - 8}" y="{top + LANE + 19}" text-anchor="end">CPU</text>'
    spans = zip(record.step_starts_ns.tolist(), record.step_ends_ns.tolist(), strict=True)
    for begin, end in spans:
        joined = begin == int(record.first_dispatches_ns[-1])
        yield bar("with newcomer" if joined else "step", begin, end, top)
    starts = record.step_starts_ns
    for name, begin, end in jobs.spans:
        until = int(starts[np.searchsorted(starts, begin, side="left")]) if end < 0 else end
        since = begin
        if name == "publish":
            started = int(starts[np.searchsorted(starts, begin, side="left") % len(starts)])
            since = started if begin <= started < end else begin
        yield bar(name, since, until, top + LANE + 4)
    bottom = top + 2 * LANE + 4
    for at, colour, words in (
        (arrival, "#222", "arrives"),
        (first, "#b0341d", f"first token, {(first - arrival) / 1e6:.1f} ms"),
    ):
        yield (
            f'<line x1="{x(at)}" y1="{top - 4}" x2="{x(at)}" y2="{bottom + 4}" '
            f'stroke="{colour}" stroke-width="1.5"/>'
        )
        yield f'<text x="{x(at) + 3}" y="{bottom + 14}" fill="{colour}">{words}</text>'


def picture() -> str:
    """Return the whole picture."""
    height = TOP + 3 * (2 * LANE + GAP + 14) + 6
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    place = LEFT
    labels = {
        "step": "device step",
        "with newcomer": "first step with the newcomer",
        "build": "select and build",
        "fill": "fill, dispatch",
        "publish": "publish tokens",
        "collect": "notice, sample",
    }
    for name, words in labels.items():
        parts.append(f'<rect x="{place}" y="6" width="12" height="12" fill="{FILLS[name]}"/>')
        parts.append(f'<text x="{place + 17}" y="16">{words}</text>')
        place += 36 + 7 * len(words)
    for index, loop in enumerate((EAGER, OVERLAP, JUST_IN_TIME)):
        parts += lanes(loop, TOP + index * (2 * LANE + GAP + 14))
    return "\n".join(part for part in [*parts, "</svg>"] if part) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
