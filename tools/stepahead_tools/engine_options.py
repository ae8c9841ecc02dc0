"""Options: how the engine schedules and caches."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from stepahead_tools.declared import Option

SCHEDULING: Final = "Scheduling"
_CONFIGURATION: Final = "Configuration of the product"
_TIERS: Final = "KV cache tiers"
_SPECULATION: Final = "Speculative decoding"


class OrderChoice(StrEnum):
    """Order of the waiting line."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PreferChoice(StrEnum):
    """Which rows get the token budget first."""

    DECODE = "decode"
    PREFILL = "prefill"


class LoopChoice(StrEnum):
    """A scheduling loop."""

    EAGER = "eager"
    OVERLAP = "overlap"
    JUST_IN_TIME = "just-in-time"


class VersionChoice(StrEnum):
    """A version of the product whose compatibility table is known."""

    V2026_4 = "2026.4"
    V2026_5_B0 = "2026.5.0b0"
    V2026_5_B1 = "2026.5.0b1"
    V2026_5_B2 = "2026.5.0b2"
    V2026_5_B3 = "2026.5.0b3"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ProductOptions:
    """Whose rules count, and a file beside the flags."""

    config: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Configuration of the engine in TOML, with the product's names. Flags win over "
            "it; which loops compare runs is up to --loops alone.",
            group=_CONFIGURATION,
        ),
    ] = None
    product_version: Annotated[
        VersionChoice,
        Option(
            help="Whose compatibility table and defaults count; see `stepahead compatibility`.",
            group=_CONFIGURATION,
        ),
    ] = VersionChoice.V2026_4
    print_config: Annotated[
        bool,
        Option(
            "--print-config",
            help="Print the effective configuration of the engine as TOML, and run nothing.",
            group=_CONFIGURATION,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SchedulingOptions:
    """What the scheduler is told."""

    enable_overlap_scheduling: Annotated[
        bool | None,
        Option(
            "--enable-overlap-scheduling/--no-enable-overlap-scheduling",
            help="Choose the overlap or the eager loop by the product's option "
            "(--enable-overlap-scheduling).",
            show_default=False,
            group=SCHEDULING,
        ),
    ] = None
    lookahead: Annotated[
        int | None,
        Option(
            help="Batches prepared ahead in the overlap loop; more than 1 is for tests.",
            group=SCHEDULING,
        ),
    ] = None
    npu_queue_limit: Annotated[
        int | None,
        Option(
            help="Batches in the hardware queue; must be 1 under overlap. Default: 1.",
            show_default=False,
            group=SCHEDULING,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Option(
            help="Tokens per batch. Default: the largest prompt chunk of the device.",
            group=SCHEDULING,
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        Option(
            help="Rows per batch. Default: the largest batch of the device.",
            group=SCHEDULING,
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Option(
            help="Prompt and output tokens of one request; may only lower that of the device.",
            group=SCHEDULING,
        ),
    ] = None
    order: Annotated[OrderChoice, Option(help="Order of the waiting line.", group=SCHEDULING)] = (
        OrderChoice.FCFS
    )
    prefer: Annotated[
        PreferChoice,
        Option(help="Which rows get the token budget first.", group=SCHEDULING),
    ] = PreferChoice.DECODE
    block_size: Annotated[int, Option(help="Tokens per KV block.", group=SCHEDULING)] = 16
    num_blocks: Annotated[
        int | None,
        Option(
            help="KV blocks. Default: what the memory of the device holds.",
            group=SCHEDULING,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TierOptions:
    """What the KV cache keeps, and where; names and defaults are the product's."""

    enable_prefix_caching: Annotated[
        bool | None,
        Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the KV blocks of equal prompt prefixes (L1). Default: yes.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None
    experimental_kv_offload_host_memory_gb: Annotated[
        float | None,
        Option(
            metavar="GIB",
            help="Host memory for KV blocks (L2), in GiB. Default: none.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None
    experimental_kv_offload_host_memory_ratio: Annotated[
        float | None,
        Option(
            metavar="RATIO",
            help="The same as a share of the KV memory of the NPU; give one of the two.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None
    experimental_kv_offload_write_through_threshold: Annotated[
        int | None,
        Option(
            metavar="HITS",
            help="Copy a block to the host at so many prefix hits; 0: never. Default: 2.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None
    experimental_kv_offload_write_back: Annotated[
        bool | None,
        Option(
            "--experimental-kv-offload-write-back/--no-experimental-kv-offload-write-back",
            help="Copy a block that only the NPU has to the host before it is reused. Default: no.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None
    experimental_kv_offload_overlap_l2_reload: Annotated[
        bool | None,
        Option(
            "--experimental-kv-offload-overlap-l2-reload/"
            "--no-experimental-kv-offload-overlap-l2-reload",
            help="A request runs while its blocks come from the host, layer by layer. Default: no.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None
    experimental_kv_offload_staging_memory_gb: Annotated[
        float | None,
        Option(
            metavar="GIB",
            help="Host memory through which the remote cache (L3) moves blocks, in GiB; checked, "
            "but not simulated.",
            show_default=False,
            group=_TIERS,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SpeculativeOptions:
    """Whether tokens are proposed and verified; the option is the product's."""

    experimental_speculative_config: Annotated[
        str | None,
        Option(
            "--experimental-speculative-config",
            "--experimental-spec-config",
            metavar="JSON",
            help="Speculative decoding, eager only, as a JSON object with the keys method "
            "(draft_model or mtp), num_speculative_tokens, and for a draft model its model. "
            "Default: none.",
            show_default=False,
            group=_SPECULATION,
        ),
    ] = None
