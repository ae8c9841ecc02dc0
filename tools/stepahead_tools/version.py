"""`stepahead --version`: which release this is, and how it was built."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from stepahead_models.build import is_compiled


def described() -> str:
    """Return name, release and build, such as "stepahead 0.1.0 (compiled)"."""
    try:
        release = version("stepahead")
    except PackageNotFoundError:
        release = "not installed"  # a source tree on the path
    return f"stepahead {release} ({'compiled' if is_compiled() else 'pure Python'})"
