"""The options of `stepahead calibrate`: names, defaults and help, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepahead_tools.declared import Argument, Option


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """What `calibrate` takes."""

    profile: Annotated[str, Argument(help="A profile with a measured envelope.")] = (
        "rngd-llama-3.1-8b"
    )
    fit: Annotated[
        bool,
        Option(
            "--fit",
            help="Fit the host costs anew on the rows that are marked for it, and show that fit.",
        ),
    ] = False
