"""The host cache (L2) and the staging memory of the remote cache (L3): configuration and rules.

Owns the rules about memory budgets, for the configuration object and for the options in GiB that
the command line has instead.
"""

import math
from fractions import Fraction
from typing import Final

import msgspec
from msgspec import Struct

from stepahead_models.product.options import KV_OFFLOAD
from stepahead_models.product.rules import Rule, enforce, settle_types
from stepahead_models.product.versions import INFERRED, OURS, PACKAGE

GIB: Final = 1 << 30
STAGING_BYTES_DEFAULT: Final = 24 * GIB
SERVE: Final = f"{PACKAGE}, serve command"


class KVOffloadConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The host cache below the prefix cache on the NPU.

    Args:
        enabled: use it; ``write_back`` is False where it is not used.
        host_memory_ratio: budget as a share of the KV memory of the NPU, per scheduler.
        host_memory_bytes: budget of the whole process, split over its schedulers.
        write_through_threshold: prefix hits after which a block is copied to the host while it is
            still on the NPU; None never does, and 0 means None.
        write_back: copy a block that only the NPU has when it is evicted there.
        staging_memory_bytes: memory of the whole process through which L3 moves blocks.
        overlap_l2_reload: experimental; layer i may start when its own reload is done.

    Raises:
        InvalidOption: a value breaks a rule.

    Source:
        furiosa-llm 2026.4.0 package, configuration types.
    """

    enabled: bool = False
    host_memory_ratio: float = 0.0
    host_memory_bytes: int | None = None
    write_through_threshold: int | None = 2
    write_back: bool = False
    staging_memory_bytes: int | None = None
    overlap_l2_reload: bool = False

    def __post_init__(self) -> None:
        settle_types(self, KV_OFFLOAD)
        enforce(KV_OFFLOAD_RULES, self)
        if not self.enabled:
            msgspec.structs.force_setattr(self, "write_back", False)  # noqa: FBT003 (its signature)
        if self.write_through_threshold == 0:
            msgspec.structs.force_setattr(self, "write_through_threshold", None)

    @property
    def has_budget(self) -> bool:
        """Tell whether any host memory is given, used or not."""
        return self.host_memory_bytes is not None or self.host_memory_ratio > 0

    def host_bytes(self, npu_kv_bytes: int, *, schedulers: int = 1) -> int:
        """Return the host memory of one scheduler in bytes; 0 where the cache is off.

        Args:
            npu_kv_bytes: KV memory that the scheduler has on its NPU, in bytes.
            schedulers: schedulers in the process, over which a budget in bytes is split.

        Source:
            furiosa-llm 2026.4.0 package, serve command: bytes are per process, a ratio is per
            scheduler.
        """
        if not self.enabled:
            return 0
        if self.host_memory_bytes is not None:
            return self.host_memory_bytes // schedulers
        return math.floor(Fraction(self.host_memory_ratio) * npu_kv_bytes)


class MemoryOptions(Struct, frozen=True, kw_only=True):
    """The budgets as the command line has them, in GiB; None is "not given"."""

    kv_offload_host_memory_gb: float | None = None
    kv_offload_host_memory_ratio: float | None = None
    kv_offload_staging_memory_gb: float | None = None

    def __post_init__(self) -> None:
        settle_types(self, "")
        enforce(MEMORY_RULES, self)

    def fields(self) -> dict[str, object]:
        """Return the fields of `KVOffloadConfig` that these options set."""
        fields: dict[str, object] = {}
        if self.kv_offload_host_memory_gb is not None:
            fields["host_memory_bytes"] = int(self.kv_offload_host_memory_gb * GIB)
        if self.kv_offload_host_memory_ratio is not None:
            fields["host_memory_ratio"] = self.kv_offload_host_memory_ratio
        if self.kv_offload_staging_memory_gb is not None:
            fields["staging_memory_bytes"] = int(self.kv_offload_staging_memory_gb * GIB)
        return fields


def _positive(number: float | None) -> bool:
    """Tell whether a number in GiB, if given, is finite and above 0."""
    return number is None or (math.isfinite(number) and number > 0)


def _whole_bytes(number: float | None) -> bool:
    """Tell whether a number in GiB, if given, is one byte or more."""
    return number is None or int(number * GIB) > 0


KV_OFFLOAD_RULES: Final[tuple[Rule[KVOffloadConfig], ...]] = (
    Rule(
        name="host-memory-ratio-finite",
        option=f"{KV_OFFLOAD}.host_memory_ratio",
        expected="a finite number, at least 0",
        way_out="give 0 to leave the host cache off",
        source=SERVE,
        holds=lambda config: (
            math.isfinite(config.host_memory_ratio) and config.host_memory_ratio >= 0
        ),
    ),
    Rule(
        name="host-memory-bytes-positive",
        option=f"{KV_OFFLOAD}.host_memory_bytes",
        expected="a whole number of bytes, at least 1",
        way_out="leave it out to leave the host cache off",
        source=SERVE,
        holds=lambda config: config.host_memory_bytes is None or config.host_memory_bytes >= 1,
    ),
    Rule(
        name="host-memory-has-one-budget",
        option=f"{KV_OFFLOAD}.host_memory_bytes",
        expected="bytes or a ratio of host memory, not both",
        way_out="leave out host_memory_bytes or host_memory_ratio",
        source=SERVE,
        holds=lambda config: config.host_memory_bytes is None or config.host_memory_ratio == 0,
    ),
    Rule(
        name="enabled-has-a-budget",
        option=f"{KV_OFFLOAD}.enabled",
        expected="a host budget beside it",
        way_out="give host_memory_bytes or host_memory_ratio",
        source=INFERRED,
        holds=lambda config: not config.enabled or config.has_budget,
    ),
    Rule(
        name="write-through-threshold-not-negative",
        option=f"{KV_OFFLOAD}.write_through_threshold",
        expected="a whole number of hits, at least 0",
        way_out="give 0 to never write through, or leave it out for the default 2",
        source=SERVE,
        holds=lambda config: (
            config.write_through_threshold is None or config.write_through_threshold >= 0
        ),
    ),
    Rule(
        name="staging-memory-bytes-positive",
        option=f"{KV_OFFLOAD}.staging_memory_bytes",
        expected="a whole number of bytes, at least 1",
        way_out="leave it out",
        source=SERVE,
        holds=lambda config: (
            config.staging_memory_bytes is None or config.staging_memory_bytes >= 1
        ),
    ),
    Rule(
        name="reload-needs-a-host-budget",
        option=f"{KV_OFFLOAD}.overlap_l2_reload",
        expected="a host budget beside it",
        way_out="give host_memory_bytes or host_memory_ratio, or leave overlap_l2_reload out",
        source=SERVE,
        holds=lambda config: not config.overlap_l2_reload or config.has_budget,
    ),
    Rule(
        name="reload-needs-the-host-cache-on",
        option=f"{KV_OFFLOAD}.overlap_l2_reload",
        expected="enabled = true beside it",
        way_out="set enabled, or leave overlap_l2_reload out",
        source=OURS,
        holds=lambda config: not config.overlap_l2_reload or config.enabled,
    ),
)

MEMORY_RULES: Final[tuple[Rule[MemoryOptions], ...]] = (
    Rule(
        name="host-memory-gb-positive",
        option="kv_offload_host_memory_gb",
        expected="a finite number of GiB above 0",
        way_out="leave it out to leave the host cache off",
        source=SERVE,
        holds=lambda options: _positive(options.kv_offload_host_memory_gb),
    ),
    Rule(
        name="host-memory-gb-is-a-byte",
        option="kv_offload_host_memory_gb",
        expected="at least one byte",
        way_out="mind that the unit is GiB",
        source=SERVE,
        holds=lambda options: _whole_bytes(options.kv_offload_host_memory_gb),
    ),
    Rule(
        name="host-memory-has-one-option",
        option="kv_offload_host_memory_gb",
        expected="GiB or a ratio of host memory, not both",
        way_out="leave out kv_offload_host_memory_gb or kv_offload_host_memory_ratio",
        source=SERVE,
        holds=lambda options: (
            options.kv_offload_host_memory_gb is None
            or options.kv_offload_host_memory_ratio is None
        ),
    ),
    Rule(
        name="staging-memory-gb-positive",
        option="kv_offload_staging_memory_gb",
        expected="a finite number of GiB above 0",
        way_out="leave it out for the default 24.0",
        source=SERVE,
        holds=lambda options: _positive(options.kv_offload_staging_memory_gb),
    ),
    Rule(
        name="staging-memory-gb-is-a-byte",
        option="kv_offload_staging_memory_gb",
        expected="at least one byte",
        way_out="mind that the unit is GiB",
        source=SERVE,
        holds=lambda options: _whole_bytes(options.kv_offload_staging_memory_gb),
    ),
)
