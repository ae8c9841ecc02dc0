"""Small workloads and machines: for examples, first experiments and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.device import Device
from stepahead_models.npu import BatchShape, RooflineNpu
from stepahead_models.tokens import Ints, Prompts
from stepahead_models.workload import Workload

#: Token ids of the workloads here are below this.
VOCABULARY: Final = 1000
#: Build 100 ns, fill 10, notice 5, sample 20, publish 30, whatever is in the batch.
ROUND_CPU: Final = CpuModel(
    build=CpuTerms(base_ns=100),
    fill=CpuTerms(base_ns=10),
    synchronisation=CpuTerms(base_ns=5),
    host_sampling=CpuTerms(base_ns=20),
    result_processing=CpuTerms(base_ns=30),
)
_NEVER: Final = -1
_GROUP: Final = 8


@dataclass(frozen=True, slots=True)
class ConstantNpu:
    """A device whose steps all take ``duration_ns``, whatever is in them."""

    duration_ns: int

    def step_ns(self, shape: BatchShape) -> int:  # noqa: ARG002 - it does not matter
        """Return the one duration."""
        return self.duration_ns

    def repeat_ns(self, positions: Ints, steps: int) -> Ints:  # noqa: ARG002 - they do not matter
        """Return the one duration, ``steps`` times."""
        return np.full(steps, self.duration_ns, dtype=np.int64)


def constant_device(step_ns: int, cpu: CpuModel) -> Device:
    """Return a machine whose device steps all take equally long."""
    return Device(npu=ConstantNpu(step_ns), cpu=cpu)


def roofline_device(speed: int = 1, *, cpu_free: bool = False) -> Device:
    """Return a machine of round numbers: 9 ms of weights, about 1.4 ms of host work per batch.

    Args:
        speed: how many times faster the NPU is; from about 10 on the host is the bottleneck.
        cpu_free: the host costs nothing.
    """
    cpu = CpuModel(
        build=CpuTerms(base_ns=1_000_000, per_row_ns=50_000, per_block_ns=1_000),
        fill=CpuTerms(base_ns=200_000),
        host_sampling=CpuTerms(base_ns=100_000, per_row_ns=2_000),
        synchronisation=CpuTerms(base_ns=30_000),
        result_processing=CpuTerms(base_ns=100_000, per_row_ns=10_000),
    )
    return Device(
        npu=RooflineNpu(
            compute_units_per_token=1024 * 30_000 // speed,
            weights_ns=9_000_000 // speed,
            memory_units_per_kv_token=1024 * 500,
            overhead_ns=100_000,
        ),
        cpu=CpuModel.zero() if cpu_free else cpu,
    )


def plain_workload(  # noqa: PLR0913 - the columns of a workload, by keyword
    prompt_lengths: Sequence[int],
    *,
    arrivals_ns: Sequence[int] | None = None,
    max_tokens: Sequence[int] | None = None,
    eos_at: Sequence[int] | None = None,
    cancel_after_ns: Sequence[int] | None = None,
    cancel_after_tokens: Sequence[int] | None = None,
) -> Workload:
    """Return requests "r0", "r1", ... that share nothing.

    By default all arrive at 0, ask for 3 tokens, see no EOS and stay.
    """
    count = len(prompt_lengths)

    def column(values: Sequence[int] | None, default: int) -> Ints:
        return np.array([default] * count if values is None else values, dtype=np.int64)

    return Workload(
        prompts=Prompts(
            request_ids=tuple(f"r{index}" for index in range(count)),
            lengths=column(prompt_lengths, 1),
            vocab_size=VOCABULARY,
        ),
        arrivals_ns=column(arrivals_ns, 0),
        max_tokens=column(max_tokens, 3),
        eos_at=column(eos_at, _NEVER),
        cancel_after_ns=column(cancel_after_ns, _NEVER),
        cancel_after_tokens=column(cancel_after_tokens, _NEVER),
        priorities=column(None, 0),
    )


def mixed_workload(
    seed: int, block_size: int, *, count: int = 20, cancels: bool = True
) -> Workload:
    """Return requests of all kinds: shared prefixes, ends by EOS and by length, cancels.

    Prompts have up to 79 tokens, outputs up to 59. Four families of prompts share hash ids.

    Args:
        seed: another seed gives other requests.
        block_size: 1, 2, 4 or 8 tokens per KV block.
        count: how many requests.
        cancels: some clients leave, after a time or after a number of tokens.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    lengths, outputs = draw.integers(1, 80, count), draw.integers(1, 60, count)
    groups = -(-lengths // _GROUP)
    offsets: Ints = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(groups)])
    loners = draw.random(count) < 0.3  # noqa: PLR2004 - a share
    families = np.where(loners, 100 + np.arange(count), draw.integers(0, 4, count))
    ids: Ints = np.repeat(families * 1000, groups) + np.arange(int(offsets[-1]))
    ids -= np.repeat(offsets[:-1], groups)

    def keys(index: int) -> Ints:
        whole = ids[offsets[index] : offsets[index] + lengths[index] // _GROUP]
        spread: Ints = (whole[:, None] * _GROUP + np.arange(_GROUP // block_size)).ravel()
        return spread

    kind = draw.random(count)
    patience = np.where(kind < 0.2, draw.integers(1, 30, count), _NEVER)  # noqa: PLR2004 - a share
    leaves = np.where(kind > 0.8, draw.integers(0, 3 * 10**8, count), _NEVER)  # noqa: PLR2004
    gap_ns = int(draw.choice([10**6, 2 * 10**7, 2 * 10**8]))
    return Workload(
        prompts=Prompts(
            request_ids=tuple(f"r{index}" for index in range(count)),
            lengths=lengths,
            vocab_size=VOCABULARY,
            hash_offsets=offsets,
            hash_ids=ids,
            hash_block_size=_GROUP,
        ),
        # A coarse grid, so that arrivals coincide with each other.
        arrivals_ns=np.cumsum(draw.integers(0, 4, count)) * gap_ns // 4,
        max_tokens=outputs + draw.integers(0, 2, count) * 20,
        eos_at=np.where(draw.random(count) < 0.7, outputs, _NEVER),  # noqa: PLR2004 - a share
        cancel_after_ns=leaves if cancels else np.full(count, _NEVER),
        cancel_after_tokens=patience if cancels else np.full(count, _NEVER),
        priorities=np.zeros(count, dtype=np.int64),
        block_keys=keys,
    )
