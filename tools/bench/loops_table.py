"""Print what the three loops make of five workloads, with and without pruning, and under noise.

    .venv/bin/python tools/bench/loops_table.py                         # of what ships; print
    .venv/bin/python tools/bench/loops_table.py TRACES                  # of all five
    .venv/bin/python tools/bench/loops_table.py TRACES --write          # and into the page

TRACES is a folder with the traces named below. What the folder lacks is taken from the package, of
which three ship long enough heads; what neither has is named and left out. Simulated times, so the
same on every machine. It takes some minutes; finished rows are kept in ``--rows FILE``, so that a
second call goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from bench.scripts import finish
from stepahead_models.profiles import Profile, load_profile
from stepahead_models.traces import Trace, bundled_trace, read_trace
from stepahead_tools.distribution import Distribution
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP
from stepahead_tools.metrics import measure
from stepahead_tools.options import RunOptions
from stepahead_tools.pacing import Pacing
from stepahead_tools.runs import measure_capacity, run_loop, set_up
from stepahead_tools.settings import resolve

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "specs" / "just-in-time.md"
TRACES: Final = {
    "Mooncake conversation": "mooncake_fast25_conversation.jsonl.zst",
    "Azure code": "azure_llm_2023_code.csv.zst",
    "Azure conversation": "azure_llm_2023_conv_first_half.csv.zst",
    "ServeGen": "servegen_m-large_10rps.jsonl.zst",
    "cancel mix": "own_cancel_mix.jsonl.zst",
}
SHIPPED: Final = {
    "Mooncake conversation": "mooncake_conversation_head.jsonl.zst",
    "Azure conversation": "azure_conversation_head.csv.zst",
    "ServeGen": "servegen_m-large_head.jsonl.zst",
}
#: Requests taken, from the first on; long prompts take long.
LIMITS: Final = {
    "Mooncake conversation": 500,
    "Azure code": 1000,
    "Azure conversation": 1000,
    "ServeGen": 1000,
    "cancel mix": 1000,
}
DEVICES: Final = ("rngd-llama-3.1-8b", "fast")
LOADS: Final = (0.3, 0.6, 0.9)
NOISES: Final = (0, 5, 10, 20, 40)
SHARES: Final = (0.1, 1.0, 10.0)
TTFT_AIM: Final = 0.02
TPOT_AIM: Final = 0.01

Row = dict[str, Any]


def profile_of(name: str, *, prune: bool) -> Profile:
    """Return a device; to prune, as if it took a changed batch at the price of the fast one."""
    profile = load_profile(name)
    if not prune or profile.changed_batch.allowed.value:
        return profile
    return msgspec.structs.replace(profile, changed_batch=load_profile("fast").changed_batch)


def run_row(trace: Trace, speed: float, key: Row) -> Row:
    """Run the three loops and return the row of the table."""
    profile = profile_of(key["device"], prune=key["prune"])
    options = RunOptions(
        trace=trace.name,
        unchecked=True,
        prune=key["prune"],
        noise=key.get("noise", 0.0),
        late_share=key.get("share", 1.0),
        late_joiners=key.get("joins", False),
    )
    settings = replace(resolve(options, profile), pacing=Pacing("speed", speed))
    scene = set_up(trace, settings, profile, None)
    row: Row = dict(key)
    for loop in (EAGER, OVERLAP, JUST_IN_TIME):
        record = run_loop(scene, loop)
        metrics = measure(record)
        row[loop.name] = {
            "ttft": [at(metrics.ttft, 50), at(metrics.ttft, 99)],
            "tpot": at(metrics.tpot, 50),
            "wasted": record.wasted_eos.rows + record.wasted_cancel.rows,
            "exposed": record.exposed_preparations / max(record.preparations, 1),
            "margin": record.margin_ppm,
            "overloaded": metrics.overloaded,
        }
    return row


def at(figures: Distribution | None, percent: int) -> float:
    """Return a percentile in ms."""
    return 0.0 if figures is None else figures.at(percent) / 1e6


def found(folder: Path | None) -> dict[str, Path]:
    """Return the file of each workload that the folder or the package has.

    Raises:
        OptionError: there is no such folder.
    """
    if folder is not None and not folder.is_dir():
        raise OptionError(f"{folder} is no folder; give one with {', '.join(TRACES.values())}")
    paths: dict[str, Path] = {}
    for name, file in TRACES.items():
        if folder is not None and (folder / file).exists():
            paths[name] = folder / file
        elif name in SHIPPED:
            paths[name] = bundled_trace().with_name(SHIPPED[name])
    return paths


def keys(traces: Collection[str]) -> Iterator[Row]:
    """Yield what identifies each row of these workloads, in the order of the tables."""
    for device in DEVICES:
        for trace in traces:
            for load in LOADS:
                for prune in (False, True):
                    yield {
                        "trace": trace,
                        "device": device,
                        "limit": LIMITS[trace],
                        "load": load,
                        "prune": prune,
                    }
    steady = {"trace": "ServeGen", "device": DEVICES[0], "limit": 1000, "load": 0.6}
    for joins in (False, True):
        for noise in NOISES:
            yield {**steady, "prune": False, "noise": float(noise), "joins": joins}
    for share in SHARES:
        yield {**steady, "prune": False, "noise": 20.0, "joins": False, "share": share}


def collect(paths: Mapping[str, Path], kept: Path | None) -> list[Row]:
    """Run every row that is not kept from an earlier call; return all, in order."""
    rows: dict[tuple[Any, ...], Row] = {}
    if kept is not None and kept.exists():
        before: list[Row] = [json.loads(line) for line in kept.read_text().splitlines()]
        rows = {ident(row): row for row in before}
    speeds: dict[tuple[str, str, int], tuple[Trace, Fraction]] = {}
    for key in keys(paths):
        if ident(key) in rows:
            continue
        name, device, limit = key["trace"], key["device"], key["limit"]
        if (name, device, limit) not in speeds:
            speeds[name, device, limit] = capacity(paths[name], name, device, limit)
        trace, speed = speeds[name, device, limit]
        row = rows[ident(key)] = run_row(trace, float(Fraction(str(key["load"])) * speed), key)
        if kept is not None:
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)
    return [rows[ident(key)] for key in keys(paths)]


def ident(row: Row) -> tuple[Any, ...]:
    """Return what tells the rows of the tables apart."""
    names = ("trace", "device", "limit", "load", "prune", "noise", "joins", "share")
    return tuple(row.get(name) for name in names)


def capacity(path: Path, name: str, device: str, limit: int) -> tuple[Trace, Fraction]:
    """Return the requests, and the factor on their arrival rate that is load 1."""
    trace = read_trace(path).limit(limit)
    profile = load_profile(device)
    scene = set_up(trace, resolve(RunOptions(trace=name, unchecked=True), profile), profile, None)
    rate = Fraction((len(trace) - 1) * 1_000_000_000, trace.span_ns)
    return trace, measure_capacity(scene) / rate


# -- tables -----------------------------------------------------------------------------------


def main_table(rows: list[Row], device: str) -> list[str]:
    """Return the table of one device."""
    lines = [
        (
            "| trace | requests | load | dead rows | TTFT p50 ms eager | overlap | just-in-time "
            "| to eager | TTFT p99 ms eager | overlap | just-in-time | to eager "
            "| TPOT p50 ms eager | overlap | just-in-time | to overlap "
            "| wasted rows overlap | just-in-time | exposed % | aim |"
        ),
        "|---|---:|---:|---|" + "---:|" * 15 + "---|",
    ]
    for row in rows:
        if row["device"] != device or "noise" in row:
            continue
        eager, overlap, late = (row[loop.name] for loop in (EAGER, OVERLAP, JUST_IN_TIME))
        cells = [
            row["trace"],
            str(row["limit"]),
            str(row["load"]),
            "dropped" if row["prune"] else "masked",
        ]
        for place in (0, 1):
            times = [run["ttft"][place] for run in (eager, overlap, late)]
            cells += [*(digits(time) for time in times), change(times[0], times[2])]
        times = [run["tpot"] for run in (eager, overlap, late)]
        cells += [*(digits(time) for time in times), change(times[1], times[2])]
        cells += [str(overlap["wasted"]), str(late["wasted"]), f"{100 * late['exposed']:.2f}"]
        cells.append(aim(row))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def aim(row: Row) -> str:
    """Say whether the aim is met, or which part of it is not."""
    eager, overlap, late = (row[loop.name] for loop in (EAGER, OVERLAP, JUST_IN_TIME))
    if any(run["overloaded"] for run in (eager, overlap, late)):
        return "overloaded"
    missed = [
        f"TTFT p{percent}"
        for place, percent in enumerate((50, 99))
        if late["ttft"][place] > eager["ttft"][place] * (1 + TTFT_AIM)
    ]
    if late["tpot"] > overlap["tpot"] * (1 + TPOT_AIM):
        missed.append("TPOT")
    if row["prune"] and late["wasted"]:
        missed.append("wasted rows")
    return "no: " + ", ".join(missed) if missed else "met"


def noise_tables(rows: list[Row]) -> list[str]:
    """Return the table of exposed preparation against margin, by noise and by late share."""
    lines = [
        (
            "| noise ± % | late share % | late joiners | margin at the end % | exposed % "
            "| TPOT p50 to overlap | TTFT p50 to eager | TTFT p99 to eager |"
        ),
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "noise" not in row:
            continue
        eager, overlap, late = (row[loop.name] for loop in (EAGER, OVERLAP, JUST_IN_TIME))
        cells = [
            f"{row['noise']:g}",
            f"{row.get('share', 1.0):g}",
            "yes" if row["joins"] else "no",
            f"{late['margin'] / 10_000:.2f}",
            f"{100 * late['exposed']:.2f}",
            change(overlap["tpot"], late["tpot"]),
            change(eager["ttft"][0], late["ttft"][0]),
            change(eager["ttft"][1], late["ttft"][1]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def digits(time: float) -> str:
    """Return a time in ms with about four digits."""
    return f"{time:.0f}" if time >= 1000 else f"{time:.1f}" if time >= 100 else f"{time:.2f}"  # noqa: PLR2004 # ms


def change(before: float, after: float) -> str:
    """Return the relative change in percent."""
    return f"{100 * (after / before - 1):+z.1f} %" if before else "-"


def put(page: str, name: str, lines: list[str]) -> str:
    """Return the page with a table between its marks."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = page.split(begin)
    return head + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.split(end)[1]


def main() -> None:
    """Run everything and print or write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="?", help="default: what ships alone")
    parser.add_argument("--rows", type=Path, help="finished rows, for a second call")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args()
    paths = found(options.traces)
    missing = [f"{name} ({TRACES[name]})" for name in TRACES if name not in paths]
    if missing and options.write:
        raise OptionError(f"--write needs all workloads; missing: {', '.join(missing)}")
    if missing:
        sys.stderr.write(f"left out, for want of a trace: {', '.join(missing)}\n")
    rows = collect(paths, options.rows)
    tables = {device: main_table(rows, device) for device in DEVICES}
    tables["noise"] = noise_tables(rows)
    for lines in tables.values():
        print("\n".join(lines), end="\n\n")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, lines in tables.items():
            page = put(page, name, lines)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    finish(main)
