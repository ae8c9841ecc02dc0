"""The configuration objects: the product's defaults, strict types, equality."""

import msgspec
import pytest
from msgspec import Struct

from stepahead_models.product import (
    EngineConfig,
    InvalidOption,
    KVOffloadConfig,
    PrefixCacheConfig,
    SchedulerConfig,
    SchedulingLoop,
    SpeculativeConfig,
)
from stepahead_models.product.engine import KVTransferConfig
from stepahead_models.product.scheduler import RoutingPolicy, ScoringProfile
from stepahead_models.product.speculation import SpeculativeMethod

# furiosa-llm 2026.4.0 package, configuration types
PREFIX_CACHE = {"enabled": True, "lookahead_requests": 2}
KV_OFFLOAD = {
    "enabled": False,
    "host_memory_ratio": 0.0,
    "host_memory_bytes": None,
    "write_through_threshold": 2,
    "write_back": False,
    "staging_memory_bytes": None,
    "overlap_l2_reload": False,
}
SCHEDULER = {
    "scheduler_kind": None,
    "npu_queue_limit": 1,
    "max_processing_samples": 65536,
    "is_offline": False,
    "profile_guided_decode_batching": True,
    "batch_scheduling_budget_ms": 1,
    "prefix_cache_config": PREFIX_CACHE,
    "kv_offload_config": KV_OFFLOAD,
    "scheduling_loop_type": "eager",
    "experimental_aggressive_batching": False,
    "max_concurrency": None,
    "max_num_batched_tokens": None,
    "data_parallel_routing_policy": "scoring",
    "data_parallel_scoring_profile": "balanced",
    "enable_npu_sampling": False,
}

DRAFT = SpeculativeConfig(method=SpeculativeMethod.DRAFT_MODEL, num_speculative_tokens=3, model="d")
HOST = KVOffloadConfig(enabled=True, host_memory_bytes=1 << 30)


def test_the_defaults_are_those_of_the_product() -> None:
    """Names, order and values of every field."""
    assert msgspec.to_builtins(SchedulerConfig()) == SCHEDULER
    assert list(msgspec.to_builtins(SchedulerConfig())) == list(SCHEDULER)


CHANGES: list[tuple[Struct, dict[str, object]]] = [
    (PrefixCacheConfig(), {"enabled": False, "lookahead_requests": 3}),
    (
        HOST,
        {
            "enabled": False,
            "host_memory_bytes": 7,
            "write_through_threshold": 3,
            "write_back": True,
            "staging_memory_bytes": 5,
            "overlap_l2_reload": True,
        },
    ),
    (KVOffloadConfig(), {"host_memory_ratio": 0.5}),
    (
        SchedulerConfig(),
        {
            "scheduler_kind": "special",
            "npu_queue_limit": 2,
            "max_processing_samples": 1,
            "is_offline": True,
            "profile_guided_decode_batching": False,
            "batch_scheduling_budget_ms": 2,
            "prefix_cache_config": PrefixCacheConfig(enabled=False),
            "kv_offload_config": HOST,
            "scheduling_loop_type": SchedulingLoop.OVERLAP,
            "experimental_aggressive_batching": True,
            "max_concurrency": 4,
            "max_num_batched_tokens": 5,
            "data_parallel_routing_policy": RoutingPolicy.ROUND_ROBIN,
            "data_parallel_scoring_profile": ScoringProfile.LOAD,
            "enable_npu_sampling": True,
        },
    ),
    (
        DRAFT,
        {"num_speculative_tokens": 4, "model": "e", "draft_fxb_path": "f"},
    ),
    (
        EngineConfig(),
        {
            "l3_enabled": True,
            "max_model_len": 9,
            "scheduler_config": SchedulerConfig(npu_queue_limit=2),
            "speculative_config": DRAFT,
            "kv_transfer_config": KVTransferConfig(host="h", port=1),
        },
    ),
]
FIELDS = [(subject, name, value) for subject, fields in CHANGES for name, value in fields.items()]


@pytest.mark.parametrize(("subject", "name", "value"), FIELDS)
def test_two_configurations_that_differ_in_one_field_are_not_equal(
    subject: Struct, name: str, value: object
) -> None:
    """No field is left out of the comparison, unlike in the product."""
    other = msgspec.structs.replace(subject, **{name: value})
    assert other != subject
    assert other == msgspec.structs.replace(subject, **{name: value})


def test_every_field_of_the_scheduler_is_compared_above() -> None:
    """A field that is added later must be added to the test above."""
    compared = {(type(subject), name) for subject, name, _ in FIELDS}
    for kind in (PrefixCacheConfig, KVOffloadConfig, SchedulerConfig, EngineConfig):
        assert {(kind, name) for name in kind.__struct_fields__} <= compared


