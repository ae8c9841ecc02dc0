"""Configurations from TOML and from keyword options, and back to TOML."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead_models.product import (
    EngineConfig,
    InvalidOption,
    KVOffloadConfig,
    PrefixCacheConfig,
    SchedulerConfig,
    SchedulingLoop,
    SpeculativeConfig,
    UnknownLoop,
    UnreadableConfiguration,
    read_engine_config,
    to_toml,
)
from stepahead_models.product.engine import KVTransferConfig
from stepahead_models.product.options import OPTIONS
from stepahead_models.product.reading import Plain
from stepahead_models.product.rules import UnknownOption
from stepahead_models.product.scheduler import RoutingPolicy, ScoringProfile
from stepahead_models.product.speculation import SpeculativeMethod

GIB = 1 << 30
OFFLOAD = "scheduler_config.kv_offload_config"
DRAFT = SpeculativeConfig(method=SpeculativeMethod.DRAFT_MODEL, num_speculative_tokens=2, model="d")
TRANSFER = KVTransferConfig(host="node", port=7000)


def scheduler(**fields: object) -> EngineConfig:
    """A configuration that differs from the defaults in fields of the scheduler."""
    config = SchedulerConfig(**fields)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    return EngineConfig(scheduler_config=config)


def offload(**fields: object) -> EngineConfig:
    """A configuration that differs from the defaults in fields of the host cache."""
    config = KVOffloadConfig(**fields)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    return scheduler(kv_offload_config=config)


BUDGET: Plain = {"kv_offload_host_memory_gb": 2}
HOST: Plain = {"enabled": True, "host_memory_bytes": 2 * GIB}
OVERLAP = scheduler(scheduling_loop_type=SchedulingLoop.OVERLAP)
NESTED: Plain = {"method": "draft_model", "num_speculative_tokens": 2, "model": "d"}
FLAT: Plain = {
    "speculative_method": "draft_model",
    "num_speculative_tokens": 2,
    "draft_model_id_or_path": "d",
}

# Every option, by a value that changes something.
READ: list[tuple[str, Plain, EngineConfig]] = [
    ("scheduling_loop_type", {"scheduling_loop_type": "OVERLAP"}, OVERLAP),
    ("enable_overlap_scheduling", {"enable_overlap_scheduling": True}, OVERLAP),
    ("scheduler_kind", {"scheduler_kind": "s"}, scheduler(scheduler_kind="s")),
    ("npu_queue_limit", {"npu_queue_limit": 2}, scheduler(npu_queue_limit=2)),
    (
        "max_processing_samples",
        {"max_processing_samples": 9},
        scheduler(max_processing_samples=9),
    ),
    ("is_offline", {"is_offline": True}, scheduler(is_offline=True)),
    (
        "profile_guided_decode_batching",
        {"profile_guided_decode_batching": False},
        scheduler(profile_guided_decode_batching=False),
    ),
    (
        "batch_scheduling_budget_ms",
        {"batch_scheduling_budget_ms": 3},
        scheduler(batch_scheduling_budget_ms=3),
    ),
    (
        "experimental_aggressive_batching",
        {"experimental_aggressive_batching": True},
        scheduler(experimental_aggressive_batching=True),
    ),
    ("max_concurrency", {"max_concurrency": 4}, scheduler(max_concurrency=4)),
    ("max_num_batched_tokens", {"max_num_batched_tokens": 5}, scheduler(max_num_batched_tokens=5)),
    (
        "data_parallel_routing_policy",
        {"data_parallel_routing_policy": "round-robin"},
        scheduler(data_parallel_routing_policy=RoutingPolicy.ROUND_ROBIN),
    ),
    (
        "data_parallel_scoring_profile",
        {"data_parallel_scoring_profile": "load"},
        scheduler(data_parallel_scoring_profile=ScoringProfile.LOAD),
    ),
    ("enable_npu_sampling", {"enable_npu_sampling": True}, scheduler(enable_npu_sampling=True)),
    (
        "enable_prefix_caching",
        {"enable_prefix_caching": False},
        scheduler(prefix_cache_config=PrefixCacheConfig(enabled=False)),
    ),
    (
        "prefix_cache_lookahead_requests",
        {"prefix_cache_lookahead_requests": 0},
        scheduler(prefix_cache_config=PrefixCacheConfig(lookahead_requests=0)),
    ),
    ("kv_offload_host_memory_gb", BUDGET, offload(**HOST)),
    (
        "kv_offload_host_memory_ratio",
        {"kv_offload_host_memory_ratio": 1},
        offload(enabled=True, host_memory_ratio=1.0),
    ),
    (
        "kv_offload_write_through_threshold",
        {"kv_offload_write_through_threshold": 0},
        offload(write_through_threshold=None),
    ),
    (
        "kv_offload_write_back",
        {**BUDGET, "kv_offload_write_back": True},
        offload(**HOST, write_back=True),
    ),
    (
        "kv_offload_overlap_l2_reload",
        {**BUDGET, "kv_offload_overlap_l2_reload": True},
        offload(**HOST, overlap_l2_reload=True),
    ),
    (
        "kv_offload_staging_memory_gb",
        {"kv_offload_staging_memory_gb": 0.5},
        offload(staging_memory_bytes=GIB // 2),
    ),
    ("speculative_config", {"speculative_config": NESTED}, EngineConfig(speculative_config=DRAFT)),
    ("speculative_method", FLAT, EngineConfig(speculative_config=DRAFT)),
    ("draft_model_id_or_path", FLAT, EngineConfig(speculative_config=DRAFT)),
    ("num_speculative_tokens", FLAT, EngineConfig(speculative_config=DRAFT)),
    (
        "draft_fxb_path",
        {**FLAT, "draft_fxb_path": "d.fxb"},
        EngineConfig(
            speculative_config=SpeculativeConfig(
                method=SpeculativeMethod.DRAFT_MODEL,
                num_speculative_tokens=2,
                model="d",
                draft_fxb_path="d.fxb",
            )
        ),
    ),
    (
        "kv_transfer_config",
        {"kv_transfer_config": '{"host": "node", "port": 7000}'},
        EngineConfig(kv_transfer_config=TRANSFER),
    ),
    (
        "l3_enabled",
        {"l3_enabled": True},
        EngineConfig(
            l3_enabled=True,
            scheduler_config=offload(staging_memory_bytes=24 * GIB).scheduler_config,
        ),
    ),
    ("max_model_len", {"max_model_len": 8}, EngineConfig(max_model_len=8)),
]


@pytest.mark.parametrize(("keyword", "options", "expected"), READ, ids=[r[0] for r in READ])
def test_an_option_changes_its_field(keyword: str, options: Plain, expected: EngineConfig) -> None:
    """And the text of the result reads back as the same configuration."""
    config = read_engine_config(options=options)
    assert keyword in options
    assert config == expected != EngineConfig()
    assert read_engine_config(to_toml(config)) == config


def test_every_option_is_tested_above() -> None:
    """An option that is added later must be added to the list."""
    assert {option.keyword for option in OPTIONS} == {keyword for keyword, _, _ in READ}


def test_an_option_without_a_value_is_not_given() -> None:
    """A command line passes None for what nobody typed; a threshold of None is the default 2."""
    nothing = dict.fromkeys(option.keyword for option in OPTIONS)
    assert read_engine_config(options=nothing) == EngineConfig()
    config = read_engine_config(options={**nothing, **BUDGET})
    assert config.scheduler_config.kv_offload_config.write_through_threshold == 2


def test_objects_may_be_given_as_they_are() -> None:
    """Python callers need not write tables."""
    options = {"speculative_config": DRAFT, "kv_transfer_config": TRANSFER}
    assert read_engine_config(options=options) == EngineConfig(
        speculative_config=DRAFT, kv_transfer_config=TRANSFER
    )


def test_options_win_over_the_text() -> None:
    """The rest of the text stays."""
    text = """
        [scheduler_config]
        npu_queue_limit = 3
        max_concurrency = 7
        scheduling_loop_type = "overlap"
    """
    options = {"max_concurrency": 2, "enable_overlap_scheduling": False}
    assert read_engine_config(text, options) == scheduler(npu_queue_limit=3, max_concurrency=2)


def test_a_budget_among_the_options_replaces_the_one_of_the_text() -> None:
    """What the text says besides stays; a ratio of 0 switches the cache off."""
    text = f"[{OFFLOAD}]\nhost_memory_bytes = 9\nwrite_through_threshold = 5\n"
    assert read_engine_config(text) == offload(
        enabled=True, host_memory_bytes=9, write_through_threshold=5
    )
    assert read_engine_config(text, {"kv_offload_host_memory_ratio": 0.5}) == offload(
        enabled=True, host_memory_ratio=0.5, write_through_threshold=5
    )
    assert read_engine_config(text, {"kv_offload_host_memory_ratio": 0}) == offload(
        write_through_threshold=5
    )


def test_a_text_may_keep_its_own_staging_memory() -> None:
    """The 24 GiB count only where nothing is said."""
    text = f"l3_enabled = true\n[{OFFLOAD}]\nstaging_memory_bytes = 9\n"
    config = read_engine_config(text).scheduler_config.kv_offload_config
    assert config.staging_memory_bytes == 9


REFUSED: list[tuple[Callable[[], EngineConfig], type[InvalidOption], str]] = [
    (
        lambda: read_engine_config("[scheduler_config]\nnpu_queue_limt = 1\n"),
        UnknownOption,
        ("scheduler_config.npu_queue_limt is not an option; did you mean npu_queue_limit?"),
    ),
    (
        lambda: read_engine_config(f"[{OFFLOAD}]\ncolour = 1\n"),
        UnknownOption,
        (
            f"{OFFLOAD}.colour is not an option; the keys here are enabled, host_memory_ratio, "
            "host_memory_bytes, write_through_threshold, write_back, staging_memory_bytes, "
            "overlap_l2_reload"
        ),
    ),
    (
        lambda: read_engine_config("[scheduler_config]\nspare_blocks_ratio = 0.0\n"),
        UnknownOption,
        (
            "scheduler_config.spare_blocks_ratio is not an option; "
            "it ended with 2026.3; use lookahead_requests of prefix_cache_config"
        ),
    ),
    (
        lambda: read_engine_config(
            "[scheduler_config.prefix_cache_config]\nssm_state_interval = 1\n"
        ),
        UnknownOption,
        (
            "scheduler_config.prefix_cache_config.ssm_state_interval is not an option; "
            "it came with 2026.5.0b1 for linear-attention models; leave it out"
        ),
    ),
    (
        lambda: read_engine_config(options={"max_concurency": 1}),
        UnknownOption,
        "max_concurency is not an option; did you mean max_concurrency?",
    ),
    (
        lambda: read_engine_config("scheduler_config = 3\n"),
        InvalidOption,
        (
            "scheduler_config is 3; "
            "expected a table of options; write [scheduler_config] and its keys below"
        ),
    ),
    (
        lambda: read_engine_config(
            options={"enable_overlap_scheduling": True, "scheduling_loop_type": "eager"}
        ),
        InvalidOption,
        (
            "enable_overlap_scheduling (--enable-overlap-scheduling) is true; "
            "expected nothing that contradicts scheduling_loop_type; leave out one of the two"
        ),
    ),
    (
        lambda: read_engine_config(
            options={"enable_overlap_scheduling": False, "scheduling_loop_type": "just-in-time"}
        ),
        InvalidOption,
        (
            "enable_overlap_scheduling (--enable-overlap-scheduling) is false; "
            "expected nothing that contradicts scheduling_loop_type; leave out one of the two"
        ),
    ),
    (
        lambda: read_engine_config(options={"enable_overlap_scheduling": "overlap"}),
        InvalidOption,
        (
            "enable_overlap_scheduling (--enable-overlap-scheduling) is 'overlap'; "
            "expected true or false; name a loop with scheduling_loop_type instead"
        ),
    ),
    (
        lambda: read_engine_config(options={"speculative_config": NESTED, **FLAT}),
        InvalidOption,
        (
            f"speculative_config (--experimental-speculative-config) is {NESTED!r}; "
            "expected it alone, or the single options (speculative_method, "
            "num_speculative_tokens, draft_model_id_or_path) alone; "
            "leave out one of the two forms"
        ),
    ),
    (
        lambda: read_engine_config(options={"speculative_config": {**NESTED, "width": 2}}),
        UnknownOption,
        (
            "speculative_config.width is not an option; "
            "the keys here are method, num_speculative_tokens, model, draft_fxb_path"
        ),
    ),
    (
        lambda: read_engine_config(options={"speculative_config": {"method": "mtp"}}),
        InvalidOption,
        (
            "speculative_config.num_speculative_tokens is not set; "
            "expected a whole number; it has no default, so give it"
        ),
    ),
    (
        lambda: read_engine_config(
            options={"speculative_config": {"method": "ngram", "num_speculative_tokens": 1}}
        ),
        InvalidOption,
        (
            "speculative_config.method is 'ngram'; "
            "expected one of draft_model, mtp; correct it; it has no default"
        ),
    ),
    (
        lambda: read_engine_config(options={"speculative_config": "{method"}),
        InvalidOption,
        (
            "speculative_config (--experimental-speculative-config) is '{method'; "
            "expected a JSON object; mind the quotes of the shell"
        ),
    ),
    (
        lambda: read_engine_config(options={"speculative_config": '{"method": 1, "method": 2}'}),
        InvalidOption,
        (
            "speculative_config (--experimental-speculative-config) is "
            """'{"method": 1, "method": 2}'; expected each key once, and 'method' is there """
            "again; leave one of the two out"
        ),
    ),
    (
        lambda: read_engine_config(options={"kv_transfer_config": "[1]"}),
        InvalidOption,
        (
            "kv_transfer_config (--experimental-kv-transfer-config) is '[1]'; "
            "expected a JSON object; mind the quotes of the shell"
        ),
    ),
]


@pytest.mark.parametrize(("read", "error", "message"), REFUSED)
def test_what_cannot_be_read_is_refused_with_its_place(
    read: Callable[[], EngineConfig], error: type[InvalidOption], message: str
) -> None:
    """Unknown keys, contradictions and broken forms, each in one sentence."""
    with pytest.raises(InvalidOption) as caught:
        read()
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_an_unknown_loop_among_the_options_lists_the_loops() -> None:
    """The same error as the look-up by name."""
    with pytest.raises(UnknownLoop, match="give one of eager, overlap, just-in-time"):
        read_engine_config(options={"scheduling_loop_type": "step-based"})


def test_a_text_that_is_no_toml_is_refused_with_its_name() -> None:
    """The place inside the text is in the sentence."""
    with pytest.raises(UnreadableConfiguration) as caught:
        read_engine_config("a = \n", where="run.toml")
    assert str(caught.value) == (
        "run.toml is not TOML: Invalid value (at line 1, column 5); correct it, or start without it"
    )
    assert caught.value.where == "run.toml"
    with pytest.raises(UnreadableConfiguration) as caught:
        read_engine_config("a = " + "[" * 9999, where="run.toml")
    assert str(caught.value) == (
        "run.toml is not TOML: maximum recursion depth exceeded; correct it, or start without it"
    )


DEFAULT_TEXT = """\
l3_enabled = false
# max_model_len is not set
# speculative_config is not set
# kv_transfer_config is not set

