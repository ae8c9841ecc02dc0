"""Benchmarks: `python -m bench` prints ratios and the machine, and writes JSON.

Nothing here passes or fails; the suite counts decisions, calls and allocations instead
(tests/tools/test_growth.py).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from bench import replays, steps
from bench.machine import calibration_us, describe, median
from bench.peers import CompiledBuild, DynamoReplay, VllmSteps
from bench.scripts import count, finish
from stepahead_models.traces import bundled_trace, read_trace
from stepahead_specs.explorer import Bounds, explore

Figures: TypeAlias = dict[str, str | int | float | None]
_ROWS: Final = (8, 64, 256, 1024)
_CHECKED: Final = 100
#: What a step may cost as a share of vLLM's, and what it should.
_MUST: Final = {8: 0.50, 64: 0.11, 256: 0.040, 1024: 0.018}
_AIM: Final = {8: 0.30, 64: 0.07, 256: 0.022, 1024: 0.008}


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sections: dict[str, Callable[[argparse.Namespace], list[Figures]]] = {
        "steps": bench_steps,
        "lives": bench_lives,
        "start": bench_start,
        "replay": bench_replay,
        "arrays": bench_arrays,
        "checks": bench_checks,
        "explorer": bench_explorer,
    }
    parser.add_argument("sections", nargs="*", choices=[[], *sections], help="default: all")
    parser.add_argument("--pairs", type=count, default=5, help="paired runs to take the median of")
    parser.add_argument("--trace", type=Path, help="a Mooncake trace; default: the bundled slice")
    parser.add_argument("--requests", type=count, nargs="+", help="lengths of the replayed traces")
    parser.add_argument("--vllm", help="an interpreter that has vLLM 0.33", metavar="PYTHON")
    parser.add_argument("--dynamo", help="an interpreter that has Dynamo 1.6", metavar="PYTHON")
    parser.add_argument(
        "--compiled", help="an interpreter with the compiled build", metavar="PYTHON"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    result: dict[str, object] = {"machine": describe(), "calibration_us": calibration_us()}
    say("machine      " + ", ".join(f"{key} {value}" for key, value in describe().items()))
    say(f"calibration  {calibration_us():.2f} us per turn of a fixed NumPy loop")
    for name in options.sections or sections:
        say(f"\n{name}: {sections[name].__doc__}")
        result[name] = sections[name](options)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2))


# -- the kernel -------------------------------------------------------------------------------


def bench_steps(options: argparse.Namespace) -> list[Figures]:
    """CPU time of a whole decode step, against vLLM's asynchronous scheduler or the calibration."""
    table: list[Figures] = []
    compiled = _compiled(options)
    with VllmSteps(options.vllm) as vllm:
        say(f"peer         {vllm.version or 'vLLM: not installed here, skipped (--vllm PYTHON)'}")
        for rows in _ROWS:
            pairs = [
                (
                    steps.step_us(rows),
                    vllm.step_us(rows),
                    calibration_us(),
                    compiled.step_us(f"step_us({rows})"),
                )
                for _ in range(options.pairs)
            ]
            ours = median([mine for mine, _, _, _ in pairs])
            turns = median([mine / loop for mine, _, loop, _ in pairs])
            peers = [(mine / peer, peer) for mine, peer, _, _ in pairs if peer is not None]
            line = f"{rows:5d} rows  {ours:7.1f} us  {turns:6.1f} calibration turns"
            ratio = median([share for share, _ in peers]) if peers else None
            peer_us = median([peer for _, peer in peers]) if peers else None
            if ratio is not None:
                line += f"  {ratio:.4f} of vLLM's {peer_us:.0f} us"
                line += f" (must {_MUST[rows]:.3f}, aim {_AIM[rows]:.3f})"
            share = _share([(mine, built) for mine, _, _, built in pairs])
            say(line + _in_words(share))
            figures: Figures = {"rows": rows, "us": ours, "turns": turns, "compiled_share": share}
            table.append(figures | {"vllm_us": peer_us, "ratio": ratio})
    return table


def _compiled(options: argparse.Namespace) -> CompiledBuild:
    """Return the compiled build to compare with, after a line that says which it is."""
    compiled = CompiledBuild(options.compiled)
    say(f"compiled     {compiled.version or 'none given, skipped (--compiled PYTHON)'}")
    return compiled


