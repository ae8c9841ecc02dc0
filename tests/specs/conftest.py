"""What the tests of the invariants share: letting one rule speak."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepahead_specs.invariants import INVARIANTS, Violation, violations
from stepahead_specs.observation import Observation

#: Speaks in every moment before the last one.
_NEVER_SILENT = "every_request_ends"


def _found(seen: Observation, rule: str) -> list[Violation]:
    (entry,) = (entry for entry in INVARIANTS if entry.name == rule)
    return violations(seen, entry.kind, [entry])


@pytest.fixture
def found() -> Callable[[Observation, str], list[Violation]]:
    """Return a function that lets one rule look at a moment."""
    return _found


@pytest.fixture
def told() -> Callable[[str, Observation, Callable[[Observation], object]], tuple[str, ...]]:
    """Return a function that spoils a sound moment and returns what the rule says of it."""

    def tell(
        rule: str, seen: Observation, spoil: Callable[[Observation], object]
    ) -> tuple[str, ...]:
        assert rule == _NEVER_SILENT or _found(seen, rule) == []
        spoil(seen)
        return tuple(violation.sentence for violation in _found(seen, rule))

    return tell
