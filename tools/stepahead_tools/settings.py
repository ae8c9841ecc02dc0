"""What the options mean together: defaults resolved, contradictions refused.

Knows the device profile, because several defaults come from it. Runs nothing.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from stepahead import BatchPreference, KernelConfig, SelectionTiming, WaitingOrder
from stepahead_models.product import EngineConfig
from stepahead_models.profiles import Profile
from stepahead_models.traces import Ends
from stepahead_tools.engine_options import OrderChoice, PreferChoice
from stepahead_tools.engines import read_engine
from stepahead_tools.errors import OptionError, exact
from stepahead_tools.loops import Loop
from stepahead_tools.metrics import Objectives, SingleToken
from stepahead_tools.options import RunOptions
from stepahead_tools.pacing import Kind, Pacing
from stepahead_tools.speculation import Speculation, speculation
from stepahead_tools.tiers import RemoteSettings, host_pages, remote

#: Size of the tokenizer of Llama 3.1, and its end-of-turn token.
VOCAB_SIZE: Final = 128_256
EOS_TOKEN_ID: Final = 128_009
#: The demo's trace comes from a cluster; on one device its own arrival times are an overload. At
#: this load the host gap is a visible part of a token's time, and a later first token is too.
DEMO: Final = "demo"
DEMO_LOAD: Final = 0.3

_OBJECTIVES: Final = ("ttft", "tpot", "e2el")
_CPU_SCALE_MAX: Final = 1_000_000  # host jobs of a quarter of an hour
_NS_PER_MS: Final = 1_000_000
_PPM_PER_PERCENT: Final = 10_000


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that decides a result, and nothing that does not.

    Args:
        ends: how requests end.
        limit: requests to take, or None for all.
        pacing: how requests arrive.
        seed: of arrivals, noise and tokens.
        warmup: requests left out of the statistics.
        objectives: what goodput asks for, or None.
        npu_queue_limit: as given; the kernel keeps one batch dispatched.
        max_num_batched_tokens, max_concurrency, max_model_len, max_tokens_per_row, block_size,
        num_blocks, prefix_caching, host_pages, write_through_threshold, write_back,
        layerwise_reload, order, preference: see `stepahead.KernelConfig`.
        remote: how the remote store behaves, for loops that prepare nothing ahead; None without.
        speculation: how tokens are proposed, in such loops; None without.
        cpu_scale: factor on every CPU cost.
        npu_sampling: the NPU draws the tokens.
        noise_ppm: largest deviation of durations, in millionths.
        prune: drop dead rows before the dispatch; only where the device takes a changed batch.
        late_joiners, late_share_ppm: of just-in-time selection, see `stepahead.KernelConfig`.
        unchecked: tokens in closed form, without KV memory and sanitizer.
    """

    ends: Ends
    limit: int | None
    pacing: Pacing
    seed: int
    warmup: int
    objectives: Objectives | None
    npu_queue_limit: int
    max_num_batched_tokens: int
    max_concurrency: int
    max_model_len: int
    max_tokens_per_row: int
    block_size: int
    num_blocks: int
    prefix_caching: bool
    host_pages: int
    write_through_threshold: int | None
    write_back: bool
    layerwise_reload: bool
    remote: RemoteSettings | None
    speculation: Speculation | None
    order: WaitingOrder
    preference: BatchPreference
    cpu_scale: float
    npu_sampling: bool
    noise_ppm: int
    prune: bool
    late_joiners: bool
    late_share_ppm: int
    unchecked: bool

    def kernel_config(self, loop: Loop) -> KernelConfig:
        """Return the kernel's configuration under one loop."""
        drafts = None if loop.lookahead else self.speculation
        return KernelConfig(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_concurrency=self.max_concurrency,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_tokens_per_row=self.max_tokens_per_row,
            max_model_len=self.max_model_len,
            lookahead=loop.lookahead,
            num_speculative_tokens=0 if drafts is None else drafts.num_speculative_tokens,
            timing=loop.timing,
            late_joiners=self.late_joiners and loop.timing is SelectionTiming.JUST_IN_TIME,
            late_share_ppm=self.late_share_ppm,
            prune=self.prune,
            order=self.order,
            preference=self.preference,
            prefix_caching=self.prefix_caching,
            host_pages=self.host_pages,
            write_through_threshold=self.write_through_threshold,
            write_back=self.write_back,
            layerwise_reload=self.layerwise_reload,
            remote=self.remote is not None and not loop.lookahead,
            eos_token_id=EOS_TOKEN_ID,
        )


