"""The hunt: the general searches, pointed at one mutant at a time.

Nothing here knows what a mutant does. First random walks over the bench, a few thousand steps a
second; who survives them meets the bounded explorer, on bounds with prefix caching, refusals and
failures, for so many states; who survives that as well, more walks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Final

from stepahead_specs.counting import counted
from stepahead_specs.explorer import Bounds, Exploration, Options, explore
from stepahead_specs.invariants import INVARIANTS
from stepahead_specs.machines import EOS
from stepahead_specs.mutants.registry import Mutant
from stepahead_specs.oracle import HashModel
from stepahead_specs.patience import patience
from stepahead_specs.story import tell
from stepahead_specs.tier_bench import TierBench
from stepahead_specs.tier_walk import tiers, wander
from stepahead_specs.walk import Failure, Scenario, draw, failed, play, shrink

#: Scenarios that a mutant has to survive before the explorer comes, and after it.
SCENARIOS: Final = (120, 600)
#: What the explorer searches, and how many states of each. It need not finish here: a hunt claims
#: nothing about what it does not find.
BOUNDS: Final = (
    Bounds(requests=3, blocks=4, tokens=2, prompts=(2,), caching=True, refusals=True),
    Bounds(requests=2, blocks=4, tokens=2, prompts=(2,), caching=True),
    Bounds(requests=2, blocks=3, tokens=2, refusals=True, failures=True),
    Bounds(requests=2, blocks=4, tokens=2, lookahead=2, prune=True),
)
_STATES: Final = 1_000
#: Moves of a walk over the tiers.
_WANDER: Final = 30
#: A scenario takes a fraction of a second; who takes so long, on however slow a machine, hangs.
_PATIENCE_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunted:
    """How a hunt ended.

    ``keys`` name who noticed, all in the same step: invariants by key, `kernel` where it raised,
    `bench` where it asked for what no host can do, `progress` where it never ends. No key: the
    mutant survived. ``tried`` are scenarios of a walk or states of an exploration.
    """

    name: str
    keys: tuple[str, ...]
    sentence: str
    story: str
    search: str
    tried: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Tell whether anybody noticed."""
        return bool(self.keys)


def hunt(mutant: Mutant, *, seed: int = 0, shortest: bool = False) -> Hunted:
    """Hunt one mutant of the museum; ``shortest``: make the scenario that kills it short."""
    if mutant.tiers:
        return chase(mutant.name, mutant.alive, (wandered(range(seed, seed + sum(SCENARIOS))),))
    few, many = SCENARIOS
    searches = (
        walked(range(seed, seed + few), shortest=shortest),
        explored(),
        walked(range(seed + few, seed + few + many), shortest=shortest),
    )
    return chase(mutant.name, mutant.alive, searches)


#: One search: what was found (None: nothing), its name, and how much was tried.
Search = Callable[[], tuple[Failure | None, str, int]]


def chase(
    name: str, alive: Callable[[], AbstractContextManager[None]], searches: Sequence[Search]
) -> Hunted:
    """Run the searches, one after the other, on a living mutant until one finds something."""
    began = time.monotonic()
    found: Failure | None = None
    kind, tried = "", 0
    with alive():
        for search in searches:
            found, kind, tried = search()
            if found is not None:
                break
    return Hunted(
        name=name,
        keys=found.keys if found else (),
        sentence=found.sentence if found else "nobody noticed",
        story=found.story if found else "",
        search=kind,
        tried=tried,
        seconds=time.monotonic() - began,
    )


def walked(seeds: range, *, shortest: bool = False) -> Search:
    """Return the search by random walks, one for each seed."""

    def search() -> tuple[Failure | None, str, int]:
        for tried, seed in enumerate(seeds, start=1):
            scenario = draw(Random(seed))  # noqa: S311 - repeatable, not secret
            failure = _played(scenario)
            if failure is not None:
                if shortest:
                    _, failure = shrink(scenario, failure, _played)
                return failure, "walk", tried
        return None, "walk", len(seeds)

    return search


def _played(scenario: Scenario) -> Failure | None:
    with patience(_PATIENCE_S):
        return play(scenario)


def wandered(seeds: range) -> Search:
    """Return the search by random walks over a kernel with all its tiers."""

    def search() -> tuple[Failure | None, str, int]:
        for tried, seed in enumerate(seeds, start=1):
            choose = Random(seed).choice  # noqa: S311 - repeatable, not secret
            bench = TierBench(tiers(choose), HashModel(eos=EOS))
            try:
                with patience(_PATIENCE_S):
                    wander(bench, choose, _WANDER)
            except Exception as error:  # noqa: BLE001 - whatever a mutant raises is a finding
                return failed(error, bench.journal), "walk", tried
        return None, "walk", len(seeds)

    return search


def explored(bounds: Iterable[Bounds] | None = None, states_max: int = _STATES) -> Search:
    """Return the search by the bounded explorer; what it finds is shortest by itself."""

    def search() -> tuple[Failure | None, str, int]:
        states = 0
        for entry in BOUNDS if bounds is None else bounds:
            try:
                found = explore(entry, Options(states_max=states_max))
            except Exception as error:  # noqa: BLE001 - a kernel that cannot even be copied
                return failed(error, []), "explorer", states
            states += found.states
            if found.violation is not None:
                return _failure(found), "explorer", states
        return None, "explorer", states

    return search


def _failure(found: Exploration) -> Failure | None:
    if found.violation is None:
        return None
    sentences = found.violation.sentences
    keys = tuple(dict.fromkeys(_key(sentence) for sentence in sentences))
    story = tell(found.violation.journal)
    return Failure(keys, sentences[0], story, len(found.violation.events))


def _key(sentence: str) -> str:
    word = sentence.partition(" ")[0]
    if word.startswith("INV-"):
        return word
    return "kernel" if sentence.startswith("the kernel") else "progress"


# -- reports ----------------------------------------------------------------------------------


def row(hunted: Hunted) -> tuple[str, str, str, str]:
    """Return the cells of one line: mutant, who noticed, what was tried, seconds."""
    by = ", ".join(hunted.keys) if hunted.killed else "SURVIVES"
    tried = counted(hunted.tried, "scenario" if hunted.search == "walk" else "state")
    return hunted.name, by, f"{hunted.search}, {tried}", f"{hunted.seconds:.1f} s"


def matrix(hunts: Iterable[Hunted]) -> list[tuple[str, int, int, str]]:
    """Return who catches what: key, mutants it caught alone, caught first, and one of them.

    First means that no other rule spoke up in an earlier step; alone, that none did in the same.
    """
    kills = [hunted for hunted in hunts if hunted.killed]
    keys = {entry.key for entry in INVARIANTS} | {key for kill in kills for key in kill.keys}
    lines: list[tuple[str, int, int, str]] = []
    for key in sorted(keys, key=_number):
        first = [kill for kill in kills if key in kill.keys]
        alone = [kill for kill in first if kill.keys == (key,)]
        example = (alone or first)[0].name if first else ""
        lines.append((key, len(alone), len(first), example))
    return lines


def _number(key: str) -> tuple[int, str]:
    head, _, tail = key.partition("-")
    return (int(tail), "") if head == "INV" else (1_000, key)