def _share(pairs: list[tuple[float, float | None]]) -> float | None:
    """Return what the compiled build takes of our time; None where there is none."""
    shares = [built / mine for mine, built in pairs if built is not None]
    return median(shares) if shares else None


def _in_words(share: float | None) -> str:
    return "" if share is None else f"; compiled {share:.2f} of it"


def bench_lives(options: argparse.Namespace) -> list[Figures]:
    """CPU time of a request beside its decode steps, and of a cancel."""
    table: list[Figures] = []
    compiled = _compiled(options)
    measures: dict[str, tuple[Callable[[], float], str]] = {
        "arrival to end, prompt of 512 tokens": (partial(steps.life_us, 512), "life_us(512)"),
        "arrival to end, prompt of 8,704 tokens": (partial(steps.life_us, 8704), "life_us(8704)"),
        "cancel of a running request": (steps.cancel_us, "cancel_us()"),
    }
    for name, (measure, call) in measures.items():
        pairs = [
            (measure(), calibration_us(), compiled.step_us(call)) for _ in range(options.pairs)
        ]
        cost = median([mine for mine, _, _ in pairs])
        turns = median([mine / loop for mine, loop, _ in pairs])
        share = _share([(mine, built) for mine, _, built in pairs])
        say(f"{name:42s} {cost:7.1f} us  {turns:6.1f} calibration turns{_in_words(share)}")
        table.append({"what": name, "us": cost, "turns": turns, "compiled_share": share})
    return table


# -- the replay -------------------------------------------------------------------------------


def bench_start(options: argparse.Namespace) -> list[Figures]:
    """CPU seconds, with modules compiled: starting Python, importing, replaying 20 requests."""
    table: list[Figures] = []
    starts: dict[str, Callable[[], replays.Process]] = {
        "bare Python": partial(replays.measured, ("-c", "")),
        "import stepahead": replays.import_kernel,
        "stepahead replay, 20 requests": replays.start_command,
    }
    for name, start in starts.items():
        runs = [start() for _ in range(options.pairs)]
        cost = median([run.cpu_s for run in runs])
        say(f"{name:42s} {cost:6.2f} s  {runs[0].memory / 1e6:6.0f} MB")
        table.append({"what": name, "cpu_s": cost, "memory": runs[0].memory})
    return table


