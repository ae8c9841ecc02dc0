"""The row set of last time is a short cut: who plans anew each time gets the same batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead.arrays import Ints
from stepahead.commands import Command, EmitTokens, PrepareBatch
from stepahead.config import BatchPreference
from stepahead.events import BatchExecuted, BatchPrepared, HostReady
from stepahead.stretches import Repeat
from stepahead.tables import BatchState
from stepahead.views import BatchView
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


def crowded(number: int) -> Bench:
    """Return a run of three that decode at once, until blocks run out in the middle of it."""
    config = KernelConfig(
        num_blocks=20 + number, block_size=1 + number % 2, max_model_len=24, lookahead=number % 3
    )
    bench = Bench(config, HashModel(), checked=False)
    for name in "abc":
        bench.arrive(Ask(request_id=name, prompt=(ord(name), 1, 2), max_tokens=19))
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


def one_by_one(kernel: Kernel, told: Repeat, tokens: Ints) -> tuple[list[PrepareBatch], Ints]:
    """Make the steps of a stretch singly; return what was selected, and the tokens handed out."""
    selected: list[PrepareBatch] = []
    emitted: list[Ints] = []
    for step in range(told.steps):
        back = BatchExecuted(
            batch_id=told.batch_id + step, tokens=tokens[step : step + 1], at=kernel.now
        )
        emitted += [c.tokens for c in kernel.step(back) if isinstance(c, EmitTokens)]
        if step < told.steps - 1:
            (command,) = kernel.step(HostReady(at=kernel.now))
            assert isinstance(command, PrepareBatch)
            selected.append(command)
            kernel.step(BatchPrepared(batch_id=command.batch_id, at=kernel.now))
    return selected, np.concatenate([*emitted, np.zeros((0, tokens.shape[1]), dtype=np.int64)])


def stretched(bench: Bench, limit: int) -> int:
    """Take every stretch along a run at once and step by step; return how many there were."""
    kernel = Kernel(bench.config)
    found = 0
    if bench.config.timing is SelectionTiming.JUST_IN_TIME:
        return 0
    for event, _ in bench.journal:
        kernel.step(event)
        told = kernel.repeat(limit)
        if told is None:
            continue
        found += 1
        assert 2 <= told.steps <= limit + 1
        saved = kernel.snapshot()
        (running, *_) = (b for b in kernel.batches() if b.state is BatchState.DISPATCHED)
        rows = sum(row.samples for row in running.rows)
        tokens = 11 + np.arange(told.steps * rows).reshape(told.steps, rows) % 3
        answer = kernel.step(BatchExecuted(batch_id=told.batch_id, tokens=tokens, at=kernel.now))
        after, counted, views = kernel.digest(), kernel.counters.values(), kernel.requests()
        kernel.restore(saved)
        selected, emitted = one_by_one(kernel, told, tokens)
        assert (kernel.digest(), kernel.counters.values()) == (after, counted)
        assert kernel.requests() == views
        assert [c.tokens.tolist() for c in answer if isinstance(c, EmitTokens)] == (
            [emitted.tolist()] if rows else []
        )
        describes(told, running, selected)
        kernel.restore(saved)
    return found


def describes(told: Repeat, running: BatchView, selected: list[PrepareBatch]) -> None:
    """Check what was told of a stretch against its first batch and its selections."""
    assert told.batch_id == running.batch_id
    assert told.seats.tolist() == [row.seat for row in running.rows]
    assert told.handles.tolist() == [row.handle for row in running.rows]
    assert told.positions.tolist() == [row.position for row in running.rows]
    assert told.scheduled.tolist() == selected[0].positions.tolist()
    assert told.counts.tolist() == selected[0].token_counts.tolist()
    grown = [
        (turn, row, slot, block)
        for turn, command in enumerate(selected)
        for row, slot, block in zip(
            command.block_rows.tolist(),
            command.block_slots.tolist(),
            command.blocks.tolist(),
            strict=True,
        )
    ]
    columns = (told.block_turns, told.block_rows, told.block_slots, told.blocks)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == grown


def test_a_stretch_is_the_steps_that_it_stands_for() -> None:
    """The same state, tokens and counts; what was told of its blocks is what the steps take."""
    runs = [
        *map(busy, range(24)),
        *map(crowded, range(9)),
        *map(walked, range(30)),
        *(wandered(s, 8) for s in range(10)),
    ]
    limits = (1, 30, 2, 5, 30)
    assert sum(stretched(bench, limits[n % 5]) for n, bench in enumerate(runs)) > 200
