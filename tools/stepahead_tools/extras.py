"""Which extra of the project brings a module that is not there.

Imports nothing that an extra brings, so that it can speak when they are missing.
"""

from __future__ import annotations

import re


def lacking(error: ModuleNotFoundError) -> str | None:
    """Return what to install for a missing module; None where no extra of ours brings it."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 # when it fails

    name = (error.name or "").partition(".")[0]
    try:
        requirements = requires("stepahead") or []
    except PackageNotFoundError:
        return None
    for requirement in requirements:
        found = re.match(r"([\w-]+).*;\s*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if found is not None and found[1] == name:
            extra = found[2]
            return f"{name} is not installed; install stepahead[{extra}], whose extra brings it"
    return None
