"""Score the suite on mutants that nobody thought of: mutmut's operators on `kernel/`.

    pip install mutmut
    python -m mutation [--modules a,b] [--sample N] [--again] [--budget N]
    python -m mutation --report

It judges what `--results` does not hold yet: first everything, after a change of the kernel the
functions that changed. What lives is printed; `tools/mutation/judgements.toml` says why
it may. `--again` judges what lives without such a reason once more: after a new test, or with
a larger budget.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from mutation.changes import ROOT, Change, changes, modules
from mutation.judge import at_import, judge
from mutation.killers import Killer, collected, measured, relevant, searches
from mutation.report import PAGE, report
from mutation.results import LIVES, Results, judged, judgements


class Order:
    """Who comes first: who is likeliest to notice per second, from what was seen so far."""

    def __init__(self, killers: Sequence[Killer]) -> None:
        self._killers = killers
        self._kills: Counter[tuple[str, int]] = Counter()
        self._tries: Counter[tuple[str, int]] = Counter()

    def sorted(self, numbers: list[int], change: Change) -> list[int]:
        """Return the numbers of killers, the best first."""

        def worth(number: int) -> float:
            overall = (self._kills["", number] + 0.3) / (self._tries["", number] + 3)
            here = (self._kills[change.place, number] + 2 * overall) / (
                self._tries[change.place, number] + 2
            )
            return here / (self._killers[number].seconds + 0.003)

        return sorted(numbers, key=worth, reverse=True)

    def learn(self, numbers: Sequence[int], change: Change, *, noticed: bool) -> None:
        """Remember who tried, and whether the last of them noticed."""
        for index, number in enumerate(numbers):
            kill = noticed and index == len(numbers) - 1
            for place in ("", change.place):
                self._tries[place, number] += 1
                self._kills[place, number] += kill


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print what lives and the counts; or write the page."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--modules", default="", help="names, separated by commas; default all")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--budget", type=float, default=15.0, help="CPU s that a mutant may live")
    parser.add_argument("--again", action="store_true", help="judge what lives once more")
    parser.add_argument("--report", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--results", type=Path, default=ROOT / "mutants" / "results.jsonl")
    options = parser.parse_args(arguments)
    options.results = options.results.absolute()
    os.chdir(ROOT)  # mutmut reads its configuration from here
    results = Results(options.results)
    names = options.modules.split(",") if options.modules else modules()
    every: Iterator[Change] = (change for name in names for change in changes(name))
    if options.report:
        PAGE.write_text(report(every, results, judgements()), encoding="utf-8")
        return 0
    if options.sample:
        every = iter(_sample(list(every), options.sample, options.seed))
    todo = _due(every, results, again=options.again)
    lines = options.results.with_suffix(".lines.json")
    return collected(lambda tests: _campaign([*tests, *searches()], todo, results, lines, options))


def _sample(every: list[Change], count: int, seed: int) -> list[Change]:
    return Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - repeatable, not secret


def _due(every: Iterable[Change], results: Results, *, again: bool) -> Iterator[Change]:
    known = judgements()
    for change in every:
        verdict = results.of(change)
        lives = verdict is not None and verdict.how in LIVES
        if verdict is None or (again and lives and judged(change, known) is None):
            yield change


def _campaign(
    killers: Sequence[Killer],
    todo: Iterable[Change],
    results: Results,
    lines: Path,
    options: argparse.Namespace,
) -> None:
    killers = measured(killers, lines)
    os.chdir(ROOT)  # tests leave it
    # A collection in a mutant's process would copy all that it shares with this one.
    gc.collect()
    gc.freeze()
    order = Order(killers)
    found: Counter[str] = Counter()
    seconds = 0.0
    for done, change in enumerate(todo, start=1):
        whoever = list(range(len(killers)))
        if not at_import(change):
            whoever = relevant(killers, change.module, change.lines)
        numbers = order.sorted(whoever, change)
        verdict = judge(change, [killers[number] for number in numbers], options.budget)
        order.learn(numbers[: verdict.tried], change, noticed=bool(verdict.killer))
        results.add(change, verdict)
        found[verdict.how] += 1
        seconds += verdict.seconds
        if verdict.how in LIVES:
            print(f"{verdict.how} {verdict.tried}/{verdict.among} {change}", flush=True)
        if done % 50 == 0:
            print(f"{done} judged, {seconds / done:.2f} CPU s each", file=sys.stderr, flush=True)
    print(", ".join(f"{name} {count}" for name, count in found.most_common()))


if __name__ == "__main__":
    sys.exit(main())
