"""The form of a mutant: a named defect of real schedulers, planted into our kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from stepahead_specs.mutants.patching import Edit, applied

Edits: TypeAlias = Sequence[Edit]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect.

    Args:
        name: a sentence with hyphens.
        claim: what it breaks, in one sentence.
        sources: ids of the catalogue of known defects of real schedulers; "ours" where the defect
            is one of our own kernel, found or feared.
        expects: the invariants, by key, of which at least one must notice it.
        edits: the change, as text of the kernel's source.
        tiers: it shows only where there are tiers behind KV memory.
    """

    name: str
    claim: str
    sources: tuple[str, ...]
    expects: tuple[str, ...]
    edits: tuple[Edit, ...]
    tiers: bool = False

    @contextmanager
    def alive(self) -> Generator[None]:
        """Let the kernel have this defect inside the ``with`` block."""
        with applied(self.edits):
            yield


MUSEUM: Final[dict[str, Mutant]] = {}


def mutant(*sources: str, expects: Sequence[str]) -> Callable[[Callable[[], Edits]], None]:
    """Put the defect in the museum; its name and claim are those of the decorated function."""
    return _enlister(sources, expects, tiers=False)


def tier_mutant(*sources: str, expects: Sequence[str]) -> Callable[[Callable[[], Edits]], None]:
    """Put a defect of the tiers behind KV memory in the museum."""
    return _enlister(sources, expects, tiers=True)


def _enlister(
    sources: tuple[str, ...], expects: Sequence[str], *, tiers: bool
) -> Callable[[Callable[[], Edits]], None]:
    def enlist(edits: Callable[[], Edits]) -> None:
        name = edits.__name__.replace("_", "-")
        claim = " ".join((edits.__doc__ or "").partition("\n\n")[0].split())
        MUSEUM[name] = Mutant(
            name=name,
            claim=claim,
            sources=sources,
            expects=tuple(expects),
            edits=tuple(edits()),
            tiers=tiers,
        )

    return enlist
