"""A history in words, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from stepahead_specs.conformance.history import (
    Cancelled,
    Completed,
    Dispatched,
    Drained,
    Fact,
    Prepared,
    Share,
    Submitted,
)


def tell(facts: Sequence[Fact]) -> str:
    """Return one sentence per fact, numbered as the steps that violations name."""
    building = running = "."
    lines: list[str] = []
    for number, fact in enumerate(facts, start=1):
        if isinstance(fact, Completed):
            running = "."
        if isinstance(fact, Dispatched):
            running, building = f"B{fact.batch}", "."
        if isinstance(fact, Prepared) and fact.batch is not None:
            building = f"B{fact.batch}"
        lines.append(f"{number:4}  prepared {building:4} device {running:4} {sentence(fact)}")
    return "\n".join(lines)


def sentence(fact: Fact) -> str:  # noqa: PLR0911 - one sentence per fact
    """Return one fact in words."""
    match fact:
        case Submitted():
            asked = f"prompt of {len(fact.prompt)}, at most {fact.max_tokens} output"
            words = f"R{fact.request} {fact.name!r} comes ({asked})"
            return words if fact.refused is None else f"{words} and is refused ({fact.refused})"
        case Cancelled():
            return "; ".join([f"the client of R{fact.request} leaves", *_ends(fact.finished)])
        case Prepared(batch=None):
            return "nothing to select"
        case Prepared():
            return f"select B{fact.batch}: {', '.join(_row(row) for row in fact.rows)}"
        case Dispatched():
            return f"dispatch B{fact.batch}{_inputs(fact.inputs)}"
        case Completed():
            sent = [f"R{request} gets {token}" for request, token in fact.emitted]
            tokens = ", ".join("-" if token is None else str(token) for token in fact.tokens)
            return "; ".join([f"B{fact.batch} gives {tokens}", *sent, *_ends(fact.finished)])
        case Drained():
            return "everything had the time to end"
        case _:
            assert_never(fact)


def _ends(finished: Iterable[tuple[int, str]]) -> list[str]:
    return [f"R{request} ends by {reason}" for request, reason in finished]


def _row(row: Share) -> str:
    last = row.position + row.count - 1
    span = f"{row.position}" if row.count == 1 else f"{row.position}-{last}"
    epoch = f" epoch {row.epoch}" if row.epoch else ""
    blocks = "" if row.blocks is None else f" blocks {list(row.blocks)}"
    return f"R{row.request}{epoch}[{span}]{'*' if row.samples else ''}{blocks}"


def _inputs(inputs: Sequence[Sequence[int] | None] | None) -> str:
    if inputs is None:
        return ""
    rows = ("dead" if row is None else " ".join(map(str, row)) for row in inputs)
    return f" with {' | '.join(rows)}"
