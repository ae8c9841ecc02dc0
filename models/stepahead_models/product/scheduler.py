"""The scheduler's configuration: names, defaults and rules of the product.

Owns `SchedulerConfig` and `PrefixCacheConfig`. Which settings go together with which loop and
model stands in the compatibility table, not here.
"""

from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct

from stepahead_models.product.loops import SchedulingLoop
from stepahead_models.product.offload import KVOffloadConfig
from stepahead_models.product.options import PREFIX_CACHE, SCHEDULER
from stepahead_models.product.rules import Rule, enforce, settle_types
from stepahead_models.product.versions import INFERRED, OURS, PACKAGE

OFFLINE_KIND: Final = "offline"


class RoutingPolicy(Enum):
    """How requests are spread over data-parallel replicas."""

    SCORING = "scoring"
    ROUND_ROBIN = "round-robin"


class ScoringProfile(Enum):
    """What the scoring policy weighs: cached prefixes against load."""

    BALANCED = "balanced"
    LOCALITY = "locality"
    LOAD = "load"


class PrefixCacheConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prefix cache on the NPU (L1).

    ``lookahead_requests`` is for how many requests that are not scheduled yet spare blocks are
    kept.

    Raises:
        InvalidOption: a value breaks a rule.

    Source:
        furiosa-llm 2026.4.0 package, configuration types.
    """

    enabled: bool = True
    lookahead_requests: int = 2

    def __post_init__(self) -> None:
        settle_types(self, PREFIX_CACHE)
        enforce(PREFIX_CACHE_RULES, self)


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the product lets its scheduler be told.

    Two configurations are equal when every field is; the product leaves some fields out.

    Args:
        scheduler_kind: a named specialised scheduler, or None for the general one; "offline" where
            ``is_offline`` is set.
        npu_queue_limit: tasks in the hardware queue of the NPU at most; no queue of requests.
        max_processing_samples: requests in process at most.
        is_offline: select the offline scheduler.
        profile_guided_decode_batching: choose decode batches by measured execution cost.
        batch_scheduling_budget_ms: CPU time per decision for that choice, in ms.
        prefix_cache_config: L1.
        kv_offload_config: L2 and the staging memory of L3.
        scheduling_loop_type: the loop; None becomes eager.
        experimental_aggressive_batching: not together with ``max_concurrency``.
        max_concurrency: decoding requests per batch at most, or None.
        max_num_batched_tokens: tokens per batch at most, or None.
        data_parallel_routing_policy: how replicas are chosen.
        data_parallel_scoring_profile: what the scoring policy weighs.
        enable_npu_sampling: draw tokens on the NPU, where the artifact has a sampler.

    Raises:
        InvalidOption: a value breaks a rule.

    Source:
        furiosa-llm 2026.4.0 package, configuration types.
    """

    scheduler_kind: str | None = None
    npu_queue_limit: int = 1
    max_processing_samples: int = 65536
    is_offline: bool = False
    profile_guided_decode_batching: bool = True
    batch_scheduling_budget_ms: int = 1
    prefix_cache_config: PrefixCacheConfig = msgspec.field(default_factory=PrefixCacheConfig)
    kv_offload_config: KVOffloadConfig = msgspec.field(default_factory=KVOffloadConfig)
    scheduling_loop_type: SchedulingLoop | None = SchedulingLoop.EAGER
    experimental_aggressive_batching: bool = False
    max_concurrency: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_routing_policy: RoutingPolicy = RoutingPolicy.SCORING
    data_parallel_scoring_profile: ScoringProfile = ScoringProfile.BALANCED
    enable_npu_sampling: bool = False

    def __post_init__(self) -> None:
        settle_types(self, SCHEDULER)
        enforce(SCHEDULER_RULES, self)
        if self.is_offline:
            msgspec.structs.force_setattr(self, "scheduler_kind", OFFLINE_KIND)
        if self.scheduling_loop_type is None:
            msgspec.structs.force_setattr(self, "scheduling_loop_type", SchedulingLoop.EAGER)

    @property
    def loop(self) -> SchedulingLoop:
        """The loop that will run."""
        return self.scheduling_loop_type or SchedulingLoop.EAGER


PREFIX_CACHE_RULES: Final[tuple[Rule[PrefixCacheConfig], ...]] = (
    Rule(
        name="lookahead-requests-not-negative",
        option=f"{PREFIX_CACHE}.lookahead_requests",
        expected="a whole number, at least 0",
        way_out="leave it out for the default 2",
        source=INFERRED,
        holds=lambda config: config.lookahead_requests >= 0,
    ),
)

SCHEDULER_RULES: Final[tuple[Rule[SchedulerConfig], ...]] = (
    Rule(
        name="npu-queue-limit-positive",
        option=f"{SCHEDULER}.npu_queue_limit",
        expected="a whole number, at least 1",
        way_out="leave it out for the default 1",
        source=INFERRED,
        holds=lambda config: config.npu_queue_limit >= 1,
    ),
    Rule(
        name="max-processing-samples-positive",
        option=f"{SCHEDULER}.max_processing_samples",
        expected="a whole number, at least 1",
        way_out="leave it out for the default 65536",
        source=f"{PACKAGE}, configuration types",
        holds=lambda config: config.max_processing_samples >= 1,
    ),
    Rule(
        name="offline-has-one-kind",
        option=f"{SCHEDULER}.scheduler_kind",
        expected="'offline' or nothing beside is_offline",
        way_out="leave out one of the two",
        source=OURS,
        holds=lambda config: not config.is_offline or config.scheduler_kind in {None, OFFLINE_KIND},
    ),
    Rule(
        name="batch-scheduling-budget-positive",
        option=f"{SCHEDULER}.batch_scheduling_budget_ms",
        expected="a whole number of milliseconds, at least 1",
        way_out="switch profile_guided_decode_batching off to spend nothing",
        source=f"{PACKAGE}, configuration types",
        holds=lambda config: config.batch_scheduling_budget_ms >= 1,
    ),
    Rule(
        name="max-concurrency-positive",
        option=f"{SCHEDULER}.max_concurrency",
        expected="a whole number, at least 1",
        way_out="leave it out for no limit",
        source=f"{PACKAGE}, configuration types",
        holds=lambda config: config.max_concurrency is None or config.max_concurrency >= 1,
    ),
    Rule(
        name="aggressive-batching-without-max-concurrency",
        option=f"{SCHEDULER}.max_concurrency",
        expected="no limit beside experimental_aggressive_batching",
        way_out="leave out one of the two",
        source=f"{PACKAGE}, configuration types",
        holds=lambda config: (
            not config.experimental_aggressive_batching or config.max_concurrency is None
        ),
    ),
    Rule(
        name="max-num-batched-tokens-positive",
        option=f"{SCHEDULER}.max_num_batched_tokens",
        expected="a whole number, at least 1",
        way_out="leave it out for no limit",
        source=INFERRED,
        holds=lambda config: (
            config.max_num_batched_tokens is None or config.max_num_batched_tokens >= 1
        ),
    ),
    Rule(
        name="round-robin-weighs-nothing",
        option=f"{SCHEDULER}.data_parallel_scoring_profile",
        expected="'balanced' beside the policy round-robin",
        way_out="leave it out, or use the policy scoring",
        source=f"{PACKAGE}, configuration types",
        holds=lambda config: (
            config.data_parallel_routing_policy is not RoutingPolicy.ROUND_ROBIN
            or config.data_parallel_scoring_profile is ScoringProfile.BALANCED
        ),
    ),
)
