"""Mutants: the kernel with one known defect at a time, and the hunt that must find each of them."""

from stepahead_specs.mutants import caching, filling, lifetimes, lives, tiers
from stepahead_specs.mutants.patching import Edit, StaleMutant, applied
from stepahead_specs.mutants.registry import MUSEUM, Mutant

__all__ = [
    "MUSEUM",
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
