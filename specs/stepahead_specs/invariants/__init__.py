"""What must hold of every scheduler, as data: one function per claim.

The machines, the explorer, checked replays and the conformance kit all read this one list. The
rules look at an `stepahead_specs.observation.Observation` and at nothing else.
"""

from typing import Final

from stepahead_specs.invariants import batches, blocks, drafts, lives, service, tiers, tokens
from stepahead_specs.invariants.registry import (
    INVARIANTS,
    Invariant,
    InvariantViolated,
    Kind,
    Violation,
    check,
    invariant,
    summary,
    violations,
)

#: Entries of the catalogue that have no rule here, with the reason.
NOT_APPLICABLE: Final = {
    "INV-22": "there are no peers: one scheduler drives one device",
    "INV-23": "there is no structured output: the grammar belongs to the host's sampler",
}

__all__ = [
    "INVARIANTS",
    "NOT_APPLICABLE",
    "Invariant",
    "InvariantViolated",
    "Kind",
    "Violation",
    "batches",
    "blocks",
    "check",
    "drafts",
    "invariant",
    "lives",
    "service",
    "summary",
    "tiers",
    "tokens",
    "violations",
]
