"""The options as users write them: keyword, flag, and where each one lands in the configuration.

Also names that other versions have and 2026.4 has not, each with what to write instead. Owns names
only; values are checked by the configuration objects.
"""

from typing import Final

from msgspec import Struct

SCHEDULER: Final = "scheduler_config"
PREFIX_CACHE: Final = f"{SCHEDULER}.prefix_cache_config"
KV_OFFLOAD: Final = f"{SCHEDULER}.kv_offload_config"
SPECULATIVE: Final = "speculative_config"
KV_TRANSFER: Final = "kv_transfer_config"


class Option(Struct, frozen=True):
    """One option of the command line.

    ``keyword`` is its name as a keyword, ``flag`` on the command line (empty where the product has
    none), ``field`` the dotted name of the field that it sets as it is; empty where the value is
    translated first.
    """

    keyword: str
    flag: str
    field: str


def _scheduler(name: str, flag: str = "") -> Option:
    return Option(name, flag or f"--{name.replace('_', '-')}", f"{SCHEDULER}.{name}")


# Source: furiosa-llm 2026.4.0 package, serve command; `--loop` and `l3_enabled` are ours (the
# product reads L3_ENABLED from the environment).
OPTIONS: Final = (
    Option("scheduling_loop_type", "--loop", f"{SCHEDULER}.scheduling_loop_type"),
    Option("enable_overlap_scheduling", "--enable-overlap-scheduling", ""),
    _scheduler("scheduler_kind"),
    _scheduler("npu_queue_limit"),
    _scheduler("max_processing_samples"),
    Option("is_offline", "", f"{SCHEDULER}.is_offline"),
    _scheduler("profile_guided_decode_batching"),
    _scheduler("batch_scheduling_budget_ms"),
    _scheduler("experimental_aggressive_batching"),
    _scheduler("max_concurrency"),
    _scheduler("max_num_batched_tokens"),
    _scheduler("data_parallel_routing_policy"),
    _scheduler("data_parallel_scoring_profile"),
    _scheduler("enable_npu_sampling", "--experimental-enable-npu-sampling"),
    Option("enable_prefix_caching", "--enable-prefix-caching", f"{PREFIX_CACHE}.enabled"),
    Option(
        "prefix_cache_lookahead_requests",
        "--prefix-cache-lookahead-requests",
        f"{PREFIX_CACHE}.lookahead_requests",
    ),
    Option("kv_offload_host_memory_gb", "--experimental-kv-offload-host-memory-gb", ""),
    Option(
        "kv_offload_host_memory_ratio",
        "--experimental-kv-offload-host-memory-ratio",
        f"{KV_OFFLOAD}.host_memory_ratio",
    ),
    Option(
        "kv_offload_write_through_threshold",
        "--experimental-kv-offload-write-through-threshold",
        f"{KV_OFFLOAD}.write_through_threshold",
    ),
    Option(
        "kv_offload_write_back",
        "--experimental-kv-offload-write-back",
        f"{KV_OFFLOAD}.write_back",
    ),
    Option(
        "kv_offload_overlap_l2_reload",
        "--experimental-kv-offload-overlap-l2-reload",
        f"{KV_OFFLOAD}.overlap_l2_reload",
    ),
    Option("kv_offload_staging_memory_gb", "--experimental-kv-offload-staging-memory-gb", ""),
    Option("speculative_config", "--experimental-speculative-config", ""),
    Option("speculative_method", "", ""),
    Option("draft_model_id_or_path", "", ""),
    Option("draft_fxb_path", "", ""),
    Option("num_speculative_tokens", "", ""),
    Option("kv_transfer_config", "--experimental-kv-transfer-config", ""),
    Option("l3_enabled", "", "l3_enabled"),
    Option("max_model_len", "--max-model-len", "max_model_len"),
)

# Source: differences between the furiosa-llm packages 2026.2.1, 2026.3.0, 2026.4.0 and 2026.5.0b1.
OTHER_VERSIONS: Final = {
    "spare_blocks_ratio": "it ended with 2026.3; use lookahead_requests of prefix_cache_config",
    "estimation_time_limit_ms": "it ended with 2026.3; use batch_scheduling_budget_ms",
    "experimental_scheduling_loop_type": "it ended with 2026.2; use scheduling_loop_type",
    "ssm_state_interval": "it came with 2026.5.0b1 for linear-attention models; leave it out",
    "prefix-aware": (
        "it ended with 2026.2; use the policy scoring with data_parallel_scoring_profile locality"
    ),
}

_FLAGS: Final = {name: o.flag for o in OPTIONS for name in (o.keyword, o.field) if name and o.flag}


def with_flag(name: str) -> str:
    """Write the dotted name of a field, or a keyword, with its flag where it has one."""
    flag = _FLAGS.get(name)
    return f"{name} ({flag})" if flag else name
