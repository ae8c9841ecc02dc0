"""The reference page, made from what the code itself declares.

    python -m stepahead_specs.render            # write specs/reference.md
    python -m stepahead_specs.render --check    # exit 1 if it is not current

State tables, triggers by event, events, commands, limits, invariants, goals and the compatibility
table are data; this page shows them and adds nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args

from stepahead import commands, events
from stepahead.config import KernelConfig
from stepahead.tables import BATCH, REQUEST, TRIGGERS_OF_EVENT, StateTable
from stepahead_models.product import render_compatibility_markdown
from stepahead_specs.goals import GOALS
from stepahead_specs.invariants import INVARIANTS, NOT_APPLICABLE

PAGE: Final = Path(__file__).resolve().parents[1] / "reference.md"


def render() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Reference",
        "",
        "Made by `python -m stepahead_specs.render` from what the code declares; a test compares.",
        *_machine("The request", REQUEST),
        *_machine("The batch", BATCH),
        *_triggers(),
        *_border("Events", "What the host reports.", get_args(events.Event)),
        *_border("Commands", "What the kernel asks for, in order.", get_args(commands.Command)),
        *_limits(),
        *_invariants(),
        "",
        "## Goals",
        "",
        "Situations that the random search must reach:",
        "",
        *(f"- {goal.words}" for goal in GOALS.values()),
        "",
        "## Compatibility",
        "",
        render_compatibility_markdown().strip(),
        "",
    ]
    return "\n".join(lines)


def _machine(title: str, table: StateTable[Any, Any]) -> Iterator[str]:
    yield from ("", f"## {title}", "", "```mermaid", "stateDiagram-v2")
    yield f"    [*] --> {table.states[0].name}"
    for state in table.states:
        edges: Mapping[Enum, Enum] = table.rows[state]
        by_target: dict[str, list[str]] = {}
        for trigger, after in edges.items():
            by_target.setdefault(after.name, []).append(trigger.name.capitalize())
        for target, triggers in by_target.items():
            yield f"    {state.name} --> {target}: {', '.join(triggers)}"
        if not edges:
            yield f"    {state.name} --> [*]"
    yield "```"


def _triggers() -> Iterator[str]:
    yield from ("", "## What an event may fire", "")
    yield from ("| event | request triggers | batch triggers |", "|---|---|---|")
    for event, (request, batch) in TRIGGERS_OF_EVENT.items():
        names = (", ".join(t.name.capitalize() for t in some) or "-" for some in (request, batch))
        yield f"| `{event}` | {' | '.join(names)} |"


def _border(title: str, meaning: str, kinds: tuple[type[Any], ...]) -> Iterator[str]:
    yield from ("", f"## {title}", "", meaning, "", "| name | fields | meaning |", "|---|---|---|")
    for kind in kinds:
        claim = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        names = ", ".join(f"`{entry.name}`" for entry in fields(kind)) or "-"
        yield f"| `{kind.__name__}` | {names} | {claim} |"


def _limits() -> Iterator[str]:
    yield from ("", "## Limits and choices of a kernel", "")
    yield from ("| option | default | meaning |", "|---|---|---|")
    meanings = _arguments(inspect.getdoc(KernelConfig) or "")
    for entry in fields(KernelConfig):
        default = entry.default
        shown = default.value if isinstance(default, Enum) else default
        text = "required" if repr(default).startswith("<dataclasses") else f"`{shown}`"
        yield f"| `{entry.name}` | {text} | {meanings[entry.name]} |"


def _arguments(docstring: str) -> dict[str, str]:
    """Return the meaning of each argument that a docstring lists."""
    body = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    meanings: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            name, _, text = line.strip().partition(": ")
            meanings[name] = text
        else:
            meanings[name] += " " + line.strip()
    return meanings


def _invariants() -> Iterator[str]:
    yield from ("", "## Invariants", "", "| key | kind | claim | source |", "|---|---|---|---|")
    for rule in sorted(INVARIANTS, key=lambda rule: int(rule.key.partition("-")[2])):
        yield f"| {rule.key} | {rule.kind.value} | {rule.claim} | {rule.source} |"
    for key, reason in NOT_APPLICABLE.items():
        yield f"| {key} | - | not checked: {reason} | |"


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return the exit code."""
    text = render()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{PAGE.name} is not current; run python -m stepahead_specs.render\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
