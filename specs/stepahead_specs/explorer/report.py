"""An exploration in words: what was searched, how much of it there is, and what is wrong."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from stepahead_specs import story
from stepahead_specs.counting import counted
from stepahead_specs.explorer.bounds import Bounds
from stepahead_specs.explorer.search import Exploration, Violation

_ALWAYS = ("requests", "blocks", "tokens", "lookahead")


def summary(bounds: Bounds) -> str:
    """Return the bounds, and those options that are not at their defaults."""
    parts = [f"{getattr(bounds, name)} {name}" for name in _ALWAYS[:3]]
    parts.append(f"lookahead {bounds.lookahead}")
    prompts = ", ".join(str(bounds.prompt(number)) for number in range(bounds.requests))
    parts.append(f"prompts {prompts}")
    for entry in fields(bounds):
        value = getattr(bounds, entry.name)
        if entry.name not in {*_ALWAYS, "prompts"} and value != entry.default:
            name = entry.name.replace("_", " ")
            parts.append(name if value is True else f"{name} {value}")
    return "; ".join(parts)


def report(found: Exploration) -> str:
    """Return the whole result as text; a violation comes with its shortest run and a timeline."""
    lines = [
        summary(found.bounds),
        (
            f"states {found.states}, steps {found.steps}, edges {found.edges}, "
            f"depth {found.depth}, {found.seconds:.1f} s"
        ),
    ]
    if found.violation is not None:
        run = found.violation
        lines.append(f"violated after {counted(len(run.events), 'event')}:")
        lines.extend(f"  {sentence}" for sentence in run.sentences)
        lines.append("the shortest run:")
        lines.append(story.tell(run.journal))
        lines.append("not complete: stopped at the violation")
    elif found.stopped is not None:
        lines.append(f"not complete: stopped at {found.stopped}")
    else:
        lines.append(
            "complete: all invariants hold on every step, every state drains, and CPU and NPU "
            "alone bring every run to its end"
        )
    return "\n".join(lines)


def write_journal(found: Violation, bounds: Bounds, path: Path) -> None:
    """Write the shortest run as a journal, which `stepahead replay` runs once more.

    The digests in it are those of the kernel that ran, up to the event that it did not survive.
    """
    story.write_journal(found.journal, bounds.config(), path)