def resolve(options: RunOptions, profile: Profile, config: EngineConfig | None = None) -> Settings:
    """Return the settings that the options ask for on a device.

    Args:
        options: as given.
        profile: the device.
        config: the engine's part of them, checked; read here, unchecked, when None.

    Raises:
        OptionError: a value is out of range, or two options contradict each other.
    """
    _check_ranges(options)
    config = config or read_engine(options)
    scheduler = config.scheduler_config
    limits = profile.limits
    max_concurrency = _within(
        "--max-concurrency", scheduler.max_concurrency, limits.max_concurrency.value, profile.name
    )
    max_model_len = _within(
        "--max-model-len", config.max_model_len, limits.max_model_len.value, profile.name
    )
    chunk = limits.max_tokens_per_row.value
    num_blocks = options.num_blocks or profile.num_blocks(options.block_size)
    block_bytes = profile.memory.kv_bytes_per_token.value * options.block_size
    offload = scheduler.kv_offload_config
    prefill_first = options.prefer is PreferChoice.PREFILL
    by_priority = options.order is OrderChoice.PRIORITY
    return Settings(
        ends=options.ends.value,
        limit=options.limit,
        pacing=pacing(options),
        seed=options.seed,
        warmup=options.warmup,
        objectives=objectives(options.goodput, options.goodput_single_token.value),
        npu_queue_limit=scheduler.npu_queue_limit,
        max_num_batched_tokens=scheduler.max_num_batched_tokens or max(chunk, max_concurrency),
        max_concurrency=max_concurrency,
        max_model_len=max_model_len,
        max_tokens_per_row=chunk,
        block_size=options.block_size,
        num_blocks=num_blocks,
        prefix_caching=scheduler.prefix_cache_config.enabled,
        host_pages=host_pages(scheduler, num_blocks, block_bytes),
        write_through_threshold=offload.write_through_threshold,
        write_back=offload.write_back,
        layerwise_reload=offload.overlap_l2_reload,
        remote=remote(options, scheduler) if config.l3_enabled else None,
        speculation=speculation(options, config.speculative_config),
        order=WaitingOrder.PRIORITY if by_priority else WaitingOrder.FIRST_COME_FIRST_SERVED,
        preference=(
            BatchPreference.PREFILL_FIRST if prefill_first else BatchPreference.DECODE_FIRST
        ),
        cpu_scale=options.cpu_scale,
        npu_sampling=scheduler.enable_npu_sampling,
        noise_ppm=round(options.noise * _PPM_PER_PERCENT),
        prune=prunes(options, profile),
        late_joiners=options.late_joiners,
        late_share_ppm=round(options.late_share * _PPM_PER_PERCENT),
        unchecked=options.unchecked,
    )


def prunes(options: RunOptions, profile: Profile) -> bool:
    """Tell whether dead rows are dropped: by default where that costs nothing."""
    changed = profile.changed_batch
    if options.prune is None:
        return changed.free()
    return options.prune and changed.allowed.value


def pacing(options: RunOptions) -> Pacing:
    """Return how requests arrive.

    Raises:
        OptionError: more than one option sets the arrivals.
    """
    given: dict[Kind, float | None] = {
        "speed": options.speed,
        "load": options.load,
        "rate": options.rate,
        "concurrency": options.concurrency,
    }
    chosen = [Pacing(kind, value) for kind, value in given.items() if value is not None]
    if len(chosen) > 1:
        names = " and ".join(f"--{pacing.kind}" for pacing in chosen)
        raise OptionError(f"{names} each set when requests arrive; give one of them")
    if chosen:
        return chosen[0]
    return Pacing("load", DEMO_LOAD) if options.trace == DEMO else Pacing("recorded")


def objectives(words: list[str] | None, lone_token: SingleToken) -> Objectives | None:
    """Return the objectives named by words like ``ttft:200``, in ms.

    Raises:
        OptionError: a word is no objective, or one is given twice.
    """
    found: dict[str, int] = {}
    for word in " ".join(words or ()).replace(",", " ").split():
        name, _, number = word.partition(":")
        try:
            milliseconds = float(number)
        except ValueError:
            milliseconds = math.nan
        if name not in _OBJECTIVES or not 0 < milliseconds < math.inf:
            raise OptionError(
                f"--goodput {word!r} is no objective; give ttft, tpot or e2el, a colon and "
                "milliseconds above 0, for example ttft:200"
            )
        if name in found:
            raise OptionError(f"--goodput names {name} twice; give each objective once")
        found[name] = round(milliseconds * _NS_PER_MS)
    if not found:
        return None
    return Objectives(
        ttft_ns=found.get("ttft"),
        tpot_ns=found.get("tpot"),
        e2el_ns=found.get("e2el"),
        lone_token=lone_token,
    )


def _check_ranges(options: RunOptions) -> None:
    if options.check and options.unchecked:
        raise OptionError("--check contradicts --unchecked; give one of the two")
    at_least_one = (
        "limit", "concurrency", "block_size", "num_blocks",
    )  # fmt: skip
    for name in at_least_one:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(f"{_flag(name)} {value} is out of range; give 1 or more")
    for name, unit in (("warmup", " requests"), ("seed", "")):
        value = getattr(options, name)
        if value < 0:
            raise OptionError(f"--{name} {value} is out of range; give 0 or more{unit}")
    for name in ("speed", "load", "rate"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"--{name} {exact(value)} is out of range; give a number above 0")
    _check_machine(options)


def _check_machine(options: RunOptions) -> None:
    if not 0 <= options.cpu_scale <= _CPU_SCALE_MAX:
        raise OptionError(
            f"--cpu-scale {exact(options.cpu_scale)} is out of range; give a number from 0 to "
            f"{_CPU_SCALE_MAX}"
        )
    if not 0.0001 <= options.late_share <= 50:  # noqa: PLR2004 - percent
        raise OptionError(
            f"--late-share {exact(options.late_share)} is out of range; give a percentage "
            "from 0.0001 to 50"
        )
    if not 0 <= options.noise < 100:  # noqa: PLR2004 - percent
        raise OptionError(
            f"--noise {exact(options.noise)} is out of range; give a percentage from 0 to below 100"
        )


def _within(flag: str, value: int | None, limit: int, device: str) -> int:
    if value is None:
        return limit
    if not 1 <= value <= limit:
        raise OptionError(f"{flag} {value} is out of range on device {device}; give 1 to {limit}")
    return value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
