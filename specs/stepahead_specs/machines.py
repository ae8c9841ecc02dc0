"""Hypothesis machines over the real kernel: the test, not a clock, chooses what happens next.

`KernelMachine` draws a configuration, then arrivals, cancels of every kind, and moves of host and
device. All invariants hold after every step, the goals that were reached are recorded, and at the
end everything drains. A failure carries the run in words and its configuration.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stepahead.config import BatchPreference, KernelConfig, SelectionTiming, WaitingOrder
from stepahead.events import (
    BatchExecuted,
    BatchPrepared,
    BatchRefused,
    Event,
    HostReady,
)
from stepahead.requests import Intent
from stepahead.views import RequestView
from stepahead_specs.bench import Bench
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.story import tell, write_journal

EOS: Final = 5
#: Where the run that failed last is left as a journal; a shrunk failure is the last one.
FAILURE: Final = Path(tempfile.gettempdir()) / "stepahead-failure.jsonl"

#: What `KernelMachine.go_on` does for an event that the kernel says may come, and how often.
_MOVES: Final[dict[type[Event], Callable[[Bench], object]]] = {
    HostReady: Bench.host_ready,
    BatchPrepared: Bench.prepared,
    BatchRefused: Bench.refused,
    BatchExecuted: Bench.executed,
}
_WEIGHTS: Final[dict[type[Event], int]] = {
    HostReady: 6,
    BatchPrepared: 6,
    BatchRefused: 1,
    BatchExecuted: 6,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How far `configurations` and `asks` may go.

    ``drafts`` are the least and the largest width of speculation under lookahead 0. ``crowded``:
    several requests with a common prefix share a pool that holds little more than one,
    under overlap, so that preemption, fences and hits are the rule.
    """

    lookahead_max: int = 3
    prompt_max: int = 9
    output_max: int = 9
    crowded: bool = False
    drafts: tuple[int, int] = (0, 3)


