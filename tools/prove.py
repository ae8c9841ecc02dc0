"""The long campaigns, one after the other, and one table of what they did.

    make prove                                   # everything; allow an hour
    .venv/bin/python tools/prove.py --examples 500 --only explorer machines

Exits with 1 unless every row passed. What was not finished is not a pass, and says so.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from rich.console import Console
from rich.table import Table

from stepahead_specs.explorer import Bounds, Options, explore, report
from stepahead_specs.machines import CrowdedMachine, DraftingMachine, KernelMachine
from stepahead_specs.mutants import MUSEUM
from stepahead_specs.mutants.hunt import Hunted, hunt
from stepahead_specs.mutants.tables import EQUIVALENT, cells, hunt_cell

ROOT: Final = Path(__file__).resolve().parents[1]
LADDER: Final = (
    *(Bounds(requests=2, blocks=3, tokens=3, lookahead=ahead) for ahead in range(4)),
    Bounds(requests=2, blocks=3, tokens=3, refusals=True, failures=True),
    Bounds(requests=2, blocks=3, tokens=3, prune=True),
    Bounds(requests=2, blocks=4, tokens=2, prompts=(2,), caching=True),
    Bounds(requests=3, blocks=5, tokens=4),
    Bounds(requests=3, blocks=5, tokens=4, lookahead=0, drafts=2, refusals=True, failures=True),
    Bounds(requests=4, blocks=8, tokens=4),
)

_FORMAL: Final = "tests/specs/test_formal.py"
_SAME_AS_A_CAMPAIGN: Final = ("tests/specs/test_mutants.py", "tests/specs/test_table_mutants.py")


@dataclass(frozen=True, slots=True)
class Row:
    """One campaign: what, within which bounds, how much, how it ended."""

    what: str
    bounds: str
    count: str
    passed: bool
    result: str


def explorer(_: argparse.Namespace) -> Iterator[Row]:
    """Every interleaving of the real kernel within bounds."""
    for bounds in LADDER:
        found = explore(bounds, Options(states_max=10_000_000, seconds_max=1800.0))
        if found.violation is not None:
            sys.stdout.write(report(found) + "\n")
        result = "complete" if found.passed else found.stopped or "violated"
        count = f"{found.states:,} states, {found.edges:,} edges"
        yield Row("explorer", _words(bounds), count, found.passed, result)


def _words(bounds: Bounds) -> str:
    """Name the sizes, and of the rest what is not the default."""
    usual = Bounds()
    sizes = f"{bounds.requests} requests, {bounds.blocks} blocks, {bounds.tokens} tokens"
    named = ("lookahead", "prompts", "caching", "prune", "drafts", "refusals", "failures")
    more = [name for name in named if getattr(bounds, name) != getattr(usual, name)]
    values = (f"{name} {getattr(bounds, name)}".removesuffix(" True") for name in more)
    return ", ".join([sizes, *values])


def machines(options: argparse.Namespace) -> Iterator[Row]:
    """The Hypothesis machines with many examples, from a seed that is printed."""
    kinds: tuple[type[RuleBasedStateMachine], ...] = (
        KernelMachine,
        CrowdedMachine,
        DraftingMachine,
    )
    for kind in kinds:
        number = options.seed if options.seed is not None else SystemRandom().randrange(1 << 32)
        sys.stdout.write(f"{kind.__name__}: seed {number}\n")
        many = settings(
            max_examples=options.examples,
            stateful_step_count=50,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        )
        run_state_machine_as_test(seed(number)(kind), settings=many)
        count = f"{options.examples:,} examples"
        yield Row("machine", kind.__name__, count, passed=True, result=f"seed {number}")


def tables(_: argparse.Namespace) -> Iterator[Row]:
    """Every cell of both state tables, changed in every way."""
    yield _hunted("table mutants", "every cell, every value", map(hunt_cell, cells()))


def museum(_: argparse.Namespace) -> Iterator[Row]:
    """The known defects of real schedulers, planted in the kernel."""
    yield _hunted("defect museum", "known defects", map(hunt, MUSEUM.values()))


def _hunted(what: str, bounds: str, hunts: Iterator[Hunted]) -> Row:
    found = list(hunts)
    alive = [one.name for one in found if not one.killed and one.name not in EQUIVALENT]
    signed = sum(one.name in EQUIVALENT for one in found if not one.killed)
    killed = sum(one.killed for one in found)
    result = f"{killed} killed, {signed} equivalent"
    slowest = max(one.seconds for one in found)
    count = f"{len(found)} mutants, slowest {slowest:.0f} s"
    return Row(what, bounds, count, not alive, result if not alive else f"alive: {alive}")


def formal(_: argparse.Namespace) -> Iterator[Row]:
    """TLA+ and Promela against the kernel's graph."""
    every = ("-m", "campaign or not campaign", _FORMAL)
    yield _tested("formal models", "TLC and Spin", *every)


def tests(_: argparse.Namespace) -> Iterator[Row]:
    """The tests that the default suite leaves out and no other campaign here runs."""
    others = [f"--ignore={path}" for path in (_FORMAL, *_SAME_AS_A_CAMPAIGN)]
    yield _tested("long tests", "what is marked campaign", "-m", "campaign", *others, "tests")


def _tested(what: str, bounds: str, *arguments: str) -> Row:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    skipped = re.findall(r"SKIPPED .*", done.stdout)
    if done.returncode:
        sys.stdout.write(done.stdout)
    return Row(what, bounds, last, not done.returncode, "; ".join(skipped) or "ok")


CAMPAIGNS: Final[dict[str, Callable[[argparse.Namespace], Iterator[Row]]]] = {
    "explorer": explorer,
    "formal": formal,
    "tests": tests,
    "machines": machines,
    "tables": tables,
    "museum": museum,
}


def main() -> int:
    """Run the campaigns and print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=list(CAMPAIGNS))
    parser.add_argument("--examples", type=int, default=5000, help="per machine")
    parser.add_argument("--seed", type=int, help="of the machines; default: a new one, printed")
    options = parser.parse_args()
    table = Table(box=None)
    for name in ("what", "bounds", "states, examples", "result"):
        table.add_column(name, overflow="fold")
    table.add_column("seconds", justify="right")
    passed = True
    console = Console()
    for name in options.only:
        began = time.monotonic()
        for row in CAMPAIGNS[name](options):
            seconds = time.monotonic() - began
            began = time.monotonic()
            passed &= row.passed
            verdict = row.result if row.passed else f"FAILED: {row.result}"
            table.add_row(row.what, row.bounds, row.count, verdict, f"{seconds:.0f}")
            console.print(f"{row.what}: {row.bounds}: {row.count}: {verdict}", highlight=False)
    console.print(table)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
