"""A seeded random walk over the bench: thousands of steps a second, and its own shrinking.

A `Scenario` is a configuration and a list of moves. A move means something in every state (cancel
the second of the live requests, let the device finish if it has a batch), so a scenario stays
playable when moves are taken out of it, and a failing one is made short by taking out all that it
does not need. `stepahead_specs.machines` searches better per step; this searches more steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from traceback import walk_tb
from typing import Final

import stepahead
from stepahead.commands import Command
from stepahead.config import BatchPreference, KernelConfig, SelectionTiming, WaitingOrder
from stepahead.errors import StepaheadError
from stepahead.events import Event
from stepahead_specs.bench import Bench, BenchError, LeftTheTables
from stepahead_specs.invariants import InvariantViolated
from stepahead_specs.machines import EOS, Shape
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.patience import Hangs
from stepahead_specs.story import tell

#: Machine-room steps after which a run that has not drained counts as one that never will.
_DRAIN_MAX: Final = 1_500
#: How often a verb that need not happen may happen at all in a scenario.
_SWARM: Final = 0.5
#: How often the requests of a scenario are patient.
_PATIENT: Final = 0.3
#: How often several requests share a pool that holds little more than one.
_CROWDED: Final = 0.25


class Verb(Enum):
    """What a move does; values are how often it is drawn."""

    ARRIVE = ("arrive", 10)
    RUN_ON = ("run on", 16)
    CPU = ("cpu", 20)
    NPU = ("npu", 12)
    CANCEL = ("cancel", 5)
    CANCEL_ENDED = ("cancel ended", 2)
    REFUSE = ("refuse", 3)
    FAIL = ("fail", 1)
    WAKE = ("wake", 3)
    STALE_WAKE = ("stale wake", 1)
    PAUSE = ("pause", 2)
    RESET = ("reset", 1)

    @property
    def weight(self) -> int:
        """How often it is drawn, against the others."""
        return self.value[1]


#: Packages whose frames tell the kernel from the host around it; others are libraries of both.
_ROOTS: Final = (stepahead.__name__, "stepahead_specs")
_ALWAYS: Final = (Verb.ARRIVE, Verb.RUN_ON, Verb.CPU, Verb.NPU)


@dataclass(frozen=True, slots=True)
class Move:
    """One move: ``number`` chooses among what the state offers, ``flag`` between two ways."""

    verb: Verb
    number: int = 0
    flag: bool = False
    ask: Ask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What the requests of one scenario have in common.

    ``families``: how many prefixes are shared among them; ``patient``: all want many tokens, and
    no model stops early. Prompts end around a block's end more often than not.
    """

    block_size: int
    families: int
    patient: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kernel's limits and what happens to it; at the end it is drained."""

    config: KernelConfig
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in a scenario.

    ``keys`` name who noticed, all in the same step: invariants by key, or `kernel`, `lockstep` or
    `bench` where the kernel raised, left the declared tables or asked for what cannot be done,
    `progress` where one step does not end.
    """

    keys: tuple[str, ...]
    sentence: str
    story: str
    steps: int


def draw(random: Random, shape: Shape | None = None, length: int = 40) -> Scenario:
    """Draw a scenario of ``length`` moves."""
    shape = shape or Shape(crowded=random.random() < _CROWDED)
    config = _config(random, shape)
    # Some things never happen in one scenario, so that others happen more: pools fill up only
    # where nobody cancels and no model stops early.
    verbs = [verb for verb in Verb if verb in _ALWAYS or random.random() < _SWARM]
    weights = [verb.weight for verb in verbs]
    chosen = [Verb.ARRIVE, *random.choices(verbs, weights, k=length)]
    style = Style(
        block_size=config.block_size,
        families=1 if shape.crowded else random.choice((1, 1, 3)),
        patient=random.random() < _PATIENT,
    )
    return Scenario(config, tuple(_move(random, verb, shape, style) for verb in chosen))


def play(
    scenario: Scenario, make_bench: Callable[[KernelConfig, HashModel], Bench] = Bench
) -> Failure | None:
    """Play a scenario and drain; return what went wrong first, or None."""
    config = scenario.config
    bench = make_bench(config, HashModel(eos=config.eos_token_id))
    try:
        for move in scenario.moves:
            _ACTS[move.verb](bench, move)
        bench.drain(_DRAIN_MAX)
    except Exception as error:  # noqa: BLE001 - whatever a mutant raises is a finding
        return failed(error, bench.journal)
    return None


def shrink(
    scenario: Scenario,
    failure: Failure,
    again: Callable[[Scenario], Failure | None] = play,
    plays_max: int = 600,
) -> tuple[Scenario, Failure]:
    """Make a failing scenario simpler as long as the same watcher notices; return both."""
    left = plays_max
    better = True
    while better and left > 0:
        better = False
        for candidate in _simpler(scenario):
            left -= 1
            found = again(candidate)
            if found is not None and set(found.keys) & set(failure.keys):
                scenario, failure, better = candidate, found, True
                break
            if left <= 0:
                break
    return scenario, failure


# -- drawing ----------------------------------------------------------------------------------


def _config(random: Random, shape: Shape) -> KernelConfig:
    """Draw limits that are tight more often than not."""
    choice, whole = random.choice, random.randint
    block_size = choice((1, 2, 4))
    if shape.crowded:
        return _crowded(random, block_size, -(-(shape.prompt_max + shape.output_max) // block_size))
    lookahead = whole(0, shape.lookahead_max)
    drafts = 0 if lookahead else whole(*shape.drafts)
    just_in_time = lookahead > 0 and choice((False, False, True))
    longest = -(-(shape.prompt_max + shape.output_max - 1) // block_size)
    tight = choice((True, False))
    crowded = choice((True, False))
    return KernelConfig(
        num_blocks=whole(2, longest) if tight else whole(longest, 2 * longest),
        block_size=block_size,
        max_concurrency=choice((3, 4) if crowded else (1, 2)),
        max_num_batched_tokens=choice((64, whole(1, 6))),
        max_tokens_per_row=choice((64, 3, 2, 1)),
        max_model_len=choice((24, 24, 24, 12, 6)),
        lookahead=lookahead,
        num_speculative_tokens=drafts,
        order=choice(list(WaitingOrder)),
        preference=choice(list(BatchPreference)),
        prefix_caching=choice((True, True, False)),
        eos_token_id=choice((EOS, EOS, None)),
        max_waiting=choice((1 << 20, 1 << 20, 2)),
        timing=SelectionTiming.JUST_IN_TIME if just_in_time else SelectionTiming.EARLY,
        late_joiners=just_in_time and choice((False, True)),
        prune=choice((False, True)),
    )


def _crowded(random: Random, block_size: int, longest: int) -> KernelConfig:
    choice, whole = random.choice, random.randint
    return KernelConfig(
        num_blocks=whole(longest, longest + 2),
        block_size=block_size,
        max_concurrency=choice((3, 4)),
        max_num_batched_tokens=64,
        max_model_len=24,
        lookahead=whole(1, 3),
        order=choice(list(WaitingOrder)),
        timing=choice(list(SelectionTiming)),
        prune=choice((False, True)),
        eos_token_id=EOS,
    )


def _move(random: Random, verb: Verb, shape: Shape, style: Style) -> Move:
    ask = _ask(random, shape, style) if verb is Verb.ARRIVE else None
    if ask is not None and style.patient:
        ask = replace(ask, max_tokens=shape.output_max, eos_at=None, stop_token_ids=())
    return Move(verb, random.randint(0, 15), random.choice((False, True)), ask)


def _ask(random: Random, shape: Shape, style: Style) -> Ask:
    """Draw a request: families of shared prefixes, planned ends, now and then every option."""
    choice, whole = random.choice, random.randint
    around = style.block_size * whole(1, 3) + choice((-1, 0, 1))
    length = min(max(choice((around, whole(1, shape.prompt_max))), 1), shape.prompt_max)
    family = whole(1, style.families)
    output_max = choice((shape.output_max, 3))
    max_tokens = whole(1, output_max)
    return Ask(
        request_id="",
        prompt=(*(10 * family + position for position in range(length - 1)), 90 + whole(0, 1)),
        max_tokens=max_tokens,
        eos_at=choice((None, whole(0, 5))),
        priority=whole(-1, 1),
        min_tokens=choice((0, 0, 0, max_tokens // 2, max_tokens)),
        ignore_eos=choice((False, False, False, True)),
        stop_token_ids=choice(((), (), (), (7,), tuple(range(0, 97, 8)))),
    )


# -- playing ----------------------------------------------------------------------------------


def _arrive(bench: Bench, move: Move) -> None:
    """A new id, or (one in four) one that has been used before."""
    if move.ask is None:
        return
    used = sorted({request.request_id for request in bench.seen.requests.values()})
    number = move.number
    name = used[number // 4 % len(used)] if used and number % 4 == 0 else f"r{len(bench.asks)}"
    bench.arrive(replace(move.ask, request_id=name))


def _cpu(bench: Bench, _: Move) -> None:
    if bench.building is not None:
        bench.prepared()
    elif bench.ready_due:
        bench.host_ready()


def _npu(bench: Bench, move: Move) -> None:
    if bench.on_device is not None:
        bench.luck = move.number
        bench.executed()


def _run_on(bench: Bench, move: Move) -> None:
    """The machine room works by itself, the host first or the device first."""
    acts = (_npu, _cpu) if move.flag else (_cpu, _npu)
    for _ in range(move.number):
        step = bench.seen.step
        for act in acts:
            act(bench, move)
            if bench.seen.step != step:
                break
        else:
            return


def _cancel(bench: Bench, move: Move) -> None:
    live = bench.seen.live()
    if live:
        request = live[move.number % len(live)]
        bench.cancel(request.request_id, request.handle if move.flag else None)


def _cancel_ended(bench: Bench, move: Move) -> None:
    ended = [request for request in bench.seen.requests.values() if not request.live]
    if ended:
        request = ended[-1 - move.number % len(ended)]
        bench.cancel(request.request_id, request.handle)


def _refuse(bench: Bench, _: Move) -> None:
    if bench.building is not None:
        bench.refused()


def _fail(bench: Bench, move: Move) -> None:
    if bench.on_device is not None:
        bench.device_failed(whole=move.flag and move.number % 3 == 0)


def _wake(bench: Bench, _: Move) -> None:
    if bench.wake is not None and bench.building is None:
        bench.woke_in_time()


def _stale_wake(bench: Bench, move: Move) -> None:
    if bench.building is None:
        bench.woke(move.number)


def _pause(bench: Bench, _: Move) -> None:
    if bench.seen.paused or bench.seen.pausing:
        bench.resume()
    else:
        bench.pause()


def _reset(bench: Bench, _: Move) -> None:
    bench.reset_cache()


_ACTS: Final[dict[Verb, Callable[[Bench, Move], None]]] = {
    Verb.ARRIVE: _arrive,
    Verb.RUN_ON: _run_on,
    Verb.CPU: _cpu,
    Verb.NPU: _npu,
    Verb.CANCEL: _cancel,
    Verb.CANCEL_ENDED: _cancel_ended,
    Verb.REFUSE: _refuse,
    Verb.FAIL: _fail,
    Verb.WAKE: _wake,
    Verb.STALE_WAKE: _stale_wake,
    Verb.PAUSE: _pause,
    Verb.RESET: _reset,
}


# -- what went wrong --------------------------------------------------------------------------


def failed(error: Exception, journal: Sequence[tuple[Event, tuple[Command, ...]]]) -> Failure:
    """Return what an error says of the run that it ended."""
    return Failure(_keys(error), _sentence(error), tell(journal), len(journal))


def _keys(error: Exception) -> tuple[str, ...]:
    if isinstance(error, InvariantViolated):
        return tuple(dict.fromkeys(violation.key for violation in error.violations))
    if isinstance(error, BenchError):
        return ("lockstep",) if isinstance(error, LeftTheTables) else ("bench",)
    if isinstance(error, Hangs):
        return ("progress",)
    return ("kernel",) if _in_kernel(error) else ("bench",)


def _in_kernel(error: Exception) -> bool:
    """Tell whether the kernel raised, not the host or a watcher that choked on what it was told."""
    names = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    ours = [root for name in names if (root := name.partition(".")[0]) in _ROOTS]
    return bool(ours) and ours[-1] == stepahead.__name__


def _sentence(error: Exception) -> str:
    if isinstance(error, InvariantViolated | BenchError):
        return str(error).partition("\n")[0]
    if isinstance(error, Hangs):
        return f"the kernel goes round within one step: {error}"
    kind = type(error).__name__
    if not _in_kernel(error):
        return f"the host breaks with {kind}: {error}"
    return (
        f"the kernel raises {kind}: {error}"
        if isinstance(error, StepaheadError)
        else (f"the kernel breaks with {kind}: {error}")
    )


# -- simpler scenarios ------------------------------------------------------------------------


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Return scenarios with something less: big bites first, then options, then numbers."""
    moves = scenario.moves
    bite = len(moves) // 2
    while bite:
        for start in range(0, len(moves), bite):
            yield replace(scenario, moves=(*moves[:start], *moves[start + bite :]))
        bite //= 2
    for config in _plainer(scenario.config):
        yield replace(scenario, config=config)
    for index, move in enumerate(moves):
        for simple in _smaller(move):
            yield replace(scenario, moves=(*moves[:index], simple, *moves[index + 1 :]))


