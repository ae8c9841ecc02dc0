"""How the kernel was built: as pure Python, or compiled from the same sources."""

from __future__ import annotations

import stepahead.kernel


def is_compiled() -> bool:
    """Tell whether the kernel that runs is an extension module; it does the same, faster."""
    return not str(stepahead.kernel.__file__).endswith(".py")
