"""What was judged, one line of JSON each, so that a run goes on where another one ended."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mutation.changes import Change
from mutation.judge import Verdict

#: How a mutant ends that nobody noticed.
LIVES: Final = ("survives", "unseen")
JUDGEMENTS: Final = Path(__file__).with_name("judgements.toml")


class Results:
    """Verdicts by the key of the change: a function that changes has its mutants judged again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._verdicts: dict[str, Verdict] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry: dict[str, Any] = json.loads(line)
                self._verdicts[entry.pop("key")] = Verdict(**entry.pop("verdict"))

    def of(self, change: Change) -> Verdict | None:
        """Return the newest verdict on a mutant, None if there is none."""
        return self._verdicts.get(change.key)

    def add(self, change: Change, verdict: Verdict) -> None:
        """Write one verdict down at once."""
        self._verdicts[change.key] = verdict
        entry = {"key": change.key, "change": str(change), "verdict": asdict(verdict)}
        with self.path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why some mutants live: ``equivalent``, or a gap that is known."""

    reason: str
    equivalent: bool
    changes: tuple[str, ...]


def judgements(path: Path = JUDGEMENTS) -> list[Judgement]:
    """Return what was judged by a person."""
    told: dict[str, list[dict[str, Any]]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Judgement(entry["reason"], entry.get("equivalent", True), tuple(entry["changes"]))
        for entry in told["judgement"]
    ]


def judged(change: Change, every: Iterable[Judgement]) -> Judgement | None:
    """Return the judgement that names a mutant, None if it is not judged."""
    text = str(change)
    return next((entry for entry in every if text in entry.changes), None)
