"""What an engine is started with: its configuration as a whole, and the description of its model.

Owns `EngineConfig` and `ModelDescription`. Whether the two go together is checked elsewhere.
"""

from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from stepahead_models.product.offload import STAGING_BYTES_DEFAULT
from stepahead_models.product.options import KV_TRANSFER
from stepahead_models.product.rules import Rule, enforce, settle_types
from stepahead_models.product.scheduler import SchedulerConfig
from stepahead_models.product.speculation import SpeculativeConfig
from stepahead_models.product.versions import INFERRED, PACKAGE


class ModelKind(Enum):
    """What a model is for."""

    TEXT_GENERATION = "text-generation"
    VISION_LANGUAGE = "vision-language"
    POOLING = "pooling"


class ModelDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the configuration check has to know about a model and its artifact.

    Args:
        kind: what the model is for.
        name: for messages.
        has_sampler: the artifact holds a sampling kernel.
        max_positions: tokens that the model can count, or None if unknown.
        compiled_len: longest context that the artifact covers, or None if unknown.
        kv_tokens: tokens that the KV memory holds, or None if unknown.
        token_ids: ids by token, or None if unknown.
    """

    kind: ModelKind = ModelKind.TEXT_GENERATION
    name: str = "the model"
    has_sampler: bool = True
    max_positions: int | None = None
    compiled_len: int | None = None
    kv_tokens: int | None = None
    token_ids: dict[str, int] | None = None

    def __post_init__(self) -> None:
        settle_types(self, "model")


class KVTransferConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moving KV from a prefilling to a decoding engine.

    Source:
        furiosa-llm 2026.4.0 package, serve command.
    """

    host: str
    port: int
    kv_connector: str = "TcpConnector"
    poll_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        settle_types(self, KV_TRANSFER)
        enforce(KV_TRANSFER_RULES, self)


class EngineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of one engine; two are equal when every field is.

    Args:
        scheduler_config: the scheduler's.
        speculative_config: speculative decoding, or None.
        kv_transfer_config: disaggregated prefill, or None.
        l3_enabled: use the remote cache; the product reads this from L3_ENABLED. Its staging
            memory is 24 GiB where the scheduler's configuration gives none.
        max_model_len: prompt plus output at most, or None; it can only lower the limit.

    Raises:
        InvalidOption: a value breaks a rule.
    """

    l3_enabled: bool = False
    max_model_len: int | None = None
    scheduler_config: SchedulerConfig = msgspec.field(default_factory=SchedulerConfig)
    speculative_config: SpeculativeConfig | None = None
    kv_transfer_config: KVTransferConfig | None = None

    def __post_init__(self) -> None:
        settle_types(self, "")
        enforce(ENGINE_RULES, self)
        scheduler = self.scheduler_config
        offload = scheduler.kv_offload_config
        if self.l3_enabled and offload.staging_memory_bytes is None:
            offload = replace(offload, staging_memory_bytes=STAGING_BYTES_DEFAULT)
            scheduler = replace(scheduler, kv_offload_config=offload)
            force_setattr(self, "scheduler_config", scheduler)


KV_TRANSFER_RULES: Final[tuple[Rule[KVTransferConfig], ...]] = (
    Rule(
        name="kv-transfer-port-exists",
        option=f"{KV_TRANSFER}.port",
        expected="a port from 1 to 65535",
        way_out="give the port of the other engine",
        source=INFERRED,
        holds=lambda config: 1 <= config.port <= 65535,  # noqa: PLR2004 (the range of TCP)
    ),
    Rule(
        name="kv-transfer-connector-exists",
        option=f"{KV_TRANSFER}.kv_connector",
        expected="'TcpConnector'",
        way_out="leave it out",
        source=f"{PACKAGE}, serve command",
        holds=lambda config: config.kv_connector == "TcpConnector",
    ),
)

ENGINE_RULES: Final[tuple[Rule[EngineConfig], ...]] = (
    Rule(
        name="max-model-len-positive",
        option="max_model_len",
        expected="a whole number of tokens, at least 1",
        way_out="leave it out for what the model can do",
        source=f"{PACKAGE}, serve command",
        holds=lambda config: config.max_model_len is None or config.max_model_len >= 1,
    ),
)
