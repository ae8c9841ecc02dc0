"""Speculation changes when tokens come, never which: the same output for every width and luck."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given, note
from hypothesis import strategies as st

from stepahead.config import KernelConfig
from stepahead_specs.bench import Bench
from stepahead_specs.machines import Shape, asks, configurations
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.story import tell

Outputs = dict[str, tuple[tuple[int, ...], str | None]]


def outputs(config: KernelConfig, clients: list[Ask], luck: int) -> tuple[Outputs, Bench]:
    """Let all come at once and drain; return what each was sent, and why it ended."""
    bench = Bench(config, HashModel(eos=config.eos_token_id))
    bench.luck = luck
    for number, ask in enumerate(clients):
        bench.arrive(replace(ask, request_id=f"r{number}"))
    bench.drain()
    return {
        request.request_id: (tuple(token.value for token in request.emitted), request.finish)
        for request in bench.seen.requests.values()
    }, bench


@given(
    config=configurations(Shape(lookahead_max=0)),
    clients=st.lists(asks(Shape(output_max=12)), min_size=1, max_size=5),
    widths=st.permutations((1, 2, 3, 4)),
    luck=st.integers(0, 9),
)
def test_every_width_gives_the_same_tokens(
    config: KernelConfig, clients: list[Ask], widths: list[int], luck: int
) -> None:
    """Whatever is guessed, and however well, each client gets what it gets without guessing."""
    expected, plain = outputs(replace(config, num_speculative_tokens=0), clients, luck)
    for width in widths[:2]:
        found, bench = outputs(replace(config, num_speculative_tokens=width), clients, luck)
        if found != expected:
            note(f"{bench.config}\n{tell(bench.journal)}")
        assert found == expected
        counters = bench.kernel.counters
        assert 0 <= counters.accepted_tokens <= counters.drafted_tokens
        if counters.accepted_tokens and len(bench.journal) < len(plain.journal):
            event("fewer steps for the same tokens")


def test_a_drafter_that_is_always_right_needs_a_step_for_all_its_tokens() -> None:
    """Ten tokens: one with the prompt, then four to a step; a drafter that is never right: ten."""
    ask = Ask(request_id="", prompt=(1, 2, 3), max_tokens=10)
    config = KernelConfig(num_blocks=9, block_size=2, num_speculative_tokens=3)
    steps = [
        sum(type(happened).__name__ == "BatchExecuted" for happened, _ in bench.journal)
        for bench in (outputs(config, [ask], luck)[1] for luck in (0, 1))
    ]
    assert steps == [10, 4]
