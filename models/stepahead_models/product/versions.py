"""Versions of the product whose behaviour is known, oldest first.

Owns the order of the versions. What each one changed stands beside what it changed.
"""

from enum import Enum
from typing import Final, NoReturn


class ProductVersion(Enum):
    """A Furiosa-LLM version; a later beta includes the changes of the earlier ones."""

    V2026_4 = "2026.4"
    V2026_5_B0 = "2026.5.0b0"
    V2026_5_B1 = "2026.5.0b1"
    V2026_5_B2 = "2026.5.0b2"
    V2026_5_B3 = "2026.5.0b3"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(version.value for version in cls)
        raise ValueError(f"product version {value!r} is not known; give one of {known}")

    def includes(self, change: "ProductVersion") -> bool:
        """Tell whether a change that arrived with ``change`` is in this version."""
        order = tuple(ProductVersion)
        return order.index(change) <= order.index(self)


DEFAULT_VERSION: Final = ProductVersion.V2026_4

OVERLAP_PAGE: Final = "Furiosa-LLM 2026.4 documentation, overlap scheduling"
PACKAGE: Final = "furiosa-llm 2026.4.0 package"
OURS: Final = "ours"
INFERRED: Final = "inferred; the product's answer is not known"


def release_notes(version: ProductVersion) -> str:
    """Name the release notes of a version as a source."""
    return f"Furiosa-LLM {version.value} release notes"
