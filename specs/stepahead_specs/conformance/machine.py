"""A Hypothesis machine over any adapter: long random runs in which the test chooses what comes.

`machine` makes the class for one factory; run it with `hypothesis.stateful` or through the pytest
plugin. Limits are tight more often than not; a cancel is rare; at the end everything drains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stepahead_specs.conformance.adapter import Factory
from stepahead_specs.conformance.bounds import Bounds, Failure, Tally
from stepahead_specs.conformance.host import Host
from stepahead_specs.oracle import Ask
from stepahead_specs.records import Limits

EOS: Final = 5
_MODEL_LEN: Final = 24
_TOKENS_MAX: Final = 64


@st.composite
def limits(draw: st.DrawFn, bounds: Bounds) -> Limits:
    """Draw limits; every request that `asks` draws fits into the pool alone."""
    block_size = draw(st.sampled_from(tuple(bounds.block_sizes)))
    longest = -(-(bounds.prompt_max + bounds.output_max - 1) // block_size)
    whole = st.just(_TOKENS_MAX)
    return Limits(
        num_blocks=draw(st.one_of(st.integers(1, longest), st.integers(longest, 2 * longest))),
        block_size=block_size,
        max_concurrency=draw(st.sampled_from((3, 4, 2, 1))),
        max_num_batched_tokens=draw(
            st.one_of(whole, st.integers(1, 6)) if bounds.chunks else whole
        ),
        max_tokens_per_row=_TOKENS_MAX,
        max_model_len=_MODEL_LEN,
        lookahead=draw(st.sampled_from(tuple(bounds.lookaheads))),
        eos_token_id=draw(st.sampled_from((EOS, None))),
        by_priority=draw(st.sampled_from(tuple(bounds.by_priority))),
        prefix_caching=draw(st.sampled_from(tuple(bounds.prefix_caching))),
    )


@st.composite
def asks(draw: st.DrawFn, bounds: Bounds, chosen: Limits) -> Ask:
    """Draw a request: prompts around block multiples, shared prefixes, planned ends."""
    room = chosen.num_blocks * chosen.block_size
    length = draw(st.integers(1, min(bounds.prompt_max, room)))
    # The last sampled token needs no KV.
    output_max = min(bounds.output_max, room - length + 1)
    family = draw(st.integers(0, 2))
    max_tokens = draw(st.one_of(st.integers(1, output_max), st.integers(1, min(3, output_max))))
    return Ask(
        request_id="",
        prompt=(*(10 * family + position for position in range(length - 1)), 90 + family % 2),
        max_tokens=max_tokens,
        eos_at=draw(st.one_of(st.none(), st.integers(0, output_max))),
        priority=draw(st.integers(-1, 1)) if chosen.by_priority else 0,
        min_tokens=draw(st.sampled_from((0, 0, max_tokens))) if bounds.min_tokens else 0,
        ignore_eos=draw(st.sampled_from((False, False, False, True))),
        stop_token_ids=draw(st.sampled_from(((), (), (7,), tuple(range(0, 97, 8))))),
    )


class AdapterMachine(RuleBasedStateMachine):
    """The machine; `machine` fills in the class variables."""

    factory: ClassVar[Factory]
    bounds: ClassVar[Bounds]
    tally: ClassVar[Tally]
    #: The last run that went wrong; when Hypothesis is done, the smallest one.
    failure: ClassVar[Failure | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.host: Host | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Make a scheduler with limits of its own."""
        chosen = data.draw(limits(self.bounds), label="limits")
        self.host = Host(type(self).factory, chosen)

    # -- clients ------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 3))
    def submit(self, data: st.DataObject, count: int) -> None:
        """Clients ask; now and then under the name of a request that has ended."""
        for _ in range(count):
            host = self._host()
            seen = host.judge.seen
            taken = {request.request_id for request in seen.live()}
            ended = sorted({r.request_id for r in seen.requests.values()} - taken)
            fresh = f"r{len(seen.requests)}"
            name = data.draw(st.sampled_from((fresh, fresh, *ended[-2:])), label="name")
            ask = replace(data.draw(asks(self.bounds, host.limits), label="ask"), request_id=name)
            self._do(partial(Host.submit, ask=ask))

    @precondition(lambda self: self._rarely(3))
    @rule(data=st.data(), state=st.sampled_from(("queued", "prepared", "dispatched", "filled")))
    def cancel(self, data: st.DataObject, state: str) -> None:
        """A client leaves while its request is in a chosen state, if one is."""
        requests = [number for number in self._host().live() if self._state(number) == state]
        if requests:
            chosen = data.draw(st.sampled_from(requests), label="request")
            self._do(lambda host: host.cancel(chosen))

    @precondition(lambda self: self._rarely(6))
    @rule(back=st.integers(1, 4))
    def cancel_ended(self, back: int) -> None:
        """A client leaves whose request has ended, and may still be on the device."""
        seen = self._host().judge.seen
        ended = [request.handle for request in seen.requests.values() if not request.live]
        if ended:
            self._do(lambda host: host.cancel(ended[-min(back, len(ended))]))

    # -- the machine room ---------------------------------------------------------------------

    @rule(turns=st.integers(1, 8), device_first=st.booleans())
    def run_on(self, turns: int, device_first: bool) -> None:  # noqa: FBT001 # drawn by Hypothesis
        """Host and device work by themselves for a while, one of them always first."""
        for _ in range(turns):
            host = self._host()
            moves: list[Callable[[Host], object]] = []
            if host.may_prepare():
                moves.append(Host.prepare)
            if host.on_device() is not None:
                moves.append(Host.complete)
            if not moves:
                return
            self._do(moves[-1 if device_first else 0])

    # -- the end ------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everything drains; nothing is kept and everybody has had a last word."""
        if self.host is None:
            return
        host = self.host
        self._do(Host.drain)
        for words in sorted(host.judge.goals):
            event(words)
        self.tally.add(host.judge)

    # -- inside -------------------------------------------------------------------------------

    def _host(self) -> Host:
        if self.host is None:
            raise AssertionError("the machine has not started")
        return self.host

    def _state(self, number: int) -> str:
        account = self._host().judge.seen.account
        rows = self._host().judge.seen.rows_of(number)
        if account is None:
            return rows[0][0].state if rows else "queued"
        return account.requests[number].state

    def _rarely(self, one_in: int) -> bool:
        return self.host is not None and self.host.judge.seen.step % one_in == 0

    def _do(self, move: Callable[[Host], object]) -> None:
        host = self._host()
        try:
            move(host)
        except Exception as error:
            failure = Failure(host.opened, tuple(host.facts), error)
            type(self).failure = failure
            note(failure.story())
            self.host = None
            raise


def machine(factory: Factory, bounds: Bounds) -> type[AdapterMachine]:
    """Return the machine of one scheduler, with a tally of its own."""
    name = f"MachineOf{getattr(factory, '__name__', 'Scheduler')}"
    variables = {
        "factory": staticmethod(factory),
        "bounds": bounds,
        "tally": Tally(),
        "failure": None,
    }
    return type(name, (AdapterMachine,), variables)
