"""From a file and flags to the product's configuration, checked for every loop that runs.

What goes with what stands in the product's compatibility table. This adds what only the simulation
cannot do: nothing that was asked for is left out without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import Struct

from stepahead_models.product import (
    Checked,
    EngineConfig,
    KVOffloadConfig,
    ModelDescription,
    ModelKind,
    ProductVersion,
    SchedulerConfig,
    SchedulingLoop,
    UnreadableConfiguration,
    UnsupportedConfiguration,
    Verdict,
    check_configuration,
    read_engine_config,
    verdict_for,
)
from stepahead_models.product.offload import STAGING_BYTES_DEFAULT
from stepahead_models.product.options import KV_OFFLOAD, SPECULATIVE, with_flag
from stepahead_models.profiles import Profile
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import Loop, chosen_loop
from stepahead_tools.options import ReplayOptions, RunOptions

#: Fields of the scheduler's configuration that the simulation of one scheduler has no use for.
WITHOUT_EFFECT: Final = (
    "scheduler_kind",
    "max_processing_samples",
    "is_offline",
    "profile_guided_decode_batching",
    "batch_scheduling_budget_ms",
    "experimental_aggressive_batching",
    "data_parallel_routing_policy",
    "data_parallel_scoring_profile",
)


class Engine(Struct, frozen=True, kw_only=True):
    """A configuration that may start under every loop that runs.

    Args:
        version: whose rules it was checked by.
        checked: the effective configuration under each loop, by its name; never empty.
        warnings: what to log when a loop starts, by its name; each sentence once.
    """

    version: ProductVersion
    checked: Mapping[str, Checked]
    warnings: Mapping[str, tuple[str, ...]]

    @property
    def config(self) -> EngineConfig:
        """What the loops have in common: all but the loop itself.

        The remote cache (L3) is on where some loop has it.
        """
        configs = [found.config for found in self.checked.values()]
        return msgspec.structs.replace(
            configs[0], l3_enabled=any(config.l3_enabled for config in configs)
        )


def read_engine(options: RunOptions, loop: str | None = None) -> EngineConfig:
    """Return what the file and the flags ask for; the flags win.

    Args:
        options: as given.
        loop: name of the loop; that of the file when None.

    Raises:
        InvalidOption: a key is unknown, or a value breaks a rule.
        UnreadableConfiguration: the file is no TOML.
        OSError: the file cannot be read.
    """
    return read_engine_config(
        _text(options),
        {
            "scheduling_loop_type": loop,
            "npu_queue_limit": options.npu_queue_limit,
            "max_concurrency": options.max_concurrency,
            "max_num_batched_tokens": options.max_num_batched_tokens,
            "max_model_len": options.max_model_len,
            "enable_npu_sampling": options.npu_sampling,
            "enable_prefix_caching": options.enable_prefix_caching,
            "l3_enabled": options.l3_enabled,
            "kv_offload_host_memory_gb": options.experimental_kv_offload_host_memory_gb,
            "kv_offload_host_memory_ratio": options.experimental_kv_offload_host_memory_ratio,
            "kv_offload_write_through_threshold": (
                options.experimental_kv_offload_write_through_threshold
            ),
            "kv_offload_write_back": options.experimental_kv_offload_write_back,
            "kv_offload_staging_memory_gb": options.experimental_kv_offload_staging_memory_gb,
            "kv_offload_overlap_l2_reload": options.experimental_kv_offload_overlap_l2_reload,
            "speculative_config": options.experimental_speculative_config,
        },
        where=str(options.config),
        version=ProductVersion(options.product_version.value),
    )


def replayed_loop(options: ReplayOptions) -> Loop:
    """Return the loop that the flags choose, or else the file; eager by default.

    Raises:
        OptionError: two options contradict each other.
    """
    if options.loop is not None:
        return chosen_loop(options.loop.value, options)
    if options.config is None or options.enable_overlap_scheduling is not None:
        return chosen_loop(None, options)
    return chosen_loop(read_engine(options).scheduler_config.loop.value, options)


def open_engine(options: RunOptions, loops: Sequence[Loop], profile: Profile) -> Engine:
    """Check the configuration under every loop, as the product does when it starts.

    Raises:
        InvalidOption, UnreadableConfiguration, OSError: see `read_engine`.
        UnsupportedConfiguration: a loop, the artifact or another feature excludes a feature.
        OptionError: as before where only some of several loops do, or the simulation does not have
            what is asked for.
    """
    version = ProductVersion(options.product_version.value)
    model = describe(profile)
    checked: dict[str, Checked] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    said: set[str] = set()
    for loop in loops:
        asked = read_engine(options, loop.name)
        found = checked[loop.name] = _checked(asked, model, version, loops)
        _refuse_unsimulated(found.config)
        sentences = [*found.warnings, *_without_effect(found.config, options, profile)]
        warnings[loop.name] = tuple(words for words in sentences if words not in said)
        said.update(sentences)
    return Engine(version=version, checked=checked, warnings=warnings)


def _checked(
    asked: EngineConfig, model: ModelDescription, version: ProductVersion, loops: Sequence[Loop]
) -> Checked:
    """Check the configuration under one of several loops.

    Raises:
        UnsupportedConfiguration: it cannot start.
        OptionError: it cannot start under this loop, but under the eager one, and both were to run.
    """
    try:
        return check_configuration(asked, model, version)
    except UnsupportedConfiguration as refused:
        feature, beside = refused.feature, refused.beside
        alone = verdict_for(feature, SchedulingLoop.EAGER, version)
        if len(loops) > 1 and beside is None and alone is not Verdict.REFUSED:
            names = ",".join(loop.name for loop in loops)
            raise OptionError(
                f"{refused}; of the loops {names} only eager has it: run that one alone"
            ) from refused
        raise


def describe(profile: Profile) -> ModelDescription:
    """Return what the configuration check has to know about the model of a device profile.

    Raises:
        OptionError: the profile names no kind of model.
    """
    kinds = {kind.value: kind for kind in ModelKind}
    if profile.model_kind not in kinds:
        raise OptionError(
            f"device {profile.name} has the model_kind {profile.model_kind!r}, which is not known; "
            f"write one of {', '.join(kinds)} into its file"
        )
    memory = profile.memory
    return ModelDescription(
        kind=kinds[profile.model_kind],
        name=profile.name,
        has_sampler=profile.sampler.present.value,
        compiled_len=profile.limits.max_model_len.value,
        kv_tokens=memory.kv_memory_bytes.value // memory.kv_bytes_per_token.value,
    )


def _text(options: RunOptions) -> str:
    if options.config is None:
        return ""
    try:
        return options.config.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableConfiguration(str(options.config), f"it is not UTF-8 ({error})") from error


def _refuse_unsimulated(config: EngineConfig) -> None:
    loop = config.scheduler_config.loop
    ahead = loop.compatibility is not SchedulingLoop.EAGER
    for option, asked, words, way_out in (
        (
            "speculative_config",
            config.speculative_config is not None and ahead,
            f"speculative decoding under the {loop.value} loop",
            "leave it out, or run the eager loop alone",
        ),
        (
            "kv_transfer_config",
            config.kv_transfer_config is not None,
            "KV transfer between engines",
            "leave it out",
        ),
        (
            "l3_enabled",
            config.l3_enabled and ahead,
            f"a remote KV cache (L3) under the {loop.value} loop",
            "set it to false, or run the eager loop alone",
        ),
    ):
        if asked:
            raise OptionError(
                f"{option} asks for {words}, which the simulation does not have; {way_out}"
            )


def _without_effect(engine: EngineConfig, options: RunOptions, profile: Profile) -> Iterator[str]:
    config, default = engine.scheduler_config, SchedulerConfig()
    changed = [name for name in WITHOUT_EFFECT if getattr(config, name) != getattr(default, name)]
    if (
        config.prefix_cache_config.lookahead_requests
        != default.prefix_cache_config.lookahead_requests
    ):
        changed.append("prefix_cache_config.lookahead_requests")
    if config.kv_offload_config.staging_memory_bytes not in {None, STAGING_BYTES_DEFAULT}:
        changed.append("kv_offload_config.staging_memory_bytes")
    if changed:
        yield f"without effect in the simulation: {', '.join(changed)} of scheduler_config"
    if engine.l3_enabled and not config.kv_offload_config.enabled:
        yield (
            "the remote KV cache (L3) is filled with what is copied to the host, and the host KV "
            "cache (L2) is off; give a host budget"
        )
    idle = [] if config.kv_offload_config.enabled else _told_to_copy(options)
    if idle:
        yield (
            f"without effect, since the host KV cache (L2) is off: {', '.join(idle)}; give a host "
            "budget, or leave that out"
        )
    yield from _drafts_without_room(engine, profile)
    if options.prune and not profile.changed_batch.allowed.value:
        yield (
            f"device {profile.name} takes no changed batch, so --prune masks the rows of ended "
            "requests and drops none"
        )


def _drafts_without_room(engine: EngineConfig, profile: Profile) -> Iterator[str]:
    """Name the drafts that no row can have, because the tokens of a batch or of a row end before.

    The kernel gives a row its own token first.
    """
    row = profile.limits.max_tokens_per_row.value
    batch = engine.scheduler_config.max_num_batched_tokens or row
    asked = engine.speculative_config
    room = min(batch, row) - 1
    if asked is None or asked.num_speculative_tokens <= room:
        return
    limit = f"device {profile.name} takes {row} tokens per row"
    if batch <= row:
        limit = f"max_num_batched_tokens is {batch}"
    idle, way_out = f"drafts beyond the first {room} of a row", f"draft {room} at most"
    if not room:
        idle, way_out = with_flag(SPECULATIVE), "leave that out"
    yield f"without effect, since {limit}: {idle}; give batches more tokens, or {way_out}"


def _told_to_copy(options: RunOptions) -> list[str]:
    """Return what file and flags say of copies to the host, by its names."""
    # With the host cache off, a configuration forgets some of it.
    with_it_on = replace(
        options,
        experimental_kv_offload_host_memory_gb=1.0,
        experimental_kv_offload_host_memory_ratio=None,
    )
    asked = read_engine(with_it_on).scheduler_config.kv_offload_config
    default = KVOffloadConfig()
    return [
        with_flag(f"{KV_OFFLOAD}.{name}")
        for name in ("write_through_threshold", "write_back")
        if getattr(asked, name) != getattr(default, name)
    ]
