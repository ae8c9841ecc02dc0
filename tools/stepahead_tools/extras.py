"""Which extra of the project brings a module that is not there.

Imports nothing that an extra brings, so that it can speak when they are missing.
"""

from __future__ import annotations

import re
from typing import Final

#: The extra of the command line, named where several bring a module.
_OWN: Final = "cli"


def lacking(error: ModuleNotFoundError) -> str | None:
    """Return what to install for a missing module; None where no extra of ours brings it."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 # when it fails

    name = (error.name or "").partition(".")[0]
    try:
        requirements = requires("stepahead") or []
    except PackageNotFoundError:
        return None
    extras: list[str] = []
    for requirement in requirements:
        found = re.match(r"([\w-]+).*;\s*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if found is not None and found[1] == name:
            extras.append(found[2])
    if not extras:
        return None
    extra = _OWN if _OWN in extras else extras[0]
    return f"{name} is not installed; install stepahead[{extra}], whose extra brings it"
