"""Names that a user may have meant, for sentences that refuse another one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def meant(word: str, names: Sequence[str]) -> str | None:
    """Return the name that ``word`` begins, misspells or abbreviates, or None."""
    spelled = word.lower()
    begun = [name for name in names if spelled and name.lower().startswith(spelled)]
    if len(begun) == 1:
        return begun[0]
    if near := difflib.get_close_matches(spelled, names, n=1):
        return near[0]
    initials = {"".join(part[:1] for part in name.split("-")): name for name in names}
    return initials.get(spelled) if len(spelled) > 1 else None


def hint(word: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that offers it; empty where nothing is near."""
    found = meant(word, names)
    return "" if found is None else f"; did you mean {found}?"
