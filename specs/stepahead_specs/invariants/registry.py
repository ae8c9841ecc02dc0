"""The form of an invariant, and how a list of them is checked.

An invariant is a function of an `Observation` that yields one sentence per violation. Its key is
that of the catalogue of known defects of real schedulers (INV-1 to INV-24) or, from INV-25 on, one
that we found missing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from stepahead_specs.observation import Observation

Rule: TypeAlias = Callable[[Observation], Iterator[str]]

#: One mistake may show in every block of a pool; a few of them say as much.
_TOLD_PER_RULE: Final = 3


class Kind(Enum):
    """When an invariant is checked: after every step, or once everything has drained."""

    ALWAYS = "always"
    EVENTUALLY = "eventually"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule with its key, its source and its claim (the first line of its docstring)."""

    key: str
    kind: Kind
    source: str
    rule: Rule

    @property
    def claim(self) -> str:
        """Return the claim in one sentence."""
        return (self.rule.__doc__ or "").strip().partition("\n")[0]

    @property
    def name(self) -> str:
        """Return the name of the rule, a sentence with underscores."""
        return getattr(self.rule, "__name__", self.key)


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold, and when."""

    key: str
    name: str
    step: int
    sentence: str

    def __str__(self) -> str:
        """Return one line for a person."""
        return f"{self.key} ({self.name.replace('_', ' ')}) at step {self.step}: {self.sentence}"


def summary(violations: Iterable[Violation]) -> str:
    """Return the first violations of each broken rule, a line each, and how many more it has."""
    by_rule: dict[str, list[Violation]] = {}
    for violation in violations:
        by_rule.setdefault(violation.name, []).append(violation)
    lines: list[str] = []
    for found in by_rule.values():
        lines += map(str, found[:_TOLD_PER_RULE])
        if (more := len(found) - _TOLD_PER_RULE) > 0:
            lines[-1] += f"; and {more} more"
    return "\n".join(lines)


class InvariantViolated(AssertionError):
    """A scheduler broke at least one invariant."""

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        super().__init__(summary(violations))


INVARIANTS: Final[list[Invariant]] = []


def invariant(key: str, *, source: str, kind: Kind = Kind.ALWAYS) -> Callable[[Rule], Rule]:
    """Put the decorated rule in the list."""

    def enlist(rule: Rule) -> Rule:
        INVARIANTS.append(Invariant(key, kind, source, rule))
        return rule

    return enlist


def violations(
    seen: Observation,
    kind: Kind = Kind.ALWAYS,
    only: Iterable[Invariant] | None = None,
) -> list[Violation]:
    """Return every violation of the invariants of this kind."""
    return [
        Violation(entry.key, entry.name, seen.step, sentence)
        for entry in (INVARIANTS if only is None else only)
        if entry.kind is kind
        for sentence in entry.rule(seen)
    ]


def check(seen: Observation, kind: Kind = Kind.ALWAYS) -> None:
    """Check all invariants of one kind.

    Raises:
        InvariantViolated: at least one does not hold; the error lists all that do not.
    """
    if broken := violations(seen, kind):
        raise InvariantViolated(broken)
