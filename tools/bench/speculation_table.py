"""Print what drafts make of a decode-heavy load under the eager loop, beside the overlap loop.

    .venv/bin/python tools/bench/speculation_table.py                # print
    .venv/bin/python tools/bench/speculation_table.py --write        # and into the page

Simulated times, so the same on every machine. Each closed loop runs without drafts under both
loops, and with 1 to 4 drafts of either quality under the eager one; the latter once more on a
device to which every position of a row is a decode row of its own, since nobody measured which of
the two holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs

from bench.scripts import count, finish
from stepahead.arrays import Ints
from stepahead_models.npu import BatchShape, NpuModel
from stepahead_models.profiles import load_profile
from stepahead_models.traces import Trace, bundled_trace, read_trace
from stepahead_tools.distribution import Distribution
from stepahead_tools.loops import EAGER, OVERLAP, Loop
from stepahead_tools.metrics import RunMetrics, measure
from stepahead_tools.options import RunOptions
from stepahead_tools.runs import run_loop, set_up
from stepahead_tools.settings import resolve

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "specs" / "speculation.md"
BEGIN, END = "<!-- table: tools/bench/speculation_table.py -->", "<!-- end of table -->"
DEVICE: Final = "rngd-llama-3.1-8b"
CLIENTS: Final = (4, 16, 64)
WIDTHS: Final = (1, 2, 3, 4)
QUALITIES: Final = (0.5, 0.8)
HEADS: Final = (
    "clients", "loop, drafts", "TPOT p50 ms", "change", "tokens/s", "change", "the other way",
    "tokens per row and step", "TTFT p50 ms",
)  # fmt: skip


@dataclass(frozen=True)
class EachPosition:
    """A device to which every position of a row with drafts is a decode row of its own."""

    npu: NpuModel

    def step_ns(self, shape: BatchShape) -> int:
        """Return how long the NPU executes one batch."""
        if shape.drafts is None:
            return self.npu.step_ns(shape)
        parts = np.where(shape.drafts > 0, shape.token_counts, 1)
        firsts = np.repeat(np.cumsum(parts) - parts, parts)
        ahead = np.arange(int(parts.sum())) - firsts
        counts = np.where(shape.drafts > 0, 1, shape.token_counts)
        return self.npu.step_ns(
            BatchShape(
                np.repeat(shape.positions, parts) + ahead,
                np.repeat(counts, parts),
                shape.samples,
                shape.new_blocks,
            )
        )

    def repeat_ns(self, positions: Ints, steps: int) -> Ints:
        """Return how long decode steps without drafts take."""
        return self.npu.repeat_ns(positions, steps)


def run(  # noqa: PLR0913 - what differs between the rows
    trace: Trace,
    loop: Loop,
    clients: int,
    width: int = 0,
    quality: float = 0.0,
    *,
    each_position: bool = False,
) -> RunMetrics:
    """Run a closed loop with so many drafts per row, each right so often."""
    spec = json.dumps({"method": "mtp", "num_speculative_tokens": width}) if width else None
    options = RunOptions(
        trace=trace.name,
        unchecked=True,
        concurrency=clients,
        experimental_speculative_config=spec,
        draft_acceptance=quality,
    )
    profile = load_profile(DEVICE)
    scene = set_up(trace, resolve(options, profile), profile, None)
    if each_position:
        npu = EachPosition(scene.machine.npu)
        scene = structs.replace(scene, machine=replace(scene.machine, npu=npu))
    return measure(run_loop(scene, loop), closed_loop=True)


def lines(trace: Trace, clients: int) -> Iterator[str]:
    """Yield the lines of one closed loop."""
    plain, ahead = run(trace, EAGER, clients), run(trace, OVERLAP, clients)
    yield _line(clients, "eager", plain, plain)
    yield _line(clients, "overlap", ahead, plain)
    for quality in QUALITIES:
        for width in WIDTHS:
            found, bound = (
                run(trace, EAGER, clients, width, quality, each_position=each)
                for each in (False, True)
            )
            yield _line(clients, f"eager, {width} at {quality:g}", found, plain, bound)


def _line(
    clients: int, name: str, run: RunMetrics, plain: RunMetrics, bound: RunMetrics | None = None
) -> str:
    rate, tpot = float(run.output_tokens_per_s or 0), _at_50(run.tpot)
    steps = float(run.tokens_per_row_step or 0)
    figures = [
        str(clients),
        name,
        f"{tpot:.2f}",
        f"{100 * (tpot / _at_50(plain.tpot) - 1):+z.1f} %",
        f"{rate:,.0f}",
        f"{100 * (rate / float(plain.output_tokens_per_s or 1) - 1):+z.1f} %",
        "" if bound is None else f"{float(bound.output_tokens_per_s or 0):,.0f}",
        f"{steps:.2f}",
        f"{_at_50(run.ttft):.1f}",
    ]
    return f"| {' | '.join(figures)} |"


def _at_50(figures: Distribution | None) -> float:
    return 0.0 if figures is None else figures.at(50) / 1e6


def main() -> None:
    """Run all rows and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=count, default=500, help="the first so many")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    path = bundled_trace().with_name("servegen_m-large_head.jsonl.zst")
    trace = read_trace(path).limit(options.requests)
    table = [
        f"| {' | '.join(HEADS)} |",
        f"|--:|---|{'--:|' * (len(HEADS) - 2)}",
    ]
    for clients in CLIENTS:
        for line in lines(trace, clients):
            table.append(line)
            sys.stderr.write(f"{line}\n")
    text = "\n".join(table)
    sys.stdout.write(f"{text}\n")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    finish(main)
