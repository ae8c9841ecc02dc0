"""How long copies between KV memory and host memory take, and which of them fail.

Two directions that run side by side, each one copy after the other in the order of their commands.
What setting a copy up costs the host thread is `Device.submit`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepahead_models.tokens import mix64_int

_NS_PER_S = 1_000_000_000
_MILLION = 1_000_000
_SEED_FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaChannel:
    """One direction: a latency per copy, then a rate."""

    bytes_per_s: float
    latency_ns: int

    def transfer_ns(self, size_bytes: int) -> int:
        """Return the time of one copy, latency included."""
        return self.latency_ns + round(size_bytes * _NS_PER_S / self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dma:
    """Both directions.

    Args:
        to_device, to_host: the channels.
        bytes_per_token: KV bytes of one token over all layers.
        layers: layers that a layer-wise reload is divided into, all of one size.
        failure_ppm: share of copies that fail, at their end, in parts per million.
        seed: which of them.
    """

    to_device: DmaChannel
    to_host: DmaChannel
    bytes_per_token: int
    layers: int
    failure_ppm: int = 0
    seed: int = 0

    def fails(self, transfer_id: int) -> bool:
        """Tell whether this copy fails."""
        if not self.failure_ppm:
            return False
        return mix64_int(self.seed * _SEED_FACTOR + transfer_id) % _MILLION < self.failure_ppm
