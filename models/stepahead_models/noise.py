"""Repeatable noise on durations: a function of (seed, stream, batch number) and of nothing else.

The order in which batches are asked for does not matter, so two loops that execute the same batch
see the same noise, and a stretch sees what its single steps would.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from stepahead.arrays import Ints
from stepahead_models.npu import DeviceModelError

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_UNIFORM_BITS: Final = 20
_MILLION: Final = 1_000_000


class NoiseStream(Enum):
    """Whose durations are disturbed; the streams are independent."""

    NPU = 1
    CPU = 2


def _mix(word: int) -> int:
    """Scramble 64 bits (the output function of SplitMix64; Steele, Lea and Flood 2014)."""
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _key(seed: int, stream: NoiseStream) -> int:
    return _mix((seed * _GOLDEN + stream.value) & _WORD)


@dataclass(frozen=True, slots=True)
class Noise:
    """Triangular multiplicative noise around 1.

    Args:
        seed: any integer.
        stream: whose durations.
        spread_ppm: largest deviation in millionths, from 0 to 999,999; the standard deviation is
            ``spread_ppm / sqrt(6)`` and the mean deviation is 0.

    Raises:
        DeviceModelError: the spread is out of range.
    """

    seed: int
    stream: NoiseStream
    spread_ppm: int

    def __post_init__(self) -> None:
        if not 0 <= self.spread_ppm < _MILLION:
            raise DeviceModelError(
                f"noise spread {self.spread_ppm} ppm is not usable; give 0 to 999999 millionths"
            )

    def deviation_ppm(self, batch_id: int) -> int:
        """Return the deviation of one batch in millionths."""
        word = _mix((_key(self.seed, self.stream) + batch_id * _GOLDEN) & _WORD)
        mask = (1 << _UNIFORM_BITS) - 1
        # The difference of two uniform numbers is triangular and symmetric.
        uniform = (word & mask) - ((word >> _UNIFORM_BITS) & mask)
        return (uniform * self.spread_ppm) >> _UNIFORM_BITS

    def apply_ns(self, duration_ns: int, batch_id: int) -> int:
        """Return a duration of a batch with its noise, at least 0."""
        return duration_ns + duration_ns * self.deviation_ppm(batch_id) // _MILLION

    def apply_many_ns(self, durations_ns: Ints, batch_ids: Ints) -> Ints:
        """Return `apply_ns` of every duration; both arrays have shape ``(batches,)``."""
        deviations = noise_ppm(self.seed, batch_ids, stream=self.stream, spread_ppm=self.spread_ppm)
        return durations_ns + durations_ns * deviations // _MILLION


def noise_ppm(seed: int, batch_ids: Ints, *, stream: NoiseStream, spread_ppm: int) -> Ints:
    """Return the deviations of many batches in millionths; see `Noise`.

    Args:
        seed: any integer.
        batch_ids: shape ``(batches,)``, each at least 0.
        stream: whose durations.
        spread_ppm: largest deviation in millionths; not checked here, `Noise` does.

    Returns:
        Deviations; shape ``(batches,)``.
    """
    key = _key(seed, stream)
    word = batch_ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_MIX_1)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_MIX_2)
    word ^= word >> np.uint64(31)
    mask = np.uint64((1 << _UNIFORM_BITS) - 1)
    first = (word & mask).astype(np.int64)
    second = ((word >> np.uint64(_UNIFORM_BITS)) & mask).astype(np.int64)
    return ((first - second) * spread_ppm) >> _UNIFORM_BITS
