"""`stepahead mutants`: hunt the kernel's known defects, and say who catches what."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from stepahead_specs.mutants import MUSEUM, Mutant
from stepahead_specs.mutants.hunt import Hunted, hunt, matrix, row
from stepahead_specs.mutants.tables import EQUIVALENT, cells, hunt_cell
from stepahead_tools.errors import OptionError, Survived
from stepahead_tools.mutants_options import MutantsOptions


def hunt_mutants(options: MutantsOptions) -> None:
    """Hunt mutants and print one line for each, then who catches what.

    Raises:
        OptionError: a name is no part of any mutant's, or an option would change nothing.
        Survived: nobody noticed a mutant.
    """
    console = Console(highlight=False, markup=False)
    chosen = _chosen(options.names or [])
    if options.list_only:
        _only_list(options)
        for entry in chosen:
            console.print(describe(entry), soft_wrap=True)
        return
    hunted: list[Hunted] = []
    for found in _hunts(chosen, options):
        hunted.append(found)
        console.print("  ".join(row(found)), soft_wrap=True)
        if options.shrink and found.killed:
            console.print(f"{found.sentence}\n{found.story}\n", soft_wrap=True)
    for line in summary(hunted):
        console.print(line)
    alive = [found.name for found in hunted if not found.killed and found.name not in EQUIVALENT]
    if alive:
        raise Survived(f"nobody noticed {', '.join(alive)}; strengthen an invariant or a generator")


def _only_list(options: MutantsOptions) -> None:
    given = {"--shrink": options.shrink, "--tables": options.tables, "--seed": options.seed}
    if flags := [flag for flag, value in given.items() if value]:
        raise OptionError(f"--list only names mutants; leave out {', '.join(flags)}")


def describe(mutant: Mutant) -> str:
    """Return a mutant in words and as a diff."""
    edits = "\n".join(str(edit) for edit in mutant.edits)
    indented = "\n".join(f"    {line}" for line in edits.splitlines())
    sources, expects = ", ".join(mutant.sources), ", ".join(mutant.expects)
    return f"{mutant.name} ({sources}; for {expects})\n  {mutant.claim}\n{indented}\n"


def summary(hunted: list[Hunted]) -> Iterator[Table | str]:
    """Return what to print at the end: who catches what, and how many were killed."""
    table = Table(box=box.SIMPLE_HEAD, title="who catches what", title_justify="left")
    for name in ("noticed by", "alone", "first", "for example"):
        table.add_column(name, justify="right" if name in ("alone", "first") else "left")
    whole = len(hunted) >= len(MUSEUM)
    for key, alone, first, example in matrix(hunted):
        # Who catches nothing is news only where everybody had a chance.
        if not (first or whole):
            continue
        table.add_row(key, str(alone), str(first), example)
    yield table
    killed = sum(found.killed for found in hunted)
    same = sum(found.name in EQUIVALENT for found in hunted if not found.killed)
    seconds = sum(found.seconds for found in hunted)
    signed = f", {same} signed as equivalent" if same else ""
    yield f"{killed} of {len(hunted)} mutants killed{signed}, {seconds:.0f} s"


def _chosen(names: list[str]) -> list[Mutant]:
    for name in names:
        if not any(name in known for known in MUSEUM):
            raise OptionError(f"no mutant is named {name!r}; stepahead mutants --list names them")
    return [
        entry
        for known, entry in MUSEUM.items()
        if not names or any(name in known for name in names)
    ]


def _hunts(chosen: list[Mutant], options: MutantsOptions) -> Iterator[Hunted]:
    for entry in chosen:
        yield hunt(entry, seed=options.seed, shortest=options.shrink)
    if options.tables:
        yield from (hunt_cell(cell) for cell in cells())
