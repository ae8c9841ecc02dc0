"""Predicts rows of a measured envelope by simulating its closed loop, request by request."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead import Kernel, KernelConfig
from stepahead_models.cpu import CpuModel
from stepahead_models.device import Device
from stepahead_models.envelope import EnvelopeRow, Lengths
from stepahead_models.estimate import Prediction
from stepahead_models.profiles import Profile
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash, Prompts
from stepahead_models.workload import Workload

_BLOCK_SIZE: Final = 16
_VOCAB_SIZE: Final = 128_256
_REQUESTS_MIN: Final = 40
_REQUESTS_PER_CLIENT: Final = 12


class ClosedLoop:
    """A closed loop of clients on the simulated machine; a row of an envelope is one run.

    Ends are by length and nothing is shared between prompts, so the prefix cache is off (the
    measured runs hit it for 8 to 9 % of their prompt tokens). A run has the requests of the
    measured one, but no more than 12 per client or 40, whichever is more: it is steady by then.

    Args:
        profile: the device; its CPU costs are not used.
        lengths: of the requests.
        lookahead: 0 is the eager loop, 1 overlap.
    """

    def __init__(self, profile: Profile, lengths: Lengths, *, lookahead: int = 0) -> None:
        limits = profile.limits
        self._config: Final = KernelConfig(
            num_blocks=profile.num_blocks(_BLOCK_SIZE),
            block_size=_BLOCK_SIZE,
            max_concurrency=limits.max_concurrency.value,
            max_tokens_per_row=limits.max_tokens_per_row.value,
            max_model_len=limits.max_model_len.value,
            prefix_caching=False,
            lookahead=lookahead,
        )
        self._npu: Final = profile.npu_model()
        self._lengths: Final = lengths

    def __call__(self, row: EnvelopeRow, cpu: CpuModel) -> Prediction:
        """Run one row under a CPU model."""
        clients = row.requested
        enough = max(_REQUESTS_MIN, _REQUESTS_PER_CLIENT * clients)
        workload = self._workload(min(row.requests, enough))
        device = Device(npu=self._npu, cpu=cpu)
        record = Simulation(
            Kernel(self._config),
            workload,
            device,
            HistoryHash(),
            sanitize=False,
            closed_loop=clients,
        ).run()
        spans = record.last_tokens_ns - record.first_tokens_ns
        tpots = spans / (record.output_tokens - 1)
        return Prediction(
            tokens_per_s=float(record.output_tokens.sum()) / record.duration_ns * 1e9,
            tpot_ms=float(np.median(tpots)) / 1e6,
        )

    def _workload(self, requests: int) -> Workload:
        prompts, outputs = self._lengths.workload(requests)
        never = np.full(requests, -1, dtype=np.int64)
        zeros = np.zeros(requests, dtype=np.int64)
        ids = tuple(f"{index}" for index in range(requests))
        return Workload(
            prompts=Prompts(request_ids=ids, lengths=prompts, vocab_size=_VOCAB_SIZE),
            arrivals_ns=zeros,
            max_tokens=outputs,
            eos_at=never,
            cancel_after_ns=never,
            cancel_after_tokens=never,
            priorities=zeros,
        )
