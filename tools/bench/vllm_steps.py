"""The decode step of vLLM's own asynchronous scheduler, for a comparison in one run.

Run with an interpreter that has vLLM 0.33 (a CPU build of torch is enough; the model runner is
replaced by a fake that returns one token per request). It reads row counts from standard input, one
a line, and answers each with the CPU time of a step in microseconds. Nothing is downloaded: a model
is a folder with a config file.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
}
_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 32768,
    "model_type": "llama",
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
_BLOCK, _PROMPT, _OUTPUT = 16, 512, 256
_WARM_STEPS, _STEPS = 8, 240


def _class(path: str) -> Any:  # noqa: ANN401 # vLLM has no types of its own to name here
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"vllm.{module}"), name)


def _scheduler(model: str, rows: int) -> Any:  # noqa: ANN401
    blocks = rows * ((_PROMPT + _OUTPUT) // _BLOCK + 2) + 64
    cache = _class("config.CacheConfig")(
        block_size=_BLOCK,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=True,
    )
    config = _class("config.VllmConfig")(
        cache_config=cache,
        model_config=_class("config.ModelConfig")(
            model=model, dtype="float16", seed=0, skip_tokenizer_init=True, max_model_len=2048
        ),
        parallel_config=_class("config.ParallelConfig")(),
        scheduler_config=_class("config.SchedulerConfig")(
            max_num_seqs=rows,
            max_num_batched_tokens=max(rows * _PROMPT, 2048),
            max_model_len=2048,
            enable_chunked_prefill=True,
            async_scheduling=True,
            is_encoder_decoder=False,
        ),
    )
    spec = _class("v1.kv_cache_interface.FullAttentionSpec")(
        block_size=_BLOCK, num_kv_heads=1, head_size=1, dtype=import_module("torch").float32
    )
    group = _class("v1.kv_cache_interface.KVCacheGroupSpec")(["layer"], spec)
    cache.num_gpu_blocks = blocks
    _class("v1.core.single_type_kv_cache_manager.register_all_kvcache_specs")(config)
    scheduler = _class("v1.core.sched.async_scheduler.AsyncScheduler")(
        vllm_config=config,
        kv_cache_config=_class("v1.kv_cache_interface.KVCacheConfig")(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        block_size=_BLOCK,
        structured_output_manager=_class("v1.structured_output.StructuredOutputManager")(config),
    )
    scheduler.use_v2_model_runner = True
    return scheduler


class _Engine:
    """The engine core's loop with two batches in flight."""

    def __init__(self, scheduler: Any) -> None:  # noqa: ANN401
        self._scheduler = scheduler
        self._flying: deque[tuple[Any, list[bool]]] = deque()
        self._output = _class("v1.outputs.ModelRunnerOutput")

    def step(self) -> None:
        """Schedule a batch, and let the older one come back."""
        scheduler = self._scheduler
        output = scheduler.schedule()
        # Whether a request samples must be noted now; later the scheduler has run ahead.
        samples = [
            not scheduler.requests[name].is_prefill_chunk for name in output.num_scheduled_tokens
        ]
        self._flying.append((output, samples))
        if len(self._flying) > 1:
            output, samples = self._flying.popleft()
            names = list(output.num_scheduled_tokens)
            back = self._output(
                req_ids=names,
                req_id_to_index={name: row for row, name in enumerate(names)},
                sampled_token_ids=[[100] if sampling else [] for sampling in samples],
            )
            scheduler.update_from_output(output, back)


def step_us(model: str, rows: int) -> float:
    """Return the CPU time of one decode step of ``rows`` requests."""
    scheduler = _scheduler(model, rows)
    utils = "v1.core.kv_cache_utils"
    hashing = _class("utils.hashing.get_hash_fn_by_name")("sha256")
    _class(f"{utils}.init_none_hash")(hashing)
    hasher = _class(f"{utils}.get_request_block_hasher")(_BLOCK, hashing)
    for row in range(rows):
        parameters = _class("sampling_params.SamplingParams")(ignore_eos=True, max_tokens=_OUTPUT)
        parameters.update_from_generation_config({}, 2)
        prompt = [3 + (row * 7919 + place * 13) % 31000 for place in range(_PROMPT)]
        scheduler.add_request(
            _class("v1.request.Request")(
                request_id=f"r{row}",
                prompt_token_ids=prompt,
                sampling_params=parameters,
                pooling_params=None,
                block_hasher=hasher,
            )
        )
    engine = _Engine(scheduler)
    for _ in range(_WARM_STEPS):
        engine.step()
    gc.collect()
    gc.freeze()
    started = time.thread_time_ns()
    for _ in range(_STEPS):
        engine.step()
    return (time.thread_time_ns() - started) / _STEPS / 1000


def main() -> None:
    """Answer row counts until standard input ends."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        version = import_module("vllm").__version__
        sys.stdout.write(f"vllm {version}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            sys.stdout.write(f"{step_us(folder, int(line))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
