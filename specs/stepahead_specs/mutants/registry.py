"""The form of a mutant: a named defect of real schedulers, planted into our kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """

    name: str
    claim: str
    sources: tuple[str, ...]
    expects: tuple[str, ...]
    edits: tuple[Edit, ...]

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Let the kernel have this defect inside the ``with`` block."""
        with applied(self.edits):
            yield


MUSEUM: Final[dict[str, Mutant]] = {}


def mutant(*sources: str, expects: Sequence[str]) -> Callable[[Callable[[], Edits]], None]:
    """Put the defect in the museum; its name and claim are those of the decorated function."""

    def enlist(edits: Callable[[], Edits]) -> None:
        name = edits.__name__.replace("_", "-")
        claim = " ".join((edits.__doc__ or "").partition("\n\n")[0].split())
        MUSEUM[name] = Mutant(name, claim, sources, tuple(expects), tuple(edits()))

    return enlist
