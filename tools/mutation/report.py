"""The score, module by module, and what lives with the reason why: tools/mutation-survivors.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from mutation.changes import ROOT, Change
from mutation.results import LIVES, Judgement, Results, judged

PAGE: Final = ROOT / "tools" / "mutation-survivors.md"
_WORDS: Final = "the text of an error, or a value named in it: for a person, not for a rule"
_OPEN: Final = "Lives, and is not judged"
_STALE: Final = "Judged, and not there any more"
_HEAD: Final = """# Mutants of mutmut that live

`python -m mutation` judges every change that mutmut makes in a function of `kernel/`; this page is
`python -m mutation --report`. A mutant lives in a process of its own, among those who run the lines
that it changes: single walks, walks over the tiers, explorations, and single tests. The reasons are
those of `tools/mutation/judgements.toml`.

**Score**: noticed of those that are not equivalent. *Noticed* includes who hangs or crashes;
*words* change only the text of an error.
"""


@dataclass(slots=True)
class Score:
    """The mutants of one module, by how they ended."""

    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def row(self) -> tuple[str, ...]:
        """Return the cells of a line of the table."""
        counts = self.counts
        told = [counts[name] for name in ("noticed", "equivalent", "words", "gap", "open", "due")]
        wrong = counts["gap"] + counts["open"]
        score = counts["noticed"] / max(counts["noticed"] + wrong, 1)
        return (str(sum(told)), *(str(count) for count in told), f"{100 * score:.1f} %")


def report(changes: Iterable[Change], results: Results, judgements: list[Judgement]) -> str:
    """Return the page."""
    scores: dict[str, Score] = {}
    lives: dict[str, list[str]] = {entry.reason: [] for entry in judgements}
    lives[_WORDS] = []
    unjudged: list[str] = []
    stale = {text for entry in judgements for text in entry.changes}
    for change in changes:
        stale.discard(str(change))
        kind, reason = _ended(change, results, judgements)
        scores.setdefault(change.module, Score()).counts[kind] += 1
        scores.setdefault("all", Score()).counts[kind] += 1
        if kind == "open":
            unjudged.append(str(change))
        elif reason:
            lives[reason].append(str(change))
    scores["all"] = scores.pop("all")
    return "\n".join(_page(scores, lives, {_OPEN: unjudged, _STALE: sorted(stale)}, judgements))


def _ended(change: Change, results: Results, judgements: list[Judgement]) -> tuple[str, str]:
    """Return how a mutant ended, and the reason why it lives."""
    verdict = results.of(change)
    if verdict is None:
        return "due", ""
    if verdict.how not in LIVES:
        return "noticed", ""
    judgement = judged(change, judgements)
    if judgement is not None:
        return ("equivalent" if judgement.equivalent else "gap"), judgement.reason
    return ("words", _WORDS) if change.words else ("open", "")


def _page(
    scores: dict[str, Score],
    lives: dict[str, list[str]],
    others: dict[str, list[str]],
    judgements: list[Judgement],
) -> Iterator[str]:
    yield _HEAD
    yield "| module | mutants | noticed | equivalent | words | gaps | not judged | due | score |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for module, score in scores.items():
        yield f"| {module} | {' | '.join(score.row)} |"
    gaps = {entry.reason for entry in judgements if not entry.equivalent}
    for title, reasons in (
        ("Gaps", [reason for reason in lives if reason in gaps]),
        ("Equivalent", [reason for reason in lives if reason not in gaps]),
    ):
        yield f"\n## {title}"
        for reason in reasons:
            if lives[reason]:
                yield f"\n**{reason[0].upper()}{reason[1:]}** ({len(lives[reason])})\n"
                yield from (f"- `{_shortened(text)}`" for text in lives[reason])
    for title, texts in others.items():
        if texts:
            yield f"\n## {title}\n"
            yield from (f"- `{_shortened(text)}`" for text in texts)
    yield ""


def _shortened(text: str, most: int = 220) -> str:
    return (text if len(text) <= most else f"{text[: most - 3]}...").replace("`", "'")
