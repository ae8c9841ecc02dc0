"""Who may notice a mutant: single searches and single tests, each with what it runs and costs."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

from mutation.changes import KERNEL, ROOT
from stepahead_specs.mutants.hunt import BOUNDS, Search, explored, walked, wandered

_WALKS: Final = range(80)
_TIERS: Final = range(40)
_STATES: Final = 300
_PROFILE: Final = "mutation"
_EXAMPLES: Final = 30
#: Tests of the kernel, first those that look at nothing else.
TESTS: Final = (
    "kernel",
    "specs/test_scenarios.py",
    "specs/test_reference.py",
    "specs/test_canonical_forms.py",
    "specs/test_turns.py",
    "models/test_just_in_time.py",
    "models/test_simulation.py",
)

Trace = Callable[[FrameType, str, object], Any]


@dataclass(frozen=True, slots=True)
class Killer:
    """One who may notice: what it does, what it runs of the kernel, and its CPU time, s.

    ``lines`` has a number for each module: bit ``n`` is set if line ``n`` runs.
    """

    name: str
    notices: Callable[[], bool]
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0


class Tests:
    """A plugin that collects the tests and lets ``campaign`` run them, one by one, as it likes."""

    def __init__(self, campaign: Callable[[list[Killer]], None]) -> None:
        self._campaign = campaign
        self._failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Let Hypothesis take few examples, the same every time, and shrink none."""
        settings.register_profile(
            _PROFILE,
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=_EXAMPLES,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile(_PROFILE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Hand every test over instead of running it."""
        session.config.pluginmanager.unregister(name="terminalreporter")
        self._campaign([Killer(item.nodeid, partial(self._fails, item)) for item in session.items])
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember that something failed."""
        self._failed |= report.failed

    def _fails(self, item: pytest.Item) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failed


def collected(campaign: Callable[[list[Killer]], None]) -> int:
    """Collect the tests and call ``campaign`` with them; return the exit status of pytest."""
    names = [str(ROOT / "tests" / name) for name in TESTS]
    quiet = ("-q", "-s", "-p", "no:cacheprovider")
    # Hypothesis is imported before, by the searches.
    imported = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return int(pytest.main([*quiet, *imported, *names], plugins=[Tests(campaign)]))


def searches() -> Iterator[Killer]:
    """Iterate over single walks, walks over the tiers, and explorations."""
    for seed in _WALKS:
        yield Killer(f"walk {seed}", partial(_finds, walked(range(seed, seed + 1))))
    for seed in _TIERS:
        yield Killer(f"tiers {seed}", partial(_finds, wandered(range(seed, seed + 1))))
    for number, bounds in enumerate(BOUNDS):
        search = explored([bounds], states_max=_STATES)
        yield Killer(f"explorer {number}", partial(_finds, search))


def _finds(search: Search) -> bool:
    return search()[0] is not None


def measured(killers: Iterable[Killer], known: Path) -> list[Killer]:
    """Run each once on the kernel as it is, for its time and the lines that it runs.

    Who notices something in the kernel as it is, or fails otherwise, is named and left out.
    ``known`` is a file that remembers the lines until the kernel changes, or who runs them.
    """
    memory: dict[str, tuple[str, dict[str, int]]] = {}
    if known.exists():
        memory = json.loads(known.read_text(encoding="utf-8"))
    kernel, searches = _digest(KERNEL), _digest(ROOT / "specs" / "stepahead_specs")
    every: list[Killer] = []
    for killer in killers:
        own = ROOT / killer.name.partition("::")[0]
        digest = kernel + (_digest(own) if own.is_file() else searches)
        remembered = killer.name in memory and memory[killer.name][0] == digest
        began = cpu_seconds()
        lines = memory[killer.name][1] if remembered else {}
        try:
            noticed = killer.notices() if remembered else _traced(killer, lines)
        except Exception:  # noqa: BLE001 - a search that does not fit the kernel of today
            noticed = True
        if noticed:
            sys.stderr.write(f"{killer.name} fails without any mutant, and is left out\n")
            continue
        memory[killer.name] = (digest, lines)
        every.append(Killer(killer.name, killer.notices, lines, cpu_seconds() - began))
    known.write_text(json.dumps(memory), encoding="utf-8")
    return every


@cache
def _digest(path: Path) -> str:
    """Return a digest of a file, or of all sources in a folder."""
    hasher = hashlib.sha256()
    for source in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
        hasher.update(source.read_bytes())
    return hasher.hexdigest()


def cpu_seconds() -> float:
    """Return the CPU time of this process and the children that it waited for, s."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _traced(killer: Killer, lines: dict[str, int]) -> bool:
    """Let the killer run, and write down what it runs of the kernel; tell whether it notices."""
    folder = f"{KERNEL}/"
    seen: set[tuple[str, int]] = set()

    def enters(frame: FrameType, _event: str, _value: object) -> Trace | None:
        path = frame.f_code.co_filename
        if not path.startswith(folder):
            return None
        module = path[len(folder) : -len(".py")]
        seen.add((module, frame.f_lineno))

        def runs(frame: FrameType, _event: str, _value: object) -> Trace:
            seen.add((module, frame.f_lineno))
            return runs

        return runs

    before = sys.gettrace()
    sys.settrace(enters)
    try:
        noticed = killer.notices()
    finally:
        sys.settrace(before)
    for module, line in seen:
        lines[module] = lines.get(module, 0) | 1 << line
    return noticed


def relevant(killers: Sequence[Killer], module: str, lines: Iterable[int]) -> list[int]:
    """Return the numbers of those that run one of the lines of a module."""
    wanted = sum(1 << line for line in lines)
    return [n for n, killer in enumerate(killers) if killer.lines.get(module, 0) & wanted]
