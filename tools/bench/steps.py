"""What the kernel adds to every step of an engine, through the real ``step(event)`` border.

One decode step under overlap is four events and their answers: `BatchExecuted` (fill, dispatch of
the prepared batch, emit), `HostReady` (retire, select), `BatchPrepared`, `HostReady`. Prefix
caching is on, blocks have 16 tokens, prompts 512, outputs 256.
"""

from __future__ import annotations

import gc
from typing import Final

import numpy as np

from bench.machine import cpu_us
from stepahead import Kernel, KernelConfig
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    HostReady,
    RequestArrived,
    RequestCancelled,
)

PROMPT: Final = 512
OUTPUT: Final = 256
WARM_STEPS: Final = 8
STEPS: Final = 240
_BLOCK: Final = 16
_AT_ONCE: Final = 64


def _kernel(rows: int, prompt: int, output: int, lookahead: int) -> Kernel:
    return Kernel(
        KernelConfig(
            num_blocks=rows * ((prompt + output) // _BLOCK + 2),
            block_size=_BLOCK,
            max_concurrency=rows,
            max_num_batched_tokens=rows * prompt,
            max_model_len=prompt + output + 1,
            lookahead=lookahead,
        )
    )


def _arrive(kernel: Kernel, rows: int, prompt: int, output: int) -> None:
    blocks = prompt // _BLOCK
    for row in range(rows):
        keys = np.arange(row * blocks, (row + 1) * blocks, dtype=np.int64)
        kernel.step(
            RequestArrived(
                request_id=f"r{row}",
                prompt_length=prompt,
                max_tokens=output,
                at=0,
                arrived_at=0,
                block_keys=keys,
            )
        )


def _prepare(kernel: Kernel, batch_id: int) -> None:
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=batch_id, at=0))


def decoding(rows: int, lookahead: int = 1) -> Kernel:
    """Return a kernel whose ``rows`` requests decode; batch ``WARM_STEPS`` + 1 is dispatched."""
    kernel = _kernel(rows, PROMPT, OUTPUT, lookahead)
    _arrive(kernel, rows, PROMPT, OUTPUT)
    for batch_id in range(1, lookahead + 2):
        _prepare(kernel, batch_id)
    kernel.step(HostReady(at=0))
    for batch_id in range(1, WARM_STEPS + 1):
        decode_step(kernel, batch_id, rows, lookahead)
    return kernel


def decode_step(kernel: Kernel, batch_id: int, rows: int, lookahead: int = 1) -> None:
    """Let batch ``batch_id`` come back, and prepare the one that is selected then."""
    tokens = np.full((1, rows), 100, dtype=np.int64)
    kernel.step(BatchExecuted(batch_id=batch_id, tokens=tokens, at=0))
    _prepare(kernel, batch_id + lookahead + 1)
    kernel.step(HostReady(at=0))


def step_us(rows: int) -> float:
    """Return the CPU time of one decode step of ``rows`` requests, in microseconds."""
    kernel = decoding(rows)
    gc.collect()

    def work() -> None:
        for batch_id in range(WARM_STEPS + 1, WARM_STEPS + 1 + STEPS):
            decode_step(kernel, batch_id, rows)

    return cpu_us(work) / STEPS


def life_us(prompt: int) -> float:
    """Return the CPU time of a whole request with one output token, of 64 that come at once.

    That is arrival, admission, prefill, fill, finish and release, without a decode step.
    """
    kernel = _kernel(_AT_ONCE, prompt, 1, 0)
    tokens = np.full((1, _AT_ONCE), 100, dtype=np.int64)

    def work() -> None:
        _arrive(kernel, _AT_ONCE, prompt, 1)
        _prepare(kernel, 1)
        kernel.step(BatchExecuted(batch_id=1, tokens=tokens, at=0))

    return cpu_us(work) / _AT_ONCE


def cancel_us() -> float:
    """Return the CPU time of one cancel of a running request of 64, in microseconds."""
    kernel = decoding(_AT_ONCE)

    def work() -> None:
        for row in range(_AT_ONCE):
            kernel.step(RequestCancelled(request_id=f"r{row}", at=0))

    return cpu_us(work) / _AT_ONCE