[scheduler_config]
# scheduler_kind is not set
npu_queue_limit = 1
max_processing_samples = 65536
is_offline = false
profile_guided_decode_batching = true
batch_scheduling_budget_ms = 1
scheduling_loop_type = "eager"
experimental_aggressive_batching = false
# max_concurrency is not set
# max_num_batched_tokens is not set
data_parallel_routing_policy = "scoring"
data_parallel_scoring_profile = "balanced"
enable_npu_sampling = false

[scheduler_config.prefix_cache_config]
enabled = true
lookahead_requests = 2

[scheduler_config.kv_offload_config]
enabled = false
host_memory_ratio = 0.0
# host_memory_bytes is not set
write_through_threshold = 2
write_back = false
# staging_memory_bytes is not set
overlap_l2_reload = false
"""


def test_the_effective_configuration_is_printed_with_all_its_defaults() -> None:
    """Byte for byte, in the order of the fields."""
    assert to_toml(EngineConfig()) == DEFAULT_TEXT


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
COUNTS = st.integers(1, 2**62)
SCHEDULERS = st.builds(
    SchedulerConfig,
    scheduler_kind=st.none() | TEXTS,
    npu_queue_limit=COUNTS,
    scheduling_loop_type=st.none() | st.sampled_from(SchedulingLoop),
    max_concurrency=st.none() | COUNTS,
    data_parallel_scoring_profile=st.sampled_from(ScoringProfile),
    prefix_cache_config=st.builds(PrefixCacheConfig, enabled=st.booleans()),
    kv_offload_config=st.builds(
        KVOffloadConfig,
        enabled=st.just(value=True),
        host_memory_ratio=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        write_through_threshold=st.none() | st.integers(0, 2**62),
        write_back=st.booleans(),
    ),
)
CONFIGS = st.builds(
    EngineConfig,
    l3_enabled=st.booleans(),
    scheduler_config=SCHEDULERS,
    speculative_config=st.none()
    | st.builds(
        SpeculativeConfig,
        method=st.just(SpeculativeMethod.DRAFT_MODEL),
        num_speculative_tokens=COUNTS,
        model=TEXTS,
        draft_fxb_path=st.none() | TEXTS,
    ),
)


@given(CONFIGS)
def test_every_configuration_reads_back_from_its_text(config: EngineConfig) -> None:
    """Whatever stands in its texts and numbers."""
    assert read_engine_config(to_toml(config)) == config
