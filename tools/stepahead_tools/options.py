"""The options of the commands that replay traces: names, defaults and help, and nothing else.

A command's options are the fields of a dataclass, so that two commands share them without repeating
them and code below sees one typed value. A part has no method that only the whole needs: it takes a
while to make one. What the options mean together is the business of `stepahead_tools.settings`.
"""

from dataclasses import dataclass
from typing import Annotated

from stepahead_tools.declared import Argument, Option
from stepahead_tools.engine_options import (
    SCHEDULING,
    LoopChoice,
    ProductOptions,
    SchedulingOptions,
    SpeculativeOptions,
    TierOptions,
)
from stepahead_tools.load_options import EndOptions, LoadOptions
from stepahead_tools.loop_options import LoopOptions
from stepahead_tools.machine_options import (
    DraftOptions,
    MachineOptions,
    OutputOptions,
    RemoteOptions,
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RunOptions(
    OutputOptions,
    ProductOptions,
    DraftOptions,
    RemoteOptions,
    MachineOptions,
    SpeculativeOptions,
    TierOptions,
    LoopOptions,
    SchedulingOptions,
    EndOptions,
    LoadOptions,
):
    """What `replay` and `compare` have in common; None stands for a default that depends."""

    trace: Annotated[
        str,
        Argument(
            help="A request trace (Mooncake, Azure, BurstGPT, ServeGen, Bailian or our own format; "
            "plain, .gz or .zst), or `demo` for the one that ships with the package.",
            show_default=False,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(RunOptions):
    """What `replay` takes."""

    loop: Annotated[
        LoopChoice | None,
        Option(help="The loop. Default: eager.", show_default=False, group=SCHEDULING),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """What `compare` takes."""

    loops: Annotated[
        str,
        Option(
            metavar="LOOP,...",
            help="Loops to compare, separated by commas; changes are against the first.",
            group=SCHEDULING,
        ),
    ] = "eager,overlap"
