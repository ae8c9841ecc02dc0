"""One page of results: what was searched, what was found, and what was not checked."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from stepahead_specs.conformance.parts import NOT_DRIVEN, Scope
from stepahead_specs.counting import counted
from stepahead_specs.goals import GOALS

_WIDTH: Final = 98


def page(  # noqa: PLR0913 - a page has six parts
    scheduler: str,
    verdict: str,
    searched: Sequence[str],
    scope: Scope | None,
    goals: Mapping[str, int],
    *,
    driven: bool,
) -> str:
    """Return the page.

    Args:
        scheduler: its name.
        verdict: what was found.
        searched: one line per search, with its bounds and its size.
        scope: which rules were run and which were not; None if nothing was run.
        goals: situations that were reached, with the number of steps that reached them.
        driven: whether the kit drove the scheduler, or read a history.
    """
    parts = [f"Conformance of {scheduler}", verdict, "", *_section("Searched", searched)]
    if scope is not None:
        names = [f"{entry.key} {entry.name.replace('_', ' ')}" for entry in scope.rules]
        parts += _section(
            f"Checked after every step ({counted(len(names), 'rule')})", sorted(names, key=_key)
        )
    reached = [words for words in GOALS if words in goals]
    missed = [words for words in GOALS if words not in goals]
    parts += _section(f"Situations reached ({len(reached)} of {len(GOALS)})", reached)
    parts += _section("Situations not reached, so nothing is said about them", missed)
    if scope is not None:
        reasons = [f"{name}: {why}" for name, why in scope.left_out.items()]
        parts += _section("Rules not checked", sorted(reasons, key=_key))
    if driven:
        parts += _section("Never brought about by the kit", NOT_DRIVEN)
    return "\n".join(parts).rstrip() + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    wrapped = [
        textwrap.fill(line, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
        for line in lines
    ]
    return [f"{title}:", *(wrapped or ["  - none"]), ""]


def _key(line: str) -> tuple[int, str]:
    number = line.partition(" ")[0].partition("-")[2].rstrip(":")
    return (int(number) if number.isdigit() else 0, line)
