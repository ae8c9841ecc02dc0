"""The KV cache tiers behind the NPU's: how much the host holds, how the remote store behaves."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from stepahead_models.dma import DmaChannel
from stepahead_models.product import SchedulerConfig
from stepahead_tools.errors import OptionError, exact
from stepahead_tools.options import RunOptions

_BYTES_PER_GB: Final = 1_000_000_000
_NS_PER_US: Final = 1_000
_LATENCY_US_MAX: Final = 1_000_000_000
_PPM_PER_PERCENT: Final = 10_000


class RemoteSettings(Struct, frozen=True, kw_only=True):
    """How the remote store behaves.

    Args:
        link: its latency and rate.
        miss_ppm: blocks that it has lost when asked for them, in millionths.
        failure_ppm: loads that fail, in millionths.
    """

    link: DmaChannel
    miss_ppm: int
    failure_ppm: int


def host_pages(scheduler: SchedulerConfig, num_blocks: int, block_bytes: int) -> int:
    """Return how many KV blocks the host cache (L2) holds, 0 where it is off.

    Raises:
        OptionError: its budget does not hold a block, or there is no prefix cache above it.
    """
    budget = scheduler.kv_offload_config.host_bytes(num_blocks * block_bytes)
    if not scheduler.kv_offload_config.enabled:
        return 0
    if not scheduler.prefix_cache_config.enabled:
        raise OptionError(
            "the host KV cache (L2) holds blocks of the prefix cache (L1), which is off; leave out "
            "--no-enable-prefix-caching or the host budget"
        )
    if budget < block_bytes:
        raise OptionError(
            f"the host budget of {budget} bytes holds no KV block of {block_bytes} bytes; give "
            "more, or a smaller --block-size"
        )
    return budget // block_bytes


def remote(options: RunOptions, scheduler: SchedulerConfig) -> RemoteSettings:
    """Return how the remote store behaves.

    Raises:
        OptionError: a value is out of range, or there is no prefix cache above the store.
    """
    if not scheduler.prefix_cache_config.enabled:
        raise OptionError(
            "the remote KV cache (L3) holds blocks of the prefix cache (L1), which is off; leave "
            "out --no-enable-prefix-caching, or set l3_enabled to false"
        )
    if not 0 < options.remote_gb_per_s < math.inf:
        raise OptionError(
            f"--remote-gb-per-s {exact(options.remote_gb_per_s)} is out of range; give a number "
            "above 0"
        )
    if not 0 <= options.remote_latency_us <= _LATENCY_US_MAX:
        raise OptionError(
            f"--remote-latency-us {exact(options.remote_latency_us)} is out of range; give a "
            f"number from 0 to {_LATENCY_US_MAX}"
        )
    for flag, share in (
        ("--remote-miss", options.remote_miss),
        ("--remote-failure", options.remote_failure),
    ):
        if not 0 <= share <= 100:  # noqa: PLR2004 - percent
            raise OptionError(
                f"{flag} {exact(share)} is out of range; give a percentage from 0 to 100"
            )
    return RemoteSettings(
        link=DmaChannel(
            bytes_per_s=options.remote_gb_per_s * _BYTES_PER_GB,
            latency_ns=round(options.remote_latency_us * _NS_PER_US),
        ),
        miss_ppm=round(options.remote_miss * _PPM_PER_PERCENT),
        failure_ppm=round(options.remote_failure * _PPM_PER_PERCENT),
    )