@st.composite
def configurations(draw: st.DrawFn, shape: Shape) -> KernelConfig:
    """Draw limits that are tight more often than not."""
    block_size = draw(st.sampled_from((1, 2, 4)))
    if shape.crowded:
        return _crowded(draw, block_size, -(-(shape.prompt_max + shape.output_max) // block_size))
    lookahead = draw(st.integers(0, shape.lookahead_max))
    drafts = 0 if lookahead else draw(st.integers(*shape.drafts))
    just_in_time = lookahead > 0 and draw(st.sampled_from((False, False, True)))
    longest = -(-(shape.prompt_max + shape.output_max - 1) // block_size)
    return KernelConfig(
        num_blocks=draw(st.one_of(st.integers(2, longest), st.integers(longest, 2 * longest))),
        block_size=block_size,
        max_concurrency=draw(st.sampled_from((3, 4, 2, 1))),
        max_num_batched_tokens=draw(st.one_of(st.just(64), st.integers(1, 6))),
        max_tokens_per_row=draw(st.sampled_from((64, 3, 2, 1))),
        max_model_len=draw(st.sampled_from((24, 24, 24, 12, 6))),
        lookahead=lookahead,
        num_speculative_tokens=drafts,
        order=draw(st.sampled_from(list(WaitingOrder))),
        preference=draw(st.sampled_from(list(BatchPreference))),
        prefix_caching=draw(st.booleans()),
        eos_token_id=draw(st.sampled_from((EOS, None))),
        max_waiting=draw(st.sampled_from((1 << 20, 1 << 20, 2))),
        timing=SelectionTiming.JUST_IN_TIME if just_in_time else SelectionTiming.EARLY,
        late_joiners=just_in_time and draw(st.booleans()),
        prune=draw(st.sampled_from((False, False, True))),
    )


def _crowded(draw: st.DrawFn, block_size: int, longest: int) -> KernelConfig:
    return KernelConfig(
        num_blocks=draw(st.integers(longest, longest + 2)),
        block_size=block_size,
        max_concurrency=draw(st.sampled_from((4, 3))),
        max_num_batched_tokens=64,
        max_model_len=24,
        lookahead=draw(st.integers(1, 3)),
        order=draw(st.sampled_from(list(WaitingOrder))),
        timing=draw(st.sampled_from((SelectionTiming.EARLY, SelectionTiming.JUST_IN_TIME))),
        prune=draw(st.booleans()),
        eos_token_id=EOS,
    )


@st.composite
def asks(draw: st.DrawFn, shape: Shape) -> Ask:
    """Draw a request: prompts around block multiples, families of shared prefixes, planned ends."""
    length = draw(st.integers(1, shape.prompt_max))
    family = 0 if shape.crowded else draw(st.integers(0, 2))
    tail = draw(st.integers(0, 1))
    head = tuple(10 * family + position for position in range(length - 1))
    max_tokens = draw(st.one_of(st.integers(1, shape.output_max), st.integers(1, 3)))
    return Ask(
        request_id="",
        prompt=(*head, 90 + tail),
        max_tokens=max_tokens,
        eos_at=draw(st.one_of(st.none(), st.integers(0, 5))),
        priority=draw(st.integers(-1, 1)),
        min_tokens=draw(st.sampled_from((0, 0, 0, max_tokens // 2, max_tokens))),
        ignore_eos=draw(st.sampled_from((False, False, False, True))),
        stop_token_ids=draw(st.sampled_from(((), (), (), (7,), tuple(range(0, 97, 8))))),
    )


class KernelMachine(RuleBasedStateMachine):
    """The machine; ``reached_goals`` counts over all examples of a run."""

    reached_goals: ClassVar[Counter[str]] = Counter()
    shape = Shape()

    def __init__(self) -> None:
        super().__init__()
        self.bench: Bench | None = None

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Choose the limits."""
        config = data.draw(configurations(self.shape), label="limits")
        self.bench = self.make_bench(config)

    def make_bench(self, config: KernelConfig) -> Bench:
        """Return the bench to be driven; a mutant overrides this."""
        return Bench(config, HashModel(eos=config.eos_token_id))

    # -- clients ------------------------------------------------------------------------------

    @precondition(lambda self: self._draining())
    @rule(data=st.data())
    def arrive_again(self, data: st.DataObject) -> None:
        """The id of a request that has ended comes again while its last rows drain."""
        seen = self._bench().seen
        ids = sorted({r.request_id for r in seen.requests.values() if seen.drains(r.handle)})
        ask = data.draw(asks(self.shape), label="ask")
        named = replace(ask, request_id=data.draw(st.sampled_from(ids), label="id"))
        self._do(partial(Bench.arrive, ask=named))

    @rule(data=st.data(), count=st.integers(1, 4))
    def arrive(self, data: st.DataObject, count: int) -> None:
        """Clients ask before the host is ready again; now and then an id has been used before."""
        for _ in range(count):
            ask = data.draw(asks(self.shape), label="ask")
            used = sorted({request.request_id for request in self._bench().seen.requests.values()})
            fresh = f"r{len(self._bench().seen.requests)}"
            name = data.draw(st.sampled_from((fresh, fresh, fresh, *used[-2:])), label="id")
            named = replace(ask, request_id=name)
            self._do(partial(Bench.arrive, ask=named))

    @precondition(lambda self: self._rarely(4))
    @rule(data=st.data())
    def cancel_live(self, data: st.DataObject) -> None:
        """A client leaves; each state that some request is in is as likely."""
        by_state: dict[str, list[RequestView]] = {}
        for request in self._bench().kernel.requests():
            by_state.setdefault(request.state.value, []).append(request)
        if by_state:
            state = data.draw(st.sampled_from(sorted(by_state)), label="state")
            chosen = data.draw(st.sampled_from(by_state[state]), label="request")
            handle = data.draw(st.sampled_from((None, chosen.handle)), label="handle")
            self._do(partial(Bench.cancel, request_id=chosen.request_id, handle=handle))

    @precondition(lambda self: bool(self._victims()))
    @rule(data=st.data())
    def cancel_victim(self, data: st.DataObject) -> None:
        """A client leaves while its request waits to be preempted."""
        chosen = data.draw(st.sampled_from(self._victims()), label="request")
        self._do(partial(Bench.cancel, request_id=chosen.request_id))

    @precondition(lambda self: bool(self._ending()))
    @rule(data=st.data())
    def cancel_at_the_end(self, data: st.DataObject) -> None:
        """A client leaves while the token that ends its request is being sampled."""
        handle = data.draw(st.sampled_from(self._ending()), label="request")
        name = self._bench().asks[handle].request_id
        self._do(partial(Bench.cancel, request_id=name))

    @precondition(lambda self: self._rarely(6) or self._draining())
    @rule(data=st.data())
    def cancel_ended(self, data: st.DataObject) -> None:
        """A client leaves twice, or after its end, perhaps while its rows drain."""
        bench = self._bench()
        ended = [r for r in bench.seen.requests.values() if not r.live]
        if ended:
            draining = [r for r in ended if bench.seen.rows_of(r.handle)]
            chosen = data.draw(st.sampled_from(draining or ended), label="request")
            self._do(partial(Bench.cancel, request_id=chosen.request_id, handle=chosen.handle))

    @precondition(lambda self: self._rarely(6))
    @rule(name=st.sampled_from(("r0", "r1", "r2", "nobody")), handle=st.sampled_from((None, 999)))
    def cancel_by_name(self, name: str, handle: int | None) -> None:
        """A client leaves by name only, whoever has it now."""
        self._do(lambda bench: bench.cancel(name, handle))

    # -- host and device ----------------------------------------------------------------------

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """Something that the kernel says may come next happens; failures and cancels are rare."""
        bench = self._bench()
        possible = [
            entry.kind
            for entry in bench.kernel.enabled()
            for _ in range(_WEIGHTS.get(entry.kind, 0))
            if entry.kind is not HostReady or bench.ready_due
        ]
        if possible:
            self._do(_MOVES[data.draw(st.sampled_from(possible), label="move")])

    @precondition(lambda self: self.bench is not None and self.bench.wake is not None)
    @rule()
    def wake(self) -> None:
        """A wake that was asked for comes, in time or late; it may also never come."""
        if self._bench().building is None:
            self._do(Bench.woke_in_time)

    @rule(turns=st.integers(1, 16), late=st.booleans(), luck=st.integers(0, 9))
    def run_on(self, turns: int, late: bool, luck: int) -> None:  # noqa: FBT001 # drawn by Hypothesis
        """The machine room works by itself for a while, the host first or the device first."""
        self._bench().luck = luck
        for _ in range(turns):
            if not self._turn(late=late):
                return

    @precondition(lambda self: self._rarely(4))
    @rule(ident=st.integers(0, 9))
    def refuse(self, ident: int) -> None:
        """The host cannot build the batch; or a wake comes that nobody asked for."""
        if self._bench().building is not None:
            self._do(Bench.refused)
        else:
            self._do(lambda bench: bench.woke(ident))

    @precondition(lambda self: self._rarely(7) or (self._rarely(3) and self._overlaps()))
    @precondition(lambda self: self.bench is not None and self.bench.on_device is not None)
    @rule(whole=st.booleans())
    def fail(self, whole: bool) -> None:  # noqa: FBT001 # drawn by Hypothesis
        """The device fails its batch, or altogether."""
        self._do(lambda bench: bench.device_failed(whole=whole))

    @precondition(lambda self: self._rarely(6))
    @rule()
    def pause_or_resume(self) -> None:
        """Somebody asks for a pause, or ends one."""
        paused = self._bench().seen.paused or self._bench().seen.pausing
        self._do(Bench.resume if paused else Bench.pause)

    @precondition(lambda self: self._rarely(8))
    @rule()
    def reset_cache(self) -> None:
        """Somebody asks to forget the cache."""
        self._do(Bench.reset_cache)

    # -- the end ------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everything drains; nothing is kept and everybody has had a last word."""
        if self.bench is None:
            return
        bench = self.bench
        self._do(Bench.drain)
        for words in sorted(bench.goals):
            event(words)
        self.reached_goals.update(bench.goals)

    # -- inside -------------------------------------------------------------------------------

    def _bench(self) -> Bench:
        if self.bench is None:
            raise AssertionError("the machine has not started")
        return self.bench

    def _rarely(self, one_in: int) -> bool:
        """Hold a rule back but for one in so many steps, without a choice of its own."""
        return self.bench is not None and self.bench.seen.step % one_in == 0

    def _victims(self) -> list[RequestView]:
        requests = () if self.bench is None else self.bench.kernel.requests()
        return [request for request in requests if request.intent is Intent.PREEMPT]

    def _overlaps(self) -> bool:
        return self.bench is not None and len(self.bench.seen.outstanding()) > 1

    def _ending(self) -> list[int]:
        """Return the live requests that the device is sampling EOS for."""
        bench = self.bench
        if bench is None or bench.on_device is None:
            return []
        ending: list[int] = []
        for row in bench.seen.batches[bench.on_device].rows:
            request = bench.seen.requests[row.handle]
            tokens, _ = bench.truth(row.handle)
            first = row.known_end - request.prompt_length
            may_come = tokens[first : first + 1 + row.drafts]
            if request.live and row.samples and bench.config.eos_token_id in may_come:
                ending.append(row.handle)
        return ending

    def _draining(self) -> bool:
        return self.bench is not None and self.bench.seen.draining() > 0

    def _turn(self, *, late: bool) -> bool:
        """Let the host or the device do the next thing; tell whether there was one."""
        moves: list[Callable[[Bench], object]] = []
        bench = self._bench()
        if bench.building is not None:
            moves.append(Bench.prepared)
        elif bench.ready_due:
            moves.append(Bench.host_ready)
        if bench.on_device is not None:
            moves.append(Bench.executed)
        if moves:
            self._do(moves[-1 if late else 0])
        return bool(moves)

    def _do(self, move: Callable[[Bench], object]) -> None:
        bench = self._bench()
        try:
            move(bench)
        except Exception:
            note(f"{bench.config}\n{tell(bench.journal)}")
            write_journal(bench.journal, bench.config, FAILURE)
            note(f"stepahead replay {FAILURE}")
            self.bench = None
            raise


class CrowdedMachine(KernelMachine):
    """The same machine where there is never enough room."""

    shape = Shape(crowded=True)


class DraftingMachine(KernelMachine):
    """The same machine where every kernel speculates."""

    shape = Shape(lookahead_max=0, output_max=15, drafts=(2, 4))

    @precondition(lambda self: bool(self._drafted()))
    @rule(data=st.data())
    def cancel_drafted(self, data: st.DataObject) -> None:
        """A client leaves while drafts of its request are prepared or on the device."""
        handle = data.draw(st.sampled_from(self._drafted()), label="request")
        self._do(partial(Bench.cancel, request_id=self._bench().asks[handle].request_id))

    @rule(turns=st.integers(3, 12))
    def refuse_drafts(self, turns: int) -> None:
        """The machine room works until there are drafts to build, which the host cannot."""
        for _ in range(turns):
            building = self._bench().building
            if building is not None and building.drafts is not None:
                self._do(Bench.refused)
                return
            if not self._turn(late=False):
                return

    def _drafted(self) -> list[int]:
        """Return the live requests with drafts in an outstanding batch."""
        if self.bench is None:
            return []
        seen = self.bench.seen
        rows = [row for batch in seen.outstanding() for row in batch.rows if row.drafts]
        return [row.handle for row in rows if seen.requests[row.handle].live]
