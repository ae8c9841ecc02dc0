"""The row set of last time is a short cut: who plans anew each time gets the same batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead.commands import Command
from stepahead.config import BatchPreference
from stepahead.events import HostReady
from stepahead_specs.bench import Bench
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.runs import walked, wandered


def said(commands: Sequence[Command]) -> str:
    """Return commands as text, arrays in full."""
    with np.printoptions(threshold=10**6):
        return repr(commands)


def forgetful(bench: Bench) -> int:
    """Follow a run with a kernel that forgets its row set; return how often it had one.

    Just in time the two differ: what is learnt of a batch depends on whether its rows are new.
    """
    kernel = Kernel(bench.config)
    forgotten = 0
    if bench.config.timing is SelectionTiming.JUST_IN_TIME:
        return 0
    for event, commands in bench.journal:
        if isinstance(event, HostReady):
            saved = kernel.snapshot()
            forgotten += saved.steady is not None
            kernel.restore(replace(saved, steady=None))
        assert said(kernel.step(event)) == said(commands)
    return forgotten


def busy(number: int) -> Bench:
    """Return a run of long prompts and long outputs, a few at a time, with few blocks or many."""
    bench = Bench(
        KernelConfig(
            num_blocks=(14, 60)[number % 2],
            block_size=(1, 4)[number % 3 == 0],
            max_concurrency=(2, 3)[number % 2],
            max_num_batched_tokens=(5, 9, 64)[number % 3],
            max_tokens_per_row=(3, 64)[number // 2 % 2],
            max_model_len=40,
            lookahead=number % 3,
            preference=list(BatchPreference)[number // 4 % 2],
            max_waiting=4,
        ),
        HashModel(),
        checked=False,
    )
    for turn in range(160):
        if turn % 11 == number % 11:
            prompt = tuple(range(100 * turn, 100 * turn + (1, 12, 30, 7)[turn // 11 % 4]))
            bench.arrive(Ask(request_id=f"r{turn}", prompt=prompt, max_tokens=(9, 3)[turn % 2]))
        if bench.building is not None:
            bench.prepared()
        elif bench.ready_due:
            bench.host_ready()
        elif bench.on_device is not None:
            bench.executed()
    bench.drain()
    return bench


def follows(runs: Iterable[Bench]) -> int:
    """Follow all runs; return how often there was something to forget."""
    return sum(forgetful(bench) for bench in runs)


def test_who_plans_anew_selects_the_same_batches() -> None:
    """Rows, tokens, blocks and their order, after any event."""
    assert follows(walked(seed) for seed in range(40)) > 100


def test_with_tiers_as_well() -> None:
    """Write-back and loads depend on who takes which block when."""
    assert follows(wandered(seed, 10) for seed in range(16)) > 30


def test_of_long_prompts_and_long_outputs_as_well() -> None:
    """Chunks of one prompt go on as decode rows do, beside those who wait."""
    assert follows(busy(number) for number in range(24)) > 300