@pytest.mark.parametrize(
    "kind",
    [SchedulerConfig, PrefixCacheConfig, KVOffloadConfig, SpeculativeConfig, EngineConfig],
)
def test_an_unknown_keyword_is_refused(kind: type[Struct]) -> None:
    """Nothing is swallowed in silence."""
    with pytest.raises(TypeError, match="Unexpected keyword argument 'colour'"):
        kind(colour="red")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"npu_queue_limit": "1"},
            (
                "scheduler_config.npu_queue_limit (--npu-queue-limit) is '1'; "
                "expected a whole number; leave it out for the default 1"
            ),
        ),
        (
            {"max_concurrency": True},
            (
                "scheduler_config.max_concurrency (--max-concurrency) is true; "
                "expected a whole number; leave it out if you have no wish"
            ),
        ),
        (
            {"is_offline": 1},
            (
                "scheduler_config.is_offline is 1; "
                "expected true or false; leave it out for the default false"
            ),
        ),
        (
            {"scheduling_loop_type": "step-based"},
            (
                "scheduler_config.scheduling_loop_type (--loop) is 'step-based'; expected one of "
                "eager, overlap, just-in-time; leave it out for the default 'eager'"
            ),
        ),
        (
            {"data_parallel_routing_policy": "prefix-aware"},
            (
                "scheduler_config.data_parallel_routing_policy (--data-parallel-routing-policy) is "
                "'prefix-aware'; expected one of scoring, round-robin; it ended with 2026.2; "
                "use the policy scoring with data_parallel_scoring_profile locality"
            ),
        ),
        (
            {"kv_offload_config": 3},
            (
                "scheduler_config.kv_offload_config is 3; "
                "expected a table of options; leave it out for the defaults"
            ),
        ),
    ],
)
def test_a_value_of_another_type_is_refused(fields: dict[str, object], message: str) -> None:
    """Text is no number, true is no number, and one is not true."""
    with pytest.raises(InvalidOption) as caught:
        SchedulerConfig(**fields)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert str(caught.value) == message


@pytest.mark.parametrize("tokens", [True, 1.0, "3"])
def test_a_draft_width_is_a_whole_number(tokens: object) -> None:
    """True counts as one in Python, and not here."""
    with pytest.raises(InvalidOption) as caught:
        SpeculativeConfig(
            method=SpeculativeMethod.MTP,
            num_speculative_tokens=tokens,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        )
    assert caught.value.option == "speculative_config.num_speculative_tokens"
    assert caught.value.expected == "a whole number"


def test_a_loop_may_be_given_by_name_or_left_open() -> None:
    """An open loop is eager, and the configuration says so."""
    by_name = SchedulerConfig(
        scheduling_loop_type="Overlap"  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    )
    assert by_name == SchedulerConfig(scheduling_loop_type=SchedulingLoop.OVERLAP)
    left_open = SchedulerConfig(scheduling_loop_type=None)
    assert left_open.loop is SchedulingLoop.EAGER
    assert left_open == SchedulerConfig()


def test_offline_names_the_offline_scheduler() -> None:
    """The kind follows from the flag."""
    assert SchedulerConfig(is_offline=True).scheduler_kind == "offline"


def test_write_back_is_off_where_the_host_cache_is_off() -> None:
    """There is nothing to write back to."""
    assert not KVOffloadConfig(write_back=True).write_back
    assert msgspec.structs.replace(HOST, write_back=True).write_back


def test_a_threshold_of_zero_never_writes_through() -> None:
    """Zero on the command line and nothing in Python mean the same."""
    assert KVOffloadConfig(write_through_threshold=0) == KVOffloadConfig(
        write_through_threshold=None
    )


@pytest.mark.parametrize(
    ("config", "schedulers", "expected"),
    [
        (KVOffloadConfig(), 1, 0),
        (KVOffloadConfig(host_memory_bytes=1000), 1, 0),
        (KVOffloadConfig(enabled=True, host_memory_bytes=1000), 1, 1000),
        (KVOffloadConfig(enabled=True, host_memory_bytes=1000), 3, 333),
        (KVOffloadConfig(enabled=True, host_memory_ratio=1.5), 3, 120),
    ],
)
def test_a_budget_in_bytes_is_split_and_a_ratio_is_not(
    config: KVOffloadConfig, schedulers: int, expected: int
) -> None:
    """80 bytes of KV memory on the NPU of each scheduler."""
    assert config.host_bytes(80, schedulers=schedulers) == expected
