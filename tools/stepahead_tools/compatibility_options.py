"""The options of `stepahead compatibility`: names, defaults and help, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepahead_tools.declared import Option
from stepahead_tools.engine_options import VersionChoice


@dataclass(frozen=True, kw_only=True)
class CompatibilityOptions:
    """What `compatibility` takes."""

    product_version: Annotated[
        VersionChoice, Option(help="Whose table; a later beta includes the earlier ones.")
    ] = VersionChoice.V2026_4
