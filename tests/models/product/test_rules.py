"""Every validation rule, each by an example that breaks it alone, on the full text."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from stepahead_models.product import (
    EngineConfig,
    InvalidOption,
    KVOffloadConfig,
    PrefixCacheConfig,
    SchedulerConfig,
    SpeculativeConfig,
    read_engine_config,
)
from stepahead_models.product.engine import ENGINE_RULES, KV_TRANSFER_RULES, KVTransferConfig
from stepahead_models.product.offload import KV_OFFLOAD_RULES, MEMORY_RULES
from stepahead_models.product.rules import Rule
from stepahead_models.product.scheduler import (
    PREFIX_CACHE_RULES,
    SCHEDULER_RULES,
    RoutingPolicy,
    ScoringProfile,
)
from stepahead_models.product.speculation import (
    SPECULATIVE_RULES,
    SpeculativeMethod,
    check_draft_vocabulary,
)

RULES: tuple[Rule[Any], ...] = (
    *PREFIX_CACHE_RULES,
    *SCHEDULER_RULES,
    *KV_OFFLOAD_RULES,
    *MEMORY_RULES,
    *SPECULATIVE_RULES,
    *KV_TRANSFER_RULES,
    *ENGINE_RULES,
)
S, OFFLOAD = "scheduler_config", "scheduler_config.kv_offload_config"
FLAG = "--experimental-kv-offload"
MTP, DRAFT_MODEL = SpeculativeMethod.MTP, SpeculativeMethod.DRAFT_MODEL


def gb(**options: object) -> Callable[[], object]:
    """Read a configuration from options that begin with ``kv_offload_``."""
    return lambda: read_engine_config(
        options={f"kv_offload_{name}": value for name, value in options.items()}
    )


EXAMPLES: list[tuple[str, Callable[[], object], str]] = [
    (
        "lookahead-requests-not-negative",
        lambda: PrefixCacheConfig(lookahead_requests=-1),
        (
            f"{S}.prefix_cache_config.lookahead_requests "
            "(--prefix-cache-lookahead-requests) is -1; "
            "expected a whole number, at least 0; leave it out for the default 2"
        ),
    ),
    (
        "npu-queue-limit-positive",
        lambda: SchedulerConfig(npu_queue_limit=0),
        (
            f"{S}.npu_queue_limit (--npu-queue-limit) is 0; "
            "expected a whole number, at least 1; leave it out for the default 1"
        ),
    ),
    (
        "max-processing-samples-positive",
        lambda: SchedulerConfig(max_processing_samples=0),
        (
            f"{S}.max_processing_samples (--max-processing-samples) is 0; "
            "expected a whole number, at least 1; leave it out for the default 65536"
        ),
    ),
    (
        "offline-has-one-kind",
        lambda: SchedulerConfig(is_offline=True, scheduler_kind="special"),
        (
            f"{S}.scheduler_kind (--scheduler-kind) is 'special'; "
            "expected 'offline' or nothing beside is_offline; leave out one of the two"
        ),
    ),
    (
        "batch-scheduling-budget-positive",
        lambda: SchedulerConfig(batch_scheduling_budget_ms=0),
        (
            f"{S}.batch_scheduling_budget_ms (--batch-scheduling-budget-ms) is 0; "
            "expected a whole number of milliseconds, at least 1; "
            "switch profile_guided_decode_batching off to spend nothing"
        ),
    ),
    (
        "max-concurrency-positive",
        lambda: SchedulerConfig(max_concurrency=0),
        (
            f"{S}.max_concurrency (--max-concurrency) is 0; "
            "expected a whole number, at least 1; leave it out for no limit"
        ),
    ),
    (
        "aggressive-batching-without-max-concurrency",
        lambda: SchedulerConfig(experimental_aggressive_batching=True, max_concurrency=8),
        (
            f"{S}.max_concurrency (--max-concurrency) is 8; "
            "expected no limit beside experimental_aggressive_batching; leave out one of the two"
        ),
    ),
    (
        "max-num-batched-tokens-positive",
        lambda: SchedulerConfig(max_num_batched_tokens=0),
        (
            f"{S}.max_num_batched_tokens (--max-num-batched-tokens) is 0; "
            "expected a whole number, at least 1; leave it out for no limit"
        ),
    ),
    (
        "round-robin-weighs-nothing",
        lambda: SchedulerConfig(
            data_parallel_routing_policy=RoutingPolicy.ROUND_ROBIN,
            data_parallel_scoring_profile=ScoringProfile.LOCALITY,
        ),
        (
            f"{S}.data_parallel_scoring_profile (--data-parallel-scoring-profile) is 'locality'; "
            "expected 'balanced' beside the policy round-robin; "
            "leave it out, or use the policy scoring"
        ),
    ),
    (
        "host-memory-ratio-finite",
        lambda: KVOffloadConfig(host_memory_ratio=-0.5),
        (
            f"{OFFLOAD}.host_memory_ratio ({FLAG}-host-memory-ratio) is -0.5; "
            "expected a finite number, at least 0; give 0 to leave the host cache off"
        ),
    ),
    (
        "host-memory-ratio-finite",
        gb(host_memory_ratio=math.nan),
        (
            f"{OFFLOAD}.host_memory_ratio ({FLAG}-host-memory-ratio) is nan; "
            "expected a finite number, at least 0; give 0 to leave the host cache off"
        ),
    ),
    (
        "host-memory-bytes-positive",
        lambda: KVOffloadConfig(host_memory_bytes=0),
        (
            f"{OFFLOAD}.host_memory_bytes is 0; "
            "expected a whole number of bytes, at least 1; leave it out to leave the host cache off"
        ),
    ),
    (
        "host-memory-has-one-budget",
        lambda: KVOffloadConfig(host_memory_bytes=9, host_memory_ratio=0.1),
        (
            f"{OFFLOAD}.host_memory_bytes is 9; "
            "expected bytes or a ratio of host memory, not both; "
            "leave out host_memory_bytes or host_memory_ratio"
        ),
    ),
    (
        "enabled-has-a-budget",
        lambda: KVOffloadConfig(enabled=True),
        (
            f"{OFFLOAD}.enabled is true; "
            "expected a host budget beside it; give host_memory_bytes or host_memory_ratio"
        ),
    ),
    (
        "write-through-threshold-not-negative",
        gb(write_through_threshold=-1),
        (
            f"{OFFLOAD}.write_through_threshold ({FLAG}-write-through-threshold) is -1; "
            "expected a whole number of hits, at least 0; "
            "give 0 to never write through, or leave it out for the default 2"
        ),
    ),
    (
        "staging-memory-bytes-positive",
        lambda: KVOffloadConfig(staging_memory_bytes=0),
        (
            f"{OFFLOAD}.staging_memory_bytes is 0; "
            "expected a whole number of bytes, at least 1; leave it out"
        ),
    ),
    (
        "reload-needs-a-host-budget",
        gb(overlap_l2_reload=True),
        (
            f"{OFFLOAD}.overlap_l2_reload ({FLAG}-overlap-l2-reload) is true; "
            "expected a host budget beside it; "
            "give host_memory_bytes or host_memory_ratio, or leave overlap_l2_reload out"
        ),
    ),
    (
        "reload-needs-the-host-cache-on",
        lambda: KVOffloadConfig(host_memory_bytes=9, overlap_l2_reload=True),
        (
            f"{OFFLOAD}.overlap_l2_reload ({FLAG}-overlap-l2-reload) is true; "
            "expected enabled = true beside it; set enabled, or leave overlap_l2_reload out"
        ),
    ),
    (
        "host-memory-gb-positive",
        gb(host_memory_gb=0),
        (
            f"kv_offload_host_memory_gb ({FLAG}-host-memory-gb) is 0.0; "
            "expected a finite number of GiB above 0; leave it out to leave the host cache off"
        ),
    ),
    (
        "host-memory-gb-positive",
        gb(host_memory_gb=math.inf),
        (
            f"kv_offload_host_memory_gb ({FLAG}-host-memory-gb) is inf; "
            "expected a finite number of GiB above 0; leave it out to leave the host cache off"
        ),
    ),
    (
        "host-memory-gb-is-a-byte",
        gb(host_memory_gb=1e-10),
        (
            f"kv_offload_host_memory_gb ({FLAG}-host-memory-gb) is 1e-10; "
            "expected at least one byte; mind that the unit is GiB"
        ),
    ),
    (
        "host-memory-has-one-option",
        gb(host_memory_gb=1.0, host_memory_ratio=0.5),
        (
            f"kv_offload_host_memory_gb ({FLAG}-host-memory-gb) is 1.0; "
            "expected GiB or a ratio of host memory, not both; "
            "leave out kv_offload_host_memory_gb or kv_offload_host_memory_ratio"
        ),
    ),
    (
        "staging-memory-gb-positive",
        gb(staging_memory_gb=-1.0),
        (
            f"kv_offload_staging_memory_gb ({FLAG}-staging-memory-gb) is -1.0; "
            "expected a finite number of GiB above 0; leave it out for the default 24.0"
        ),
    ),
    (
        "staging-memory-gb-is-a-byte",
        gb(staging_memory_gb=1e-10),
        (
            f"kv_offload_staging_memory_gb ({FLAG}-staging-memory-gb) is 1e-10; "
            "expected at least one byte; mind that the unit is GiB"
        ),
    ),
    (
        "speculative-tokens-positive",
        lambda: SpeculativeConfig(method=MTP, num_speculative_tokens=0),
        (
            "speculative_config.num_speculative_tokens is 0; "
            "expected a whole number, at least 1; leave speculative_config out to draft nothing"
        ),
    ),
    (
        "draft-model-is-named",
        lambda: SpeculativeConfig(method=DRAFT_MODEL, num_speculative_tokens=2),
        (
            "speculative_config.model is not set; "
            "expected the draft model beside the method draft_model; "
            "give model, or use the method mtp"
        ),
    ),
    (
        "mtp-has-no-draft-model",
        lambda: SpeculativeConfig(method=MTP, num_speculative_tokens=2, model="small"),
        (
            "speculative_config.model is 'small'; "
            "expected nothing beside the method mtp; "
            "leave model out, or use the method draft_model"
        ),
    ),
    (
        "mtp-has-no-draft-artifact",
        lambda: SpeculativeConfig(method=MTP, num_speculative_tokens=2, draft_fxb_path="d.fxb"),
        (
            "speculative_config.draft_fxb_path is 'd.fxb'; "
            "expected nothing beside the method mtp; "
            "leave draft_fxb_path out, or use the method draft_model"
        ),
    ),
    (
        "kv-transfer-port-exists",
        lambda: KVTransferConfig(host="node", port=70000),
        (
            "kv_transfer_config.port is 70000; "
            "expected a port from 1 to 65535; give the port of the other engine"
        ),
    ),
    (
        "kv-transfer-connector-exists",
        lambda: KVTransferConfig(host="node", port=1, kv_connector="Other"),
        "kv_transfer_config.kv_connector is 'Other'; expected 'TcpConnector'; leave it out",
    ),
    (
        "max-model-len-positive",
        lambda: EngineConfig(max_model_len=0),
        (
            "max_model_len (--max-model-len) is 0; "
            "expected a whole number of tokens, at least 1; leave it out for what the model can do"
        ),
    ),
]


IDS = [f"{name}-{number}" for number, (name, _, _) in enumerate(EXAMPLES)]


@pytest.mark.parametrize(("name", "start", "message"), EXAMPLES, ids=IDS)
def test_a_broken_rule_is_refused_with_option_value_and_way_out(
    name: str, start: Callable[[], object], message: str
) -> None:
    """The error carries what the rule says, and its sentence says it whole."""
    rule = next(rule for rule in RULES if rule.name == name)
    with pytest.raises(InvalidOption) as caught:
        start()
    assert str(caught.value) == message
    error = caught.value
    assert (error.option, error.expected, error.way_out) == (
        rule.option,
        rule.expected,
        rule.way_out,
    )


def test_every_rule_has_a_name_of_its_own_a_source_and_an_example() -> None:
    """A rule without an example is a rule that nobody has seen at work."""
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted(set(names))
    assert set(names) == {name for name, _, _ in EXAMPLES}
    assert all(rule.source for rule in RULES)


@pytest.mark.parametrize(
    ("draft", "found"),
    [
        ({"a": 0, "b": 2}, "('b': 1 in the target, 2 in it)"),
        ({"a": 0}, "('b': 1 in the target, none in it)"),
        ({"a": 0, "b": 1, "c": 2}, "('c': none in the target, 2 in it)"),
    ],
)
def test_a_draft_model_with_other_token_ids_is_refused(draft: dict[str, int], found: str) -> None:
    """The sentence names the first token that differs."""
    with pytest.raises(InvalidOption) as caught:
        check_draft_vocabulary("small", {"a": 0, "b": 1}, draft)
    assert str(caught.value) == (
        "speculative_config.model is 'small'; "
        f"expected a draft model with the target's token ids {found}; "
        "use one with the tokenizer of the target"
    )


def test_equal_token_ids_fit_in_any_order() -> None:
    """Only the ids count; the same ids with one changed are refused above."""
    check_draft_vocabulary("small", {"a": 0, "b": 1}, {"b": 1, "a": 0})
