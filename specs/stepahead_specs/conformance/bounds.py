"""How far a search goes, and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepahead_specs.conformance.history import Fact, Opened, write
from stepahead_specs.conformance.judge import Judge
from stepahead_specs.conformance.parts import Scope
from stepahead_specs.conformance.words import tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the kit may ask of a scheduler; put one on the factory as ``bounds`` to change it.

    Args:
        lookaheads: how many batches may stand outstanding behind the first one; 0 is eager.
        block_sizes: tokens per KV block.
        prompt_max, output_max: tokens of one request.
        prefix_caching: whether equal prompt prefixes may share blocks.
        by_priority: whether smaller priorities are served first.
        min_tokens: requests may ask for a number of tokens before which no stop counts.
        chunks: a batch may be too small for a whole prompt.
    """

    lookaheads: Sequence[int] = (0, 1, 2)
    block_sizes: Sequence[int] = (1, 2, 4)
    prompt_max: int = 9
    output_max: int = 6
    prefix_caching: Sequence[bool] = (False,)
    by_priority: Sequence[bool] = (False,)
    min_tokens: bool = False
    chunks: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """One run that went wrong, up to the fact that shows it."""

    opened: Opened
    facts: tuple[Fact, ...]
    error: Exception

    def story(self) -> str:
        """Return the run in words and what is wrong with its last step."""
        what = f"{type(self.error).__name__}: " * (not isinstance(self.error, AssertionError))
        return f"{self.opened.limits}\n{tell(self.facts)}\n{what}{self.error}"

    def write(self, path: Path) -> None:
        """Write the run as a history that `stepahead check` reads."""
        write(path, self.opened, self.facts)


@dataclass(slots=True)
class Tally:
    """What all runs of one search have seen together."""

    runs: int = 0
    steps: int = 0
    longest: int = 0
    goals: Counter[str] = field(default_factory=Counter[str])
    scopes: list[Scope] = field(default_factory=list[Scope])

    def add(self, judge: Judge) -> None:
        """Count one finished run."""
        self.runs += 1
        self.steps += judge.seen.step
        self.longest = max(self.longest, judge.seen.step)
        self.goals.update(judge.goals)
        if judge.scope not in self.scopes:
            self.scopes.append(judge.scope)
