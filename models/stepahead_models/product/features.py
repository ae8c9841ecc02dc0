"""The features that the compatibility table has rows for, and how to do without each.

Owns their names and the options that bring them in. What goes with what stands in the table.
"""

from enum import Enum
from typing import Final

from msgspec import Struct

from stepahead_models.product.options import KV_OFFLOAD, PREFIX_CACHE, SCHEDULER


class Feature(Enum):
    """What the table has rows for; the values are its labels."""

    TEXT_GENERATION = "text-generation models"
    VISION_LANGUAGE = "vision-language models"
    POOLING = "pooling models"
    L1_PREFIX_CACHE = "NPU prefix cache (L1)"
    L2_HOST_CACHE = "host KV cache (L2)"
    LAYERWISE_RELOAD = "layer-wise reload from L2 to L1"
    NPU_SAMPLING = "NPU sampling"
    NPU_SAMPLING_WITHOUT_SAMPLER = "NPU sampling on an artifact without a sampler"
    SPECULATIVE_DRAFT = "speculative decoding with a draft model for a text target"
    SPECULATIVE_DRAFT_OTHER = "speculative decoding with a draft model for another target"
    SPECULATIVE_MTP = "speculative decoding with embedded MTP"
    L3_REMOTE_CACHE = "remote KV cache (L3)"
    DEEPER_NPU_QUEUE = "npu_queue_limit other than 1"
    KV_TRANSFER = "KV transfer between engines"
    KV_TRANSFER_PARAMS = "kv_transfer_params in a request"
    STRUCTURED_OUTPUTS = "structured outputs in a request"
    LOGPROBS = "logprobs in a request"
    PROMPT_LOGPROBS = "prompt_logprobs in a request"


class Switch(Struct, frozen=True, kw_only=True):
    """The option that brings a feature in, and how to do without it (empty: one cannot)."""

    option: str
    without: str


# What a start can do without when a row says so; anything else is supported or refused.
SWITCHABLE: Final = (
    Feature.NPU_SAMPLING,
    Feature.NPU_SAMPLING_WITHOUT_SAMPLER,
    Feature.L3_REMOTE_CACHE,
)

_MODEL: Final = Switch(option=f"{SCHEDULER}.scheduling_loop_type", without="")
_SPECULATIVE: Final = Switch(option="speculative_config", without="leave speculative_config out")
_SAMPLING: Final = Switch(
    option=f"{SCHEDULER}.enable_npu_sampling", without="set enable_npu_sampling to false"
)

SWITCHES: Final = {
    Feature.TEXT_GENERATION: _MODEL,
    Feature.VISION_LANGUAGE: _MODEL,
    Feature.POOLING: _MODEL,
    Feature.L1_PREFIX_CACHE: Switch(
        option=f"{PREFIX_CACHE}.enabled", without="switch the prefix cache off"
    ),
    Feature.L2_HOST_CACHE: Switch(
        option=f"{KV_OFFLOAD}.enabled", without="leave the host budget out"
    ),
    Feature.LAYERWISE_RELOAD: Switch(
        option=f"{KV_OFFLOAD}.overlap_l2_reload", without="leave overlap_l2_reload out"
    ),
    Feature.NPU_SAMPLING: _SAMPLING,
    Feature.NPU_SAMPLING_WITHOUT_SAMPLER: Switch(
        option=_SAMPLING.option,
        without=f"{_SAMPLING.without}, or build the artifact with --enable-sampler",
    ),
    Feature.SPECULATIVE_DRAFT: _SPECULATIVE,
    Feature.SPECULATIVE_DRAFT_OTHER: _SPECULATIVE,
    Feature.SPECULATIVE_MTP: _SPECULATIVE,
    Feature.L3_REMOTE_CACHE: Switch(option="l3_enabled", without="set l3_enabled to false"),
    Feature.DEEPER_NPU_QUEUE: Switch(
        option=f"{SCHEDULER}.npu_queue_limit", without="set npu_queue_limit to 1"
    ),
    Feature.KV_TRANSFER: Switch(
        option="kv_transfer_config", without="leave kv_transfer_config out"
    ),
    Feature.KV_TRANSFER_PARAMS: Switch(
        option="kv_transfer_params", without="leave kv_transfer_params out of the request"
    ),
    Feature.STRUCTURED_OUTPUTS: Switch(
        option="structured_outputs", without="leave structured_outputs out of the request"
    ),
    Feature.LOGPROBS: Switch(option="logprobs", without="leave logprobs out of the request"),
    Feature.PROMPT_LOGPROBS: Switch(
        option="prompt_logprobs", without="leave prompt_logprobs out of the request"
    ),
}
