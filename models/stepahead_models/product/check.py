"""Does this configuration fit this model, loop and product version?

Owns the detection of what is in use and the sentences about it. The answers come from the
compatibility table.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from stepahead_models.product.compatibility import (
    RESTART,
    Verdict,
    combination_for,
    row_for,
    verdict_for,
)
from stepahead_models.product.engine import EngineConfig, ModelDescription, ModelKind
from stepahead_models.product.features import SWITCHES, Feature
from stepahead_models.product.loops import SchedulingLoop
from stepahead_models.product.options import with_flag
from stepahead_models.product.rules import InvalidOption
from stepahead_models.product.speculation import SpeculativeMethod, check_draft_vocabulary
from stepahead_models.product.versions import DEFAULT_VERSION, ProductVersion

_KINDS: Final = {
    ModelKind.TEXT_GENERATION: Feature.TEXT_GENERATION,
    ModelKind.VISION_LANGUAGE: Feature.VISION_LANGUAGE,
    ModelKind.POOLING: Feature.POOLING,
}


class UnsupportedConfiguration(ValueError):
    """The engine must not start like this.

    Attributes:
        feature: what cannot be had.
        loop: the loop that was asked for.
        option: dotted name of the option to change.
        way_out: what to do about it.
        beside: the other feature that excludes it; None where the loop or the artifact does.
    """

    def __init__(
        self,
        sentence: str,
        *,
        feature: Feature,
        loop: SchedulingLoop,
        way_out: str,
        beside: Feature | None = None,
    ) -> None:
        option = SWITCHES[feature].option
        super().__init__(f"{sentence}; change {with_flag(option)}: {way_out}")
        self.feature = feature
        self.loop = loop
        self.option = option
        self.way_out = way_out
        self.beside = beside


class UnsupportedRequest(UnsupportedConfiguration):
    """One request asks for what the running engine cannot give; the engine goes on."""


class Checked(Struct, frozen=True, kw_only=True):
    """A configuration that may start.

    ``warnings`` is one sentence for each thing to log, ``disabled`` what was configured and will
    not be used, in the order of `Feature`, ``config`` the configuration without it.
    """

    warnings: tuple[str, ...]
    disabled: tuple[Feature, ...]
    config: EngineConfig


def check_configuration(
    config: EngineConfig,
    model: ModelDescription,
    version: ProductVersion = DEFAULT_VERSION,
    *,
    draft: ModelDescription | None = None,
) -> Checked:
    """Check a configuration as the product does when an engine starts.

    Args:
        config: what was asked for.
        model: the model that is to run.
        version: whose rows of the table count.
        draft: the draft model of speculative decoding; its token ids are compared if known.

    Returns:
        The effective configuration and what to warn about.

    Raises:
        UnsupportedConfiguration: the loop, the artifact or another feature excludes a feature; the
            first in the order of `Feature`.
        InvalidOption: ``max_model_len`` exceeds the model, or the draft model does not fit.
    """
    used = features_in_use(config, model)
    loop = config.scheduler_config.loop
    disabled: list[Feature] = []
    warnings: list[str] = []
    for feature in used:
        refuse_under_loop(feature, loop, version)
        refuse_beside(feature, used, loop, version)
        for reason in _reasons_to_disable(feature, used, loop, version):
            disabled.append(feature)
            warnings.append(reason)
    _check_lengths(config, model)
    if config.speculative_config and draft and draft.token_ids and model.token_ids:
        name = config.speculative_config.model
        check_draft_vocabulary(name, model.token_ids, draft.token_ids)
    offload = config.scheduler_config.kv_offload_config
    if offload.has_budget and not offload.enabled:
        warnings.append(
            "a host budget is given, but the host KV cache (L2) is off; "
            "set enabled of kv_offload_config, or leave the budget out"
        )
    return Checked(
        warnings=tuple(warnings),
        disabled=tuple(dict.fromkeys(disabled)),
        config=_without(config, disabled),
    )


def features_in_use(config: EngineConfig, model: ModelDescription) -> tuple[Feature, ...]:
    """List what a configuration and its model bring into play, in the order of `Feature`."""
    scheduler = config.scheduler_config
    offload = scheduler.kv_offload_config
    sampling = scheduler.enable_npu_sampling
    used = {
        _KINDS[model.kind]: True,
        Feature.L1_PREFIX_CACHE: scheduler.prefix_cache_config.enabled,
        Feature.L2_HOST_CACHE: offload.enabled,
        Feature.LAYERWISE_RELOAD: offload.overlap_l2_reload,
        Feature.NPU_SAMPLING: sampling and model.has_sampler,
        Feature.NPU_SAMPLING_WITHOUT_SAMPLER: sampling and not model.has_sampler,
        Feature.L3_REMOTE_CACHE: config.l3_enabled,
        Feature.DEEPER_NPU_QUEUE: scheduler.npu_queue_limit != 1,
        Feature.KV_TRANSFER: config.kv_transfer_config is not None,
    }
    if config.speculative_config is not None:
        if config.speculative_config.method is SpeculativeMethod.MTP:
            used[Feature.SPECULATIVE_MTP] = True
        elif model.kind is ModelKind.TEXT_GENERATION:
            used[Feature.SPECULATIVE_DRAFT] = True
        else:
            used[Feature.SPECULATIVE_DRAFT_OTHER] = True
    return tuple(feature for feature in Feature if used.get(feature, False))


def context_limit(config: EngineConfig, model: ModelDescription) -> int | None:
    """Return the tokens that a request may have in all, or None where nothing limits them.

    Source:
        furiosa-llm 2026.4.0 package, serve command: the least of what the model counts, the
        artifact covers, the KV memory holds, and the cap.
    """
    limits = (model.max_positions, model.compiled_len, model.kv_tokens, config.max_model_len)
    return min((limit for limit in limits if limit is not None), default=None)


def refuse_under_loop(
    feature: Feature,
    loop: SchedulingLoop,
    version: ProductVersion,
    *,
    error: type[UnsupportedConfiguration] = UnsupportedConfiguration,
) -> None:
    """Raise where the loop refuses a feature.

    Raises:
        UnsupportedConfiguration: it does, as the class ``error``.
    """
    if verdict_for(feature, loop, version) is not Verdict.REFUSED:
        return
    row = row_for(feature, version)
    without = SWITCHES[feature].without
    # Where eager refuses it too, another loop is no way out.
    ways = (without,) if row.eager is Verdict.REFUSED else (without, RESTART)
    reason = f" ({row.reason})" if row.reason else ""
    raise error(
        f"{feature.value} cannot be used with the {loop.value} loop of {version.value}{reason}",
        feature=feature,
        loop=loop,
        way_out=", or ".join(way for way in ways if way),
    )


def refuse_beside(
    feature: Feature,
    used: tuple[Feature, ...],
    loop: SchedulingLoop,
    version: ProductVersion,
    *,
    error: type[UnsupportedConfiguration] = UnsupportedConfiguration,
) -> None:
    """Raise where a feature that is in use excludes another.

    Raises:
        UnsupportedConfiguration: it does, as the class ``error``.
    """
    for beside in used:
        if combination_for(feature, beside, version) is Verdict.REFUSED:
            raise error(
                f"{feature.value} cannot be used beside {beside.value} in {version.value}",
                feature=feature,
                loop=loop,
                way_out=f"{SWITCHES[feature].without}, or {SWITCHES[beside].without}",
                beside=beside,
            )


def _reasons_to_disable(
    feature: Feature, used: tuple[Feature, ...], loop: SchedulingLoop, version: ProductVersion
) -> Iterator[str]:
    switch = SWITCHES[feature]
    if verdict_for(feature, loop, version) is Verdict.DISABLED:
        row = row_for(feature, version)
        ways = switch.without if row.eager is Verdict.DISABLED else f"{RESTART} if you depend on it"
        yield (
            f"{feature.value} is switched off with the {loop.value} loop of {version.value} "
            f"({row.reason}); {ways}"
        )
    for beside in used:
        if combination_for(feature, beside, version) is Verdict.DISABLED:
            yield (
                f"{feature.value} is switched off beside {beside.value} in {version.value}; "
                f"{SWITCHES[beside].without} if you depend on it"
            )


def _without(config: EngineConfig, disabled: list[Feature]) -> EngineConfig:
    """Switch off what is disabled."""
    if Feature.L3_REMOTE_CACHE in disabled:
        config = msgspec.structs.replace(config, l3_enabled=False)
    if {Feature.NPU_SAMPLING, Feature.NPU_SAMPLING_WITHOUT_SAMPLER} & set(disabled):
        scheduler = msgspec.structs.replace(config.scheduler_config, enable_npu_sampling=False)
        config = msgspec.structs.replace(config, scheduler_config=scheduler)
    return config


def _check_lengths(config: EngineConfig, model: ModelDescription) -> None:
    """Refuse a cap above what the model or the artifact can do; what KV can hold only lowers it."""
    for limit, owner in (
        (model.max_positions, "positions of the model"),
        (model.compiled_len, "context of the artifact"),
    ):
        if config.max_model_len is not None and limit is not None and config.max_model_len > limit:
            raise InvalidOption(
                option="max_model_len",
                value=config.max_model_len,
                expected=f"at most {limit}, the {owner}",
                way_out="lower it, or leave it out",
            )
