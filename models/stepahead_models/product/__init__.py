"""The configuration of the product that stepahead implements, and what goes with what.

Names, defaults, rules and the compatibility table are Furiosa-LLM's, as data with their sources.
Reads no file, starts nothing, and knows nothing of the kernel: whoever starts an engine reads a
configuration (`read_engine_config`), checks it (`check_configuration`) and prints it (`to_toml`).
"""

from stepahead_models.product.check import (
    Checked,
    UnsupportedConfiguration,
    UnsupportedRequest,
    check_configuration,
    context_limit,
)
from stepahead_models.product.compatibility import Verdict, verdict_for
from stepahead_models.product.engine import (
    EngineConfig,
    ModelDescription,
    ModelKind,
)
from stepahead_models.product.features import Feature
from stepahead_models.product.loops import SchedulingLoop, UnknownLoop
from stepahead_models.product.offload import KVOffloadConfig
from stepahead_models.product.printing import render_compatibility_markdown, to_toml
from stepahead_models.product.reading import UnreadableConfiguration, read_engine_config
from stepahead_models.product.requests import RequestOptions, check_request
from stepahead_models.product.rules import InvalidOption
from stepahead_models.product.scheduler import PrefixCacheConfig, SchedulerConfig
from stepahead_models.product.speculation import SpeculativeConfig
from stepahead_models.product.versions import ProductVersion

__all__ = [
    "Checked",
    "EngineConfig",
    "Feature",
    "InvalidOption",
    "KVOffloadConfig",
    "ModelDescription",
    "ModelKind",
    "PrefixCacheConfig",
    "ProductVersion",
    "RequestOptions",
    "SchedulerConfig",
    "SchedulingLoop",
    "SpeculativeConfig",
    "UnknownLoop",
    "UnreadableConfiguration",
    "UnsupportedConfiguration",
    "UnsupportedRequest",
    "Verdict",
    "check_configuration",
    "check_request",
    "context_limit",
    "read_engine_config",
    "render_compatibility_markdown",
    "to_toml",
    "verdict_for",
]