def _plainer(config: KernelConfig) -> Iterator[KernelConfig]:
    plain: Sequence[tuple[str, object]] = (
        ("late_joiners", False),
        ("timing", SelectionTiming.EARLY),
        ("prune", False),
        ("prefix_caching", False),
        ("order", WaitingOrder.FIRST_COME_FIRST_SERVED),
        ("preference", BatchPreference.DECODE_FIRST),
        ("eos_token_id", None),
        ("num_speculative_tokens", 0),
        ("max_waiting", 1 << 20),
        ("max_model_len", 24),
        ("max_num_batched_tokens", 64),
        ("max_tokens_per_row", 64),
    )
    for name, value in plain:
        if getattr(config, name) != value:
            yield replace(config, **{name: value})  # type: ignore[arg-type] # names of the table above
    if config.num_speculative_tokens > 1:
        yield replace(config, num_speculative_tokens=config.num_speculative_tokens - 1)
    if config.lookahead > 1:
        yield replace(config, lookahead=config.lookahead - 1)


def _smaller(move: Move) -> Iterator[Move]:
    ask = move.ask
    if ask is None:
        if move.number:
            yield replace(move, number=0)
            yield replace(move, number=move.number - 1)
        return
    if len(ask.prompt) > 1:
        yield replace(move, ask=replace(ask, prompt=ask.prompt[-1:]))
        yield replace(move, ask=replace(ask, prompt=(*ask.prompt[:-2], ask.prompt[-1])))
    if ask.max_tokens > max(ask.min_tokens, 1):
        yield replace(move, ask=replace(ask, max_tokens=ask.max_tokens - 1))
    for name, value in (
        ("eos_at", None),
        ("priority", 0),
        ("min_tokens", 0),
        ("ignore_eos", False),
        ("stop_token_ids", ()),
    ):
        if getattr(ask, name) != value:
            yield replace(move, ask=replace(ask, **{name: value}))  # type: ignore[arg-type] # as above