def _trace(options: argparse.Namespace) -> tuple[Path, list[int]]:
    """Return the trace and the lengths to replay."""
    path = options.trace or bundled_trace()
    if options.requests:
        return path, options.requests
    requests = len(read_trace(path))
    say(f"trace        {path.name}, {requests} requests")
    return path, [requests // 4, requests]


def bench_replay(options: argparse.Namespace) -> list[Figures]:
    """CPU seconds and memory of an unchecked replay, by loop and length of the trace."""
    path, lengths = _trace(options)
    table: list[Figures] = []
    compiled = _compiled(options)
    dynamo = DynamoReplay(options.dynamo)
    say(f"peer         {dynamo.version or 'Dynamo: not installed here, skipped (--dynamo PYTHON)'}")
    with tempfile.TemporaryDirectory() as folder:
        for loop in replays.LOOPS:
            before: tuple[int, replays.Process] | None = None
            for length in lengths:
                longer = replays.repeated(path, length, Path(folder) / f"{length}.jsonl")
                runs = [
                    (
                        replays.replay(longer, loop, "--unchecked"),
                        compiled.replay(longer, loop),
                        dynamo.replay(longer),
                    )
                    for _ in range(options.pairs)
                ]
                run = replays.Process(
                    median([mine.cpu_s for mine, _, _ in runs]),
                    min(mine.memory for mine, _, _ in runs),
                )
                line = f"{loop:12s} {length:7d} requests  {run.cpu_s:7.2f} s"
                line += f"  {run.cpu_s / length * 1e6:7.0f} us each"
                beside, words = _beside(runs)
                figures: Figures = {"loop": loop, "requests": length, "cpu_s": run.cpu_s, **beside}
                line += words
                if before is not None:
                    more, grown = length - before[0], run.memory - before[1].memory
                    figures["us_per_more"] = (run.cpu_s - before[1].cpu_s) / more * 1e6
                    figures["bytes_per_more"] = grown / more
                    line += f"; each further one {figures['us_per_more']:.0f} us"
                    line += f", {grown / more:.0f} bytes"
                say(line)
                table.append(figures)
                before = length, run
    return table


def bench_arrays(options: argparse.Namespace) -> list[Figures]:
    """CPU seconds of an unchecked replay with the C module for small arrays, and without it."""
    if find_spec("stepahead._fast") is None:
        say("it is not built here, skipped (make fast)")
        return []
    path, lengths = _trace(options)
    table: list[Figures] = []
    for loop in replays.LOOPS:
        more = ("--unchecked", "--limit", str(lengths[-1]))
        pairs = [
            (replays.replay(path, loop, *more).cpu_s, replays.replay_plain(path, loop, *more).cpu_s)
            for _ in range(options.pairs)
        ]
        cost = median([quick for quick, _ in pairs])
        ratio = median([quick / plain for quick, plain in pairs])
        say(f"{loop:12s} {lengths[-1]:7d} requests  {cost:7.2f} s  {ratio:.2f} of plain NumPy's")
        table.append({"loop": loop, "requests": lengths[-1], "cpu_s": cost, "ratio": ratio})
    return table


_Runs: TypeAlias = list[tuple[replays.Process, replays.Process | None, replays.Process | None]]


def _beside(runs: _Runs) -> tuple[Figures, str]:
    """Return how our runs stand to those of the compiled build and of Dynamo, also in words."""
    figures: Figures = {}
    words = ""
    built = [(mine.cpu_s, one.cpu_s) for mine, one, _ in runs if one is not None]
    ratios = [mine.cpu_s / peer.cpu_s for mine, _, peer in runs if peer is not None]
    both = [one.cpu_s / peer.cpu_s for _, one, peer in runs if one is not None and peer is not None]
    if built:
        figures["compiled_cpu_s"] = median([one for _, one in built])
        figures["compiled_share"] = median([one / mine for mine, one in built])
        words += (
            f"  compiled {figures['compiled_cpu_s']:.2f} s, {figures['compiled_share']:.2f} of it"
        )
    if ratios:
        figures["dynamo_ratio"] = median(ratios)
        words += f"  {figures['dynamo_ratio']:.2f} of Dynamo's"
    if both:
        figures["compiled_dynamo_ratio"] = median(both)
        words += f", compiled {figures['compiled_dynamo_ratio']:.2f}"
    return figures, words


def bench_checks(options: argparse.Namespace) -> list[Figures]:
    """What each check and the journal cost in a replay under overlap, without the start-up."""
    path, lengths = _trace(options)
    table: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        journal = str(Path(folder) / "run.jsonl")
        ways: dict[str, tuple[int, tuple[str, ...]]] = {
            "history hash and sanitizer (default)": (lengths[0], ()),
            "unchecked, with a journal": (lengths[0], ("--unchecked", "--journal", journal)),
            # Each step is judged by every invariant: only for small runs.
            "invariants after each step (--check)": (min(lengths[0], _CHECKED), ("--check",)),
        }
        for name, (limit, flags) in ways.items():
            runs = [
                [
                    replays.replay(path, "overlap", "--limit", str(limit), *more).cpu_s
                    - replays.start_command().cpu_s
                    for more in (("--unchecked",), flags)
                ]
                for _ in range(options.pairs)
            ]
            cost = median([checked for _, checked in runs])
            factor = median([checked / bare for bare, checked in runs])
            say(f"{name:42s} {cost:7.2f} s for {limit:5d} requests  {factor:6.2f} x unchecked")
            table.append({"what": name, "requests": limit, "cpu_s": cost, "x": factor})
    return table


# -- the explorer -----------------------------------------------------------------------------


def bench_explorer(options: argparse.Namespace) -> list[Figures]:
    """States per CPU second of the bounded explorer, within its default bounds."""
    rates: list[float] = []
    states = 0
    for _ in range(min(options.pairs, 3)):
        started = time.thread_time()
        states = explore(Bounds()).states
        rates.append(states / (time.thread_time() - started))
    say(f"{states} states, {median(rates):.0f} states/s")
    return [{"states": states, "states_per_s": median(rates)}]


if __name__ == "__main__":
    finish(main)
