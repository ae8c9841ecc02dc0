"""`stepahead compatibility`: which loop goes with which feature, by version of the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from stepahead_tools.engine_options import VersionChoice


@dataclass(frozen=True, kw_only=True)
class CompatibilityOptions:
    """What `compatibility` takes."""

    product_version: Annotated[
        VersionChoice, typer.Option(help="Whose table; a later beta includes the earlier ones.")
    ] = VersionChoice.V2026_4


def compatibility(options: CompatibilityOptions) -> None:
    """Print the compatibility table of a product version.

    After it come the pairs of features that do not simply work together.
    """
    from stepahead_tools.compatibility_table import show_compatibility  # noqa: PLC0415 # for this

    show_compatibility(options.product_version.value)
