"""How vLLM's schedulers are built without a model, a device or a worker.

The steps are those that vLLM 0.33.0 needs; a later release may need others.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from stepahead_specs.records import Limits

_ENVIRONMENT: Final = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}

#: A model that is never loaded: vLLM wants to read its shape.
_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float16",
}
_PLENTY: Final = 2048


def available() -> bool:
    """Tell whether vLLM can be imported here."""
    try:
        _prepare()
    except ImportError:
        return False
    return True


@cache
def _prepare() -> Any:  # noqa: ANN401 # vLLM's own
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    hashing = import_module("vllm.utils.hashing").get_hash_fn_by_name("sha256")
    import_module("vllm.v1.core.kv_cache_utils").init_none_hash(hashing)
    return hashing


@cache
def hasher(block_size: int) -> Any:  # noqa: ANN401 # vLLM's own
    """Return what gives the blocks of a request their hashes, for prefix caching."""
    return import_module("vllm.v1.core.kv_cache_utils").get_request_block_hasher(
        block_size, _prepare()
    )


@cache
def _configuration(limits: tuple[int, bool, bool, int, int, int]) -> Any:  # noqa: ANN401 # vLLM's own
    lookahead, caching, by_priority, block_size, model_len, concurrency = limits
    config = import_module("vllm.config")
    # vLLM reads the model's shape from a folder, once per configuration.
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        model = config.ModelConfig(
            model=folder, dtype="float16", seed=0, skip_tokenizer_init=True, max_model_len=model_len
        )
        return config.VllmConfig(
            model_config=model,
            scheduler_config=config.SchedulerConfig(
                max_num_seqs=concurrency,
                max_num_batched_tokens=_PLENTY,
                max_model_len=model_len,
                enable_chunked_prefill=True,
                async_scheduling=lookahead > 0,
                is_encoder_decoder=False,
                policy="priority" if by_priority else "fcfs",
            ),
            cache_config=config.CacheConfig(
                block_size=block_size, cache_dtype="auto", enable_prefix_caching=caching
            ),
            parallel_config=config.ParallelConfig(),
        )


def make_scheduler(limits: Limits) -> Any:  # noqa: ANN401 # vLLM's own
    """Build a fresh `Scheduler` for lookahead 0, `AsyncScheduler` for 1."""
    _prepare()
    chosen = _configuration(
        (
            limits.lookahead,
            limits.prefix_caching,
            limits.by_priority,
            limits.block_size,
            limits.max_model_len,
            limits.max_concurrency,
        )
    )
    interface = import_module("vllm.v1.kv_cache_interface")
    shape = interface.FullAttentionSpec(
        block_size=limits.block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=import_module("torch").float32,
    )
    blocks = limits.num_blocks + 1
    chosen.cache_config.num_gpu_blocks = blocks
    import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(chosen)
    folder = "vllm.v1.core.sched"
    kind = (
        import_module(f"{folder}.async_scheduler").AsyncScheduler
        if limits.lookahead
        else import_module(f"{folder}.scheduler").Scheduler
    )
    scheduler = kind(
        vllm_config=chosen,
        kv_cache_config=interface.KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], shape)],
        ),
        block_size=limits.block_size,
        structured_output_manager=import_module(
            "vllm.v1.structured_output"
        ).StructuredOutputManager(chosen),
    )
    scheduler.use_v2_model_runner = True
    # The configuration refuses a budget below the number of requests; the scheduler does not.
    scheduler.max_num_scheduled_tokens = limits.max_num_batched_tokens
    return scheduler
