"""The kernel with lookahead 0 against the straightforward eager scheduler, step for step."""

import inspect
from dataclasses import replace

from hypothesis import event, given, note
from hypothesis import strategies as st

import stepahead_specs.reference
from stepahead.commands import EmitTokens, FinishRequest, PrepareBatch
from stepahead.config import BatchPreference, KernelConfig, WaitingOrder
from stepahead_specs.bench import Bench
from stepahead_specs.machines import Shape, asks, configurations
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.reference import Job, Reference, Share
from stepahead_specs.story import tell


def reference(config: KernelConfig) -> Reference:
    """Return the reference with the limits of the kernel."""
    return Reference(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_concurrency=config.max_concurrency,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_tokens_per_row=config.max_tokens_per_row,
        prefill_first=config.preference is BatchPreference.PREFILL_FIRST,
    )


def job(config: KernelConfig, handle: int, ask: Ask) -> Job:
    """Return what the reference must know of a request."""
    stops = set(ask.stop_token_ids)
    if config.eos_token_id is not None and not ask.ignore_eos:
        stops.add(config.eos_token_id)
    return Job(
        handle=handle,
        prompt=len(ask.prompt),
        final=min(len(ask.prompt) + ask.max_tokens, config.max_model_len),
        floor=ask.min_tokens,
        stops=frozenset(stops),
        rank=(ask.priority if config.order is WaitingOrder.PRIORITY else 0, handle),
    )


class Pair:
    """A kernel on its bench and the reference, moved together."""

    def __init__(self, config: KernelConfig) -> None:
        self.bench = Bench(config, HashModel(eos=config.eos_token_id), checked=False)
        self.reference = reference(config)

    def arrive(self, ask: Ask) -> None:
        """Let a request come to both."""
        handle = self.bench.arrive(ask)
        if handle is not None:
            self.reference.arrive(job(self.bench.config, handle, ask))

    def cancel(self, handle: int) -> None:
        """Let a client leave both."""
        self.bench.cancel(self.bench.asks[handle].request_id, handle)
        self.reference.cancel(handle)

    def select(self) -> bool:
        """Let both choose a batch and compare the rows and the block counts."""
        self.bench.host_ready()
        command = next((c for c in self._last() if isinstance(c, PrepareBatch)), None)
        shares = self.reference.select()
        assert shares == (_shares(command) if command is not None else [])
        held = {r.handle: len(r.blocks) for r in self.bench.kernel.requests()}
        jobs = self.reference.jobs.values()
        assert held == {j.handle: self.reference.blocks(j.scheduled) for j in jobs}
        assert self.bench.kernel.pool.available == self.reference.free()
        assert self.bench.kernel.counters.preemptions == self.reference.preemptions
        return bool(shares)

    def execute(self) -> None:
        """Let the batch come back to both and compare what goes out and who ends."""
        self.bench.executed()
        commands = self._last()
        emitted = {
            handle: int(command.tokens[-1, column])
            for command in commands
            if isinstance(command, EmitTokens)
            for column, handle in enumerate(command.handles.tolist())
        }
        live = {s.handle for s in self.reference.batch if s.samples} & set(self.reference.jobs)
        assert set(emitted) == live
        ended = self.reference.executed(emitted)
        finished = [(c.handle, c.reason.value) for c in commands if isinstance(c, FinishRequest)]
        assert finished == ended

    def _last(self) -> tuple[object, ...]:
        return self.bench.journal[-1][1]


def _shares(command: PrepareBatch) -> list[Share]:
    return [
        Share(int(handle), int(position), int(count), bool(samples))
        for handle, position, count, samples in zip(
            command.handles, command.positions, command.token_counts, command.samples, strict=True
        )
    ]


@st.composite
def eager_configurations(draw: st.DrawFn) -> KernelConfig:
    """Draw limits without lookahead, speculation and prefix caching."""
    config = draw(configurations(Shape(lookahead_max=0)))
    return replace(config, prefix_caching=False, prune=False, num_speculative_tokens=0)


@given(config=eager_configurations(), data=st.data())
def test_lookahead_zero_equals_the_reference_step_for_step(
    config: KernelConfig, data: st.DataObject
) -> None:
    """Row sets, block counts, preemptions, tokens and ends are the same at every step."""
    pair = Pair(config)
    try:
        for _ in range(data.draw(st.integers(5, 40), label="turns")):
            _clients(pair, data)
            if not pair.select():
                continue
            _maybe_cancel(pair, data)
            pair.bench.prepared()
            _maybe_cancel(pair, data)
            pair.execute()
        while pair.bench.ready_due and pair.select():
            pair.bench.prepared()
            pair.execute()
        assert not pair.reference.jobs
    except BaseException:
        note(f"{config}\n{tell(pair.bench.journal)}")
        raise
    if pair.reference.preemptions:
        event("preempted")


def _clients(pair: Pair, data: st.DataObject) -> None:
    for _ in range(data.draw(st.sampled_from((0, 0, 1, 2)), label="arrivals")):
        ask = data.draw(asks(Shape()), label="ask")
        pair.arrive(replace(ask, request_id=f"r{len(pair.bench.journal)}"))


def _maybe_cancel(pair: Pair, data: st.DataObject) -> None:
    live = sorted(pair.reference.jobs)
    if live and data.draw(st.integers(0, 9), label="cancel") == 0:
        pair.cancel(data.draw(st.sampled_from(live), label="handle"))


def test_the_reference_is_straightforward_enough_to_be_believed() -> None:
    """The oracle stays shorter than 150 lines and imports nothing of the project."""
    source = inspect.getsource(stepahead_specs.reference)
    assert len(source.splitlines()) < 150
    assert "import stepahead" not in source
    assert "from stepahead" not in source
