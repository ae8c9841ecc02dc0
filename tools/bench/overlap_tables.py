"""Print the README's two tables: what overlap does to a decode-heavy load, closed loop and paced.

    .venv/bin/python tools/bench/overlap_tables.py            # print
    .venv/bin/python tools/bench/overlap_tables.py --write    # and put them into README.md

Simulated times, so the same on every machine. It takes a few minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
TRACE: Final = "models/stepahead_models/data/servegen_m-large_head.jsonl.zst"
BEGIN: Final = "<!-- tables: begin -->\n"
END: Final = "<!-- tables: end -->\n"


def compare(*options: str) -> dict[str, Any]:
    """Return the JSON result of one `stepahead compare` of the trace."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "stepahead_tools", "compare", TRACE, *options]
        print("$ stepahead", *command[3:], file=sys.stderr)
        done = subprocess.run(
            [*command, "--json", str(result)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        parsed: dict[str, Any] = json.loads(result.read_text())
        return parsed


def closed_loop() -> list[str]:
    """Return the table of closed loops by concurrency and CPU cost."""
    lines = [
        f"`stepahead compare {TRACE} --concurrency C --cpu-scale X`",
        "",
        (
            "| C | X | tokens/s eager | overlap | change | TPOT p50 ms eager | overlap | change "
            "| host gap per step ms eager | overlap |"
        ),
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for concurrency in (16, 64):
        for scale in (0.5, 1, 2):
            runs = compare("--concurrency", str(concurrency), "--cpu-scale", str(scale))["runs"]
            eager, overlap = runs["eager"], runs["overlap"]
            cells = [str(concurrency), str(scale)]
            cells += pair(eager["output_tokens_per_s"], overlap["output_tokens_per_s"], 0)
            cells += pair(eager["tpot_ms"]["p50"], overlap["tpot_ms"]["p50"], 2)
            cells += pair(eager["host_gap_ms"]["mean"], overlap["host_gap_ms"]["mean"], 2)[:2]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def paced() -> list[str]:
    """Return the table of paced arrivals by load."""
    lines = [
        f"`stepahead compare {TRACE} --load L`",
        "",
        (
            "| L | TTFT p50 ms eager | overlap | change | TTFT p99 ms eager | overlap | change "
            "| TPOT p50 ms eager | overlap | change |"
        ),
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for load in (0.3, 0.6, 0.9):
        runs = compare("--load", str(load))["runs"]
        eager, overlap = runs["eager"], runs["overlap"]
        label = str(load) + (
            " (overloaded)" if eager["overloaded"] or overlap["overloaded"] else ""
        )
        cells = [label]
        for metric, rank in (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50")):
            cells += pair(eager[metric][rank], overlap[metric][rank], 1)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def pair(before: float, after: float, digits: int) -> list[str]:
    """Return two numbers and their relative change as table cells."""
    return [f"{before:.{digits}f}", f"{after:.{digits}f}", f"{100 * (after / before - 1):+z.1f} %"]


def main() -> None:
    """Run everything and print or write the tables."""
    text = "\n".join([*closed_loop(), "", *paced()]) + "\n"
    print(text)
    if "--write" in sys.argv[1:]:
        readme = README.read_text()
        head, rest = readme.split(BEGIN)
        _, tail = rest.split(END)
        README.write_text(head + BEGIN + "\n" + text + "\n" + END + tail)


if __name__ == "__main__":
    main()
