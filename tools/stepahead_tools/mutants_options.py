"""The options of `stepahead mutants`: names, defaults and help, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepahead_tools.declared import Argument, Option


@dataclass(frozen=True, kw_only=True)
class MutantsOptions:
    """What `mutants` takes."""

    names: Annotated[
        list[str] | None,
        Argument(
            metavar="NAME",
            help="Mutants to hunt, by name or part of it. Default: the whole museum.",
            show_default=False,
        ),
    ] = None
    list_only: Annotated[
        bool, Option("--list", help="Only say what there is, with sources and changes.")
    ] = False
    tables: Annotated[
        bool,
        Option("--tables", help="Also every mutant of one cell of the two state tables."),
    ] = False
    shrink: Annotated[
        bool,
        Option("--shrink", help="Tell, for each mutant, the short run that kills it."),
    ] = False
    seed: Annotated[int, Option(help="Number of the first random walk.")] = 0
