"""Options: the simulated machine, and what a command writes."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from stepahead_tools.declared import Option

_MACHINE: Final = "Simulated machine"
_REMOTE: Final = "Simulated remote KV cache (L3)"
_DRAFTS: Final = "Simulated speculative decoding"
_OUTPUT: Final = "Output"


class LogFormatChoice(StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class MachineOptions:
    """The device and the host beside it."""

    device: Annotated[
        str,
        Option(
            metavar="PROFILE",
            help="A device profile by name, or the path of a TOML file.",
            group=_MACHINE,
        ),
    ] = "rngd-llama-3.1-8b"
    cpu_scale: Annotated[
        float,
        Option(help="Multiply every CPU cost by X.", group=_MACHINE),
    ] = 1.0
    npu_sampling: Annotated[
        bool | None,
        Option(
            "--npu-sampling/--host-sampling",
            "--experimental-enable-npu-sampling",
            help="Where the next tokens are drawn. Default: as the product's version does, 2026.4 "
            "on the host.",
            show_default=False,
            group=_MACHINE,
        ),
    ] = None
    noise: Annotated[
        float,
        Option(
            metavar="PERCENT",
            help="Largest random deviation of NPU and CPU times, a function of seed and batch.",
            group=_MACHINE,
        ),
    ] = 0.0
    unchecked: Annotated[
        bool,
        Option(
            "--unchecked",
            help="For speed: no KV memory and no sanitizer; tokens are a function of request and "
            "place. All times stay the same.",
            group=_MACHINE,
        ),
    ] = False
    check: Annotated[
        bool,
        Option(
            "--check",
            help="Check the invariants after each step, of every tier too. Takes some "
            "milliseconds per step.",
            group=_MACHINE,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RemoteOptions:
    """A store in this process that is as slow and as unreliable as it is told to be."""

    l3_enabled: Annotated[
        bool | None,
        Option(
            "--l3-enabled/--no-l3-enabled",
            help="Keep what is copied to the host in a remote store too. Default: no.",
            show_default=False,
            group=_REMOTE,
        ),
    ] = None
    remote_gb_per_s: Annotated[
        float,
        Option(help="Its rate, 1e9 bytes/s; an assumption.", group=_REMOTE),
    ] = 10.0
    remote_latency_us: Annotated[
        float,
        Option(help="Its latency per load; an assumption.", group=_REMOTE),
    ] = 500.0
    remote_miss: Annotated[
        float,
        Option(
            metavar="PERCENT",
            help="Share of blocks that it has lost when it is asked for them.",
            group=_REMOTE,
        ),
    ] = 0.0
    remote_failure: Annotated[
        float,
        Option(metavar="PERCENT", help="Share of loads that fail.", group=_REMOTE),
    ] = 0.0


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DraftOptions:
    """A proposer that knows the next token so often, and takes so long."""

    draft_acceptance: Annotated[
        float,
        Option(
            metavar="P",
            help="How often a proposed token is right, given that those before it are; an "
            "assumption.",
            group=_DRAFTS,
        ),
    ] = 0.7
    draft_step_us: Annotated[
        float | None,
        Option(
            metavar="US",
            help="Host time of each pass of the proposer over a batch. Default: 1650 for a draft "
            "model, 1000 for MTP; assumptions.",
            show_default=False,
            group=_DRAFTS,
        ),
    ] = None
    draft_token_us: Annotated[
        float,
        Option(
            metavar="US",
            help="Host time of each proposed token; an assumption.",
            group=_DRAFTS,
        ),
    ] = 1.0


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OutputOptions:
    """Where results go."""

    json: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the result as JSON (schema 1); `-`: standard output, no table.",
            group=_OUTPUT,
        ),
    ] = None
    journal: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write every event and command; compare adds the loop's name before the suffix.",
            group=_OUTPUT,
        ),
    ] = None
    log_format: Annotated[
        LogFormatChoice,
        Option(help="Log lines on standard error.", group=_OUTPUT),
    ] = LogFormatChoice.CONSOLE
