"""The row set of last time is a short cut: who plans anew each time gets the same batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest

from stepahead import HostContractError, Kernel, KernelConfig, SelectionTiming, StepaheadError
from stepahead.arrays import Ints
from stepahead.commands import Command, EmitTokens, PrepareBatch, WakeAt
from stepahead.config import BatchPreference
from stepahead.events import BatchExecuted, BatchPrepared, HostReady, Woke
from stepahead.stretches import Repeat
from stepahead.tables import BatchState
from stepahead.timing import Estimate
from stepahead.views import BatchView
from stepahead_specs.bench import Bench
from stepahead_specs.mutants import Edit, applied
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.runs import walked, wandered

#: Stretches whose first batch has rows that have ended, or ends prompts.
DEAD, PROMPTS = -1, -2
EOS = 3


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


def busy(number: int, timing: SelectionTiming = SelectionTiming.EARLY) -> Bench:
    """Return a run of long prompts and long outputs, a few at a time, with few blocks or many."""
    just_in_time = timing is SelectionTiming.JUST_IN_TIME
    bench = Bench(
        KernelConfig(
            num_blocks=(14, 60)[number % 2],
            block_size=(1, 4)[number % 3 == 0],
            max_concurrency=(2, 3)[number % 2],
            max_num_batched_tokens=(5, 9, 64)[number % 3],
            max_tokens_per_row=(3, 64)[number // 2 % 2],
            max_model_len=40,
            lookahead=1 + number % 2 if just_in_time else number % 3,
            timing=timing,
            late_joiners=just_in_time and number % 4 == 0,
            preference=list(BatchPreference)[number // 4 % 2],
            max_waiting=4,
            eos_token_id=EOS,
        ),
        HashModel(eos=EOS),
        checked=False,
    )
    for turn in range(160):
        if turn % 11 == number % 11:
            prompt = tuple(range(100 * turn, 100 * turn + (1, 12, 30, 7)[turn // 11 % 4]))
            eos_at = (None, 5, None)[turn // 11 % 3]
            most = (9, 3)[turn % 2]
            bench.arrive(Ask(request_id=f"r{turn}", prompt=prompt, max_tokens=most, eos_at=eos_at))
        go_on(bench)
    bench.drain()
    return bench


def go_on(bench: Bench) -> bool:
    """Do what is due next, and select before the device is done; False when nothing is left."""
    if bench.building is not None:
        bench.prepared()
    elif bench.ready_due:
        bench.host_ready()
    elif bench.wake is not None:
        bench.woke_in_time()
    elif bench.on_device is not None:
        bench.executed()
    else:
        return False
    return True


def crowded(number: int, timing: SelectionTiming = SelectionTiming.EARLY) -> Bench:
    """Return a run of three that decode at once, until blocks run out in the middle of it.

    In every third run two of them end unforeseen first, and in every sixth one more waits for the
    blocks of the first.
    """
    enough, fourth, size = number % 3 == 2, number % 6 == 5, 1 + number % 2
    config = KernelConfig(
        num_blocks=20 if fourth else 90 if enough else 20 + number,
        block_size=size,
        max_concurrency=3,
        max_model_len=24,
        lookahead=number % 4 if enough else number % 3,
        max_tokens_per_row=(64, 1)[number % 2],
        eos_token_id=EOS,
        timing=timing,
    )
    bench = Bench(config, HashModel(eos=EOS), checked=False)
    for name, eos_at in zip("abc", (4, 9, None) if enough else (None,) * 3, strict=True):
        prompt = (ord(name), 1, 2)
        bench.arrive(Ask(request_id=name, prompt=prompt, max_tokens=19, eos_at=eos_at))
    if fourth:
        bench.arrive(Ask(request_id="d", prompt=tuple(range(20)), max_tokens=2))
    return to_the_end(bench)


def to_the_end(bench: Bench) -> Bench:
    """Go on until nothing is left; return the same run."""
    while go_on(bench):
        pass
    return bench


def pruned() -> Bench:
    """Return a run in which a row is dropped beside a prompt that goes on in chunks."""
    config = KernelConfig(
        num_blocks=90,
        max_model_len=90,
        lookahead=1,
        max_tokens_per_row=3,
        prune=True,
        eos_token_id=EOS,
        timing=SelectionTiming.JUST_IN_TIME,
    )
    bench = Bench(config, HashModel(eos=EOS), checked=False)
    for name, count, eos_at in ("a", 1, 3), ("b", 60, None):
        prompt = tuple(range(count))
        bench.arrive(Ask(request_id=name, prompt=prompt, max_tokens=9, eos_at=eos_at))
    return to_the_end(bench)


def deserted() -> Bench:
    """Return a run whose client leaves in the middle of a prompt, of the first of two rows."""
    config = KernelConfig(num_blocks=90, max_model_len=90, lookahead=1, max_tokens_per_row=3)
    bench = Bench(config, HashModel(), checked=False)
    for name, count in ("b", 60), ("a", 1):
        bench.arrive(Ask(request_id=name, prompt=tuple(range(count)), max_tokens=30))
    for _ in range(20):
        go_on(bench)
    bench.cancel("b")
    return to_the_end(bench)


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


@dataclass
class Steps:
    """What came of the steps of a stretch that were made singly.

    ``turn_times`` are those that `BatchExecuted` asks for; ``at`` and ``ended_at`` are of the last.
    """

    selected: list[PrepareBatch] = field(default_factory=list[PrepareBatch])
    emitted: list[Ints] = field(default_factory=list[Ints])
    turn_times: list[list[int]] = field(default_factory=list[list[int]])
    at: int = 0
    ended_at: int = 0


def one_by_one(kernel: Kernel, told: Repeat, given: Sequence[Ints], random: Random) -> Steps:
    """Make the steps of a stretch singly, each taking its time, and select when it is time."""
    steps = Steps(at=kernel.now)
    learnt, select_after = 0 if told.pace is None else told.pace.learns, told.select_after
    # What the device was done with before the next batch was prepared is learnt from, or not said.
    begun = kernel.now if told.pace is None else told.pace.dispatched_at
    for step in range(told.steps):
        steps.at = kernel.now + random.choice((0, 1, 7, 30))
        steps.ended_at = random.randint(kernel.now if step else begun, steps.at)
        back = BatchExecuted(
            batch_id=told.batch_id + step,
            tokens=given[step][None],
            at=steps.at,
            ended_at=steps.ended_at,
        )
        steps.emitted += [c.tokens for c in kernel.step(back) if isinstance(c, EmitTokens)]
        if told.pace is not None and step < learnt:
            told.pace.executed(steps.ended_at - begun)
            running = told.pace.running
            select_after = told.pace.timing.delay(running.volume, fresh=running.fresh)
        if step == told.steps - 1:
            break
        begun = steps.at
        ready = steps.at + random.choice((0, 0, 2, max(select_after, 1) - 1, select_after))
        took = random.choice((0, 3, 20))
        if told.pace is not None and step < learnt:
            assert told.pace.ready(ready - steps.at) == select_after
            told.pace.built(took)
            steps.turn_times.append([steps.ended_at, steps.at, ready, took])
        steps.selected.append(selected(kernel, ready, steps.at + select_after, took))
    return steps


def selected(kernel: Kernel, ready: int, due: int, took: int) -> PrepareBatch:
    """Select when the host is ready, not before it is due; build."""
    (command,) = kernel.step(HostReady(at=ready))
    assert isinstance(command, WakeAt) == (ready < due)
    if isinstance(command, WakeAt):
        assert command.at == due
        (command,) = kernel.step(Woke(wake_id=command.wake_id, at=due))
    assert isinstance(command, PrepareBatch)
    kernel.step(BatchPrepared(batch_id=command.batch_id, at=kernel.now + took))
    return command


def stretched(bench: Bench, limit: int) -> Counter[int]:
    """Take every stretch along a run at once and step by step; count them by what they teach."""
    kernel, random = Kernel(bench.config), Random(limit)  # noqa: S311 - repeatable, not secret
    found: Counter[int] = Counter()
    for event, _ in bench.journal:
        kernel.step(event)
        before = kernel.digest()
        told = kernel.repeat(limit)
        if told is None:
            continue
        found[0 if told.pace is None else min(told.pace.learns, 3)] += 1
        assert 2 <= told.steps <= limit + 1
        saved = kernel.snapshot()
        (running, *_) = (b for b in kernel.batches() if b.state is BatchState.DISPATCHED)
        live = np.array([row.live for row in running.rows if row.samples], dtype=bool)
        rows = len(live)
        tokens = 11 + np.arange(told.steps * rows).reshape(told.steps, rows) % 3
        steps = one_by_one(kernel, told, [tokens[0], *tokens[1:, live]], random)
        after, counted, views = kernel.digest(), kernel.counters.values(), kernel.requests()
        grants = granted(kernel)
        kernel.restore(saved)
        assert kernel.digest() == before, "what is told learns for itself alone"
        answer = kernel.step(
            BatchExecuted(
                batch_id=told.batch_id,
                tokens=tokens,
                at=steps.at,
                ended_at=steps.ended_at,
                turn_times=np.array(steps.turn_times) if steps.turn_times else None,
            )
        )
        assert (kernel.digest(), kernel.counters.values()) == (after, counted)
        assert (kernel.requests(), granted(kernel)) == (views, grants)
        assert [c.tokens.tolist() for c in answer if isinstance(c, EmitTokens)] == (
            [np.concatenate(steps.emitted).tolist()] if rows else []
        )
        describes(told, running, steps.selected)
        found[DEAD] += not live.all()
        found[PROMPTS] += any(row.end - row.position > 1 and row.samples for row in running.rows)
        kernel.restore(saved)
    return found


def granted(kernel: Kernel) -> list[list[list[int]]]:
    """Return what would undo each outstanding batch: whose blocks, from where, with which keys."""
    saved = kernel.snapshot()
    return [
        [
            column.tolist()
            for column in (
                batch.grant.blocks,
                batch.grant.queued_at,
                batch.grant.forgotten,
                batch.grant_rows,
            )
        ]
        for batch in saved.batches[saved.filled :]
    ]


def describes(told: Repeat, running: BatchView, selected: list[PrepareBatch]) -> None:
    """Check what was told of a stretch against its first batch and its selections."""
    assert told.batch_id == running.batch_id
    live = [row for row in running.rows if row.live]
    assert told.seats.tolist() == [row.seat for row in live]
    assert told.handles.tolist() == [row.handle for row in live]
    assert (told.positions + told.counts).tolist() == [row.end for row in live]
    for turn, command in enumerate(selected):
        assert said([told.selection(turn, command.batch_id)]) == said([command])


def test_a_stretch_is_the_steps_that_it_stands_for() -> None:
    """The same state, tokens and counts; what was told of its blocks is what the steps take."""
    runs = [
        *map(busy, range(24)),
        *map(crowded, range(12)),
        deserted(),
        *map(walked, range(30)),
        *(wandered(s, 8) for s in range(10)),
    ]
    found = all_stretched(runs)
    assert found[0] > 200, found
    assert min(found[DEAD], found[PROMPTS]) > 4, found


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        ("_leads", "len(state.waiting)", "False"),
        ("_leads", "0 not in samples.tobytes()", "True"),
        ("_is_one", "batch.decode is steady.decode", "True"),
        ("_settle", "count_prefixes(state, batch)", "pass"),
        ("_settle", "columns.settled[steady.seats] = ends", "pass"),
        ("_settle", "{}, {}", "{}, batch.hits"),
        ("cross", "if batch.dead:", "if False:"),
        ("repeat", "ends = ends[batch.live]", "pass"),
    ],
)
@pytest.mark.interpreted  # it edits functions
def test_a_stretch_that_begins_otherwise_is_noticed(place: str, old: str, new: str) -> None:
    """Each thing that is looked at, or settled, of a batch that leads shows in a comparison."""
    with (
        applied([Edit(place, old, new)]),
        pytest.raises((AssertionError, ValueError, StepaheadError)),
    ):
        test_a_stretch_is_the_steps_that_it_stands_for()


def all_stretched(runs: Iterable[Bench]) -> Counter[int]:
    """Take the stretches of all runs, long ones and short ones."""
    limits = (1, 30, 2, 5, 30)
    found: Counter[int] = Counter()
    for number, bench in enumerate(runs):
        found += stretched(bench, limits[number % 5])
    return found


def test_a_stretch_learns_what_its_steps_teach() -> None:
    """From no step, one, two or three, and from all chunks of a prompt."""
    just_in_time = SelectionTiming.JUST_IN_TIME
    runs = [busy(number, just_in_time) for number in range(16)]
    runs += [crowded(number, just_in_time) for number in (2, 5, 11, 14)]
    found = all_stretched([*runs, pruned()])
    assert min(found[learnt] for learnt in range(4)) > 10, found
    assert min(found[DEAD], found[PROMPTS]) > 2, found


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        ("learn_turns", "took in rows:", "took in rows[:1]:"),
        ("learn_turns", "pace.ready(ready_at - at)", "pass"),
        ("learn_turns", "running.dispatched_at = at", "pass"),
        ("_renumber", "fresh = not steady.decode", "fresh = True"),
        ("learn_turns", "pace.built(took)", "pass"),
        ("repeat", ".apart(turns)", ""),
        ("Pace.executed", "span < self.prepared_after", "False"),
        ("Pace.executed", "running.fresh = self.prompt", "pass"),
        ("Pace.executed", "running.volume.further(1)", "running.volume"),
        ("_renumber", "volume.further(ahead)", "volume"),
        ("Pace.executed", "self.prepared_after = 0", "pass"),
        ("Pace.ready", "after < delay", "after <= delay"),
    ],
    ids=[
        "the second turn is forgotten",
        "nobody waited",
        "both ran from the first dispatch",
        "new for good",
        "prepared in no time",
        "asking teaches",
        "never late",
        "each is new",
        "no further on",
        "as large as before",
        "late for good",
        "waited for nothing",
    ],
)
@pytest.mark.interpreted  # it edits functions
def test_a_stretch_that_learns_something_else_is_noticed(place: str, old: str, new: str) -> None:
    """Each part of what it learns shows in a comparison with its steps."""
    with applied([Edit(place, old, new)]), pytest.raises((AssertionError, HostContractError)):
        test_a_stretch_learns_what_its_steps_teach()


def test_a_prompt_goes_on_for_as_many_turns_as_sizes_can_be_kept() -> None:
    """Each chunk is of a size of its own, and what its stretch was told must not be forgotten."""
    bench, limits = busy(12, SelectionTiming.JUST_IN_TIME), list[int]()
    kernel = Kernel(bench.config)
    for event, _ in bench.journal:
        kernel.step(event)
        told = kernel.repeat()
        if told is None or told.pace is None or not told.pace.prompt or told.steps < 4:
            continue
        for room in range(3):
            saved = kernel.snapshot()
            assert saved.timing is not None
            fine = saved.timing.spans.fine
            fine.update({-n: Estimate(1, 0) for n in range(saved.timing.spans.room - room)})
            full = Kernel(bench.config)
            full.restore(saved)
            again = full.repeat()
            limits.append(0 if again is None else again.steps - 1)
    assert limits
    assert limits == [0, 1, 2] * (len(limits) // 3)
