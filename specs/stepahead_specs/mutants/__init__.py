"""Mutants: the kernel with one known defect at a time, and the hunt that must find each of them."""

from typing import Final

from stepahead_specs.mutants import caching, drafts, filling, lifetimes, lives, tiers
from stepahead_specs.mutants.patching import Edit, StaleMutant, applied
from stepahead_specs.mutants.registry import MUSEUM, Mutant

#: Mutants of the catalogue that our kernel cannot have, with the reason.
NOT_PLANTED: Final = {
    "M15": "no request keeps a draft: they are counted anew for each batch, and the host has them",
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
    "drafts",
    "filling",
    "lifetimes",
    "lives",
    "tiers",
]
