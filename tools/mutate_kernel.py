"""Score the suite on mutants that nobody thought of: mutmut's operators on `kernel/`.

    pip install mutmut
    python tools/mutate_kernel.py [--sample N] [--seed N] [--modules a,b] [--seconds N]

Each mutant changes one operator, number, name or argument of one function. It lives in a process
of its own, where the general searches of `stepahead mutants` come first (they take seconds, not the
minutes of a test run), the kernel's own tests and the recorded scenarios after them. What none of
them notices is printed as a diff; `tools/mutation-survivors.md` judges those that are known. A
mutant that runs too long counts as killed: it hangs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any, Final

import pytest

from stepahead_specs.mutants.hunt import explored, walked, wandered
from stepahead_specs.mutants.patching import StaleMutant, code_of, find

ROOT: Final = Path(__file__).resolve().parent.parent
KERNEL: Final = ROOT / "kernel" / "stepahead"
#: Declarations, and what a person reads: tests compare their texts, the searches do not see them.
LEFT_OUT: Final = ("__init__", "arrays", "errors", "events", "commands")
#: How a mutant's process says who noticed it.
VERDICTS: Final = {
    0: "survives",
    1: "walk",
    2: "tiers",
    3: "explorer",
    4: "tests",
    5: "hangs",
    6: "broken",
}
_HANGS: Final = 5
#: The judge itself failed; never to be counted as a kill.
_BROKEN: Final = 6
_SCENARIOS: Final = range(100)
_TIERS: Final = range(40)
_STATES: Final = 300
_TESTS: Final = ("kernel", "specs/test_scenarios.py")


@dataclass(frozen=True, slots=True)
class Change:
    """One mutant: the function, and its source before and after."""

    place: str
    before: str
    after: str

    def __str__(self) -> str:
        """Return what differs, in a few lines."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), lineterm="", n=0
        )
        kept = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        return "\n".join([f"in {self.place}", *kept])


def changes(module: str) -> Iterator[Callable[[], Change]]:
    """Return every mutant of one module of the kernel, in order; each is written when called."""
    # mutmut is no dependency of ours, so its types are not there to be checked.
    mutmut: Any = importlib.import_module("mutmut.mutation.file_mutation")
    cst: Any = importlib.import_module("libcst")
    path = KERNEL / f"{module}.py"
    tree, mutations, _, _ = mutmut.create_mutations(str(path), path.read_text(encoding="utf-8"))
    owners = dict(_functions(cst, tree))
    for mutation in mutations:
        function = mutation.contained_by_top_level_function
        if function is None or id(function) not in owners:
            continue
        yield partial(_written, mutmut, cst, mutation, owners[id(function)])


def _written(mutmut: Any, cst: Any, mutation: Any, place: str) -> Change:  # noqa: ANN401 # as above
    function = mutation.contained_by_top_level_function
    changed = mutmut.deep_replace(function, mutation.original_node, mutation.mutated_node)
    before, after = (cst.Module([node]).code for node in (function, changed))
    return Change(place, textwrap.dedent(before), textwrap.dedent(after))


def _functions(cst: Any, tree: Any) -> Iterator[tuple[int, str]]:  # noqa: ANN401 # see `changes`
    for node in tree.body:
        if isinstance(node, cst.FunctionDef):
            yield id(node), node.name.value
        elif isinstance(node, cst.ClassDef):
            for part in node.body.body:
                if isinstance(part, cst.FunctionDef):
                    yield id(part), f"{node.name.value}.{part.name.value}"


def judge(change: Change, seconds: float) -> str:
    """Let the mutant live in a process of its own; return who noticed, or that it survives."""
    function = find(change.place)
    child = os.fork()
    if child == 0:
        _silence()
        os._exit(_verdict(function, change))
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return VERDICTS.get(os.waitstatus_to_exitcode(status), "crash")
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return VERDICTS[_HANGS]


def _verdict(function: FunctionType, change: Change) -> int:
    try:
        function.__code__ = code_of(function, change.after)
        searches = (walked(_SCENARIOS), wandered(_TIERS), explored(states_max=_STATES))
        for number, search in enumerate(searches, start=1):
            if search()[0] is not None:
                return number
        tests = [str(ROOT / "tests" / name) for name in _TESTS]
        # Hypothesis is imported long before, by the searches.
        quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider")
        return 4 if pytest.main(["-x", "-q", *quiet, *tests]) else 0
    except BaseException:  # noqa: BLE001 - the searches report what a mutant does: this is ours
        return _BROKEN


def _silence() -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(sink, stream)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a sample, print the survivors and the score."""
    parser = argparse.ArgumentParser(description="Mutate the kernel and count what is noticed.")
    parser.add_argument("--sample", type=int, default=100, help="mutants; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", default="", help="names, separated by commas; default all")
    parser.add_argument("--seconds", type=float, default=60.0, help="a mutant may take")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)  # mutmut reads its configuration from here
    names = [path.stem for path in sorted(KERNEL.glob("*.py")) if path.stem not in LEFT_OUT]
    names = options.modules.split(",") if options.modules else names
    every = [change for name in names for change in changes(name)]
    chosen = every
    if options.sample and options.sample < len(every):
        picked = Random(options.seed).sample(range(len(every)), options.sample)  # noqa: S311
        chosen = [every[index] for index in sorted(picked)]
    found: Counter[str] = Counter()
    for written in chosen:
        change = written()
        try:
            verdict = judge(change, options.seconds)
        except StaleMutant:
            verdict = "not a plain function"
        found[verdict] += 1
        print(f"{verdict:10} {change.place}", file=sys.stderr, flush=True)
        if verdict in ("survives", "broken"):
            print(change, end="\n\n", flush=True)
    judged = len(chosen) - found["not a plain function"]
    killed = judged - found["survives"] - found["broken"]
    print(f"{len(every)} mutants in {len(names)} modules, {judged} judged")
    print(", ".join(f"{name} {count}" for name, count in found.most_common()))
    print(f"score {killed}/{judged} = {killed / max(judged, 1):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
