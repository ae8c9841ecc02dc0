"""Judge a history that any engine has written; neither that engine nor ours is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepahead_specs.conformance.history import Fact, HistoryError, read
from stepahead_specs.conformance.judge import Judge, PartlyToldError
from stepahead_specs.conformance.page import page
from stepahead_specs.conformance.parts import Scope
from stepahead_specs.conformance.words import sentence
from stepahead_specs.invariants import Violation, summary


@dataclass(frozen=True, slots=True)
class Checked:
    """What a history gave.

    Args:
        line: the line that breaks a rule, or None.
        fact: what that line says, in words.
        violations: all rules that it breaks; what comes after is not read.
    """

    path: Path
    scheduler: str
    facts: Mapping[str, int]
    scope: Scope
    goals: Mapping[str, int]
    line: int | None
    fact: str
    violations: tuple[Violation, ...]

    def verdict(self) -> str:
        """Return what was found: in one line, then what is broken."""
        if self.line is None:
            return "No rule that could be checked is broken."
        return f"BROKEN at line {self.line} ({self.fact}):\n{summary(self.violations)}"

    def page(self) -> str:
        """Return the one-page result."""
        counted = ", ".join(f"{count} {kind}" for kind, count in self.facts.items()) or "no facts"
        searched = [f"one history, {self.path.name}: {counted}"]
        return page(self.scheduler, self.verdict(), searched, self.scope, self.goals, driven=False)


def check_history(path: Path, waived: Mapping[str, str] | None = None) -> Checked:
    """Read a history up to the first line that breaks a rule.

    Args:
        path: a file in the format of `stepahead_specs.conformance.history`.
        waived: rules that the scheduler does not claim to keep, with the reason.

    Raises:
        HistoryError: the file is not a history.
    """
    opened, facts = read(path)
    judge = Judge(opened.limits, waived)
    found: list[Violation] = []
    number, fact = 1, None
    for number, fact in facts:
        found = _take(judge, path, number, fact)
        if found:
            break
    return Checked(
        path=path,
        scheduler=opened.scheduler,
        facts=Counter(judge.facts),
        scope=judge.scope,
        goals=judge.goals,
        line=number if found else None,
        fact=sentence(fact) if fact is not None else "",
        violations=tuple(found),
    )


def _take(judge: Judge, path: Path, number: int, fact: Fact) -> list[Violation]:
    try:
        return judge.take(fact)
    except PartlyToldError as error:
        raise HistoryError(path, number, str(error)) from error
