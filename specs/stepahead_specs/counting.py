"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "2 runs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
