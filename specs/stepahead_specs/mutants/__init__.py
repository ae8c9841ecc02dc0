"""Mutants: the kernel with one known defect at a time, and the hunt that must find each of them."""

from typing import Final

from stepahead_specs.mutants import caching, filling, lifetimes, lives, tiers
from stepahead_specs.mutants.patching import Edit, StaleMutant, applied
from stepahead_specs.mutants.registry import MUSEUM, Mutant

#: Mutants of the catalogue that our kernel cannot have, with the reason.
NOT_PLANTED: Final = {
    "M15": "there are no drafts: a row computes known tokens and one that its batch samples",
    "M41": "there is no grammar: structured output belongs to the host's sampler",
}

__all__ = [
    "MUSEUM",
    "NOT_PLANTED",
    "Edit",
    "Mutant",
    "StaleMutant",
    "applied",
    "caching",
    "filling",
    "lifetimes",
    "lives",
    "tiers",
]
