"""Print what the host cache makes of a multi-turn load whose prompts do not fit into KV memory.

    .venv/bin/python tools/bench/tiers_table.py TRACE                  # print
    .venv/bin/python tools/bench/tiers_table.py TRACE --write          # and into the page

TRACE is own_bailian_like_sessions.jsonl.zst, or another trace with prefix hashes. Simulated times,
so the same on every machine. Arrivals are scaled to one share of the eager loop's capacity without
a host cache, the same for every row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bench.scripts import count, finish, share
from stepahead_models.profiles import load_profile
from stepahead_models.record import RunRecord
from stepahead_models.traces import Trace, read_trace
from stepahead_tools.distribution import Distribution
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER, OVERLAP, Loop
from stepahead_tools.metrics import measure
from stepahead_tools.options import RunOptions
from stepahead_tools.pacing import Pacing
from stepahead_tools.runs import measure_capacity, run_loop, set_up
from stepahead_tools.settings import resolve

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "specs" / "tiers.md"
BEGIN, END = "<!-- table: tools/bench/tiers_table.py -->", "<!-- end of table -->"
DEVICE: Final = "rngd-llama-3.1-8b"
_GIB: Final = 128.0
_HOST: Final = {"experimental_kv_offload_host_memory_gb": _GIB}
#: What each row switches on.
ROWS: Final[dict[str, dict[str, Any]]] = {
    "recompute (L1 only)": {},
    "L2, write-through at 2 hits": _HOST,
    "L2, write-through at 1 hit": {
        **_HOST,
        "experimental_kv_offload_write_through_threshold": 1,
    },
    "L2, and write-back": {**_HOST, "experimental_kv_offload_write_back": True},
    "L2, write-back, layer-wise": {
        **_HOST,
        "experimental_kv_offload_write_back": True,
        "experimental_kv_offload_overlap_l2_reload": True,
    },
}


def run(trace: Trace, speed: float, loop: Loop, row: dict[str, Any]) -> RunRecord:
    """Run one row under one loop."""
    profile = load_profile(DEVICE)
    options = RunOptions(trace=trace.name, unchecked=True, **row)
    settings = replace(resolve(options, profile), pacing=Pacing("speed", speed))
    return run_loop(set_up(trace, settings, profile, None), loop)


def speed_of(trace: Trace, load: float) -> float:
    """Return the factor on recorded arrivals that makes this share of the eager capacity.

    Raises:
        OptionError: there are no times to scale.
    """
    if not trace.span_ns:
        raise OptionError(
            f"the first {len(trace)} requests of trace {trace.name!r} arrive at once, so there are "
            "no times to scale; take more with --requests"
        )
    profile = load_profile(DEVICE)
    settings = resolve(RunOptions(trace=trace.name, unchecked=True), profile)
    capacity = float(measure_capacity(set_up(trace, settings, profile, None)))
    recorded = len(trace) / (int(trace.arrivals_ns[-1]) / 1e9)
    return load * capacity / recorded


def line(name: str, loop: Loop, record: RunRecord) -> str:
    """Return one line of the table."""
    metrics, counted = measure(record), record.counters
    queried = max(counted["queried_tokens"], 1)
    figures = [
        loop.name,
        name,
        *(f"{_at(metrics.ttft, percent):,.0f}" for percent in (50, 90, 99)),
        f"{_at(metrics.tpot, 50):.1f}",
        f"{100 * counted['hit_tokens'] / queried:.1f} %",
        f"{100 * counted['host_tokens'] / queried:.1f} %",
        f"{counted['stored_blocks']:,}",
    ]
    return f"| {' | '.join(figures)} |"


def _at(figures: Distribution | None, percent: int) -> float:
    return 0.0 if figures is None else figures.at(percent) / 1e6


def main() -> None:
    """Run all rows and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="with prefix hashes")
    parser.add_argument("--requests", type=count, default=2000, help="the first so many")
    parser.add_argument("--load", type=share, default=0.6, help="share of the eager capacity")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    trace = read_trace(options.trace).limit(options.requests)
    speed = speed_of(trace, options.load)
    lines = [
        "| loop | prefix cache | TTFT p50 ms | p90 | p99 | TPOT p50 ms | hit | host | stored |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for loop in (EAGER, OVERLAP):
        for name, row in ROWS.items():
            lines.append(line(name, loop, run(trace, speed, loop, row)))
            sys.stderr.write(f"{lines[-1]}\n")
    table = "\n".join(lines)
    sys.stdout.write(f"{table}\n")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    finish(main)
