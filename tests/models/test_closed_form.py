"""Tokens in closed form: what they depend on, and that nothing else does."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import Kernel, KernelConfig
from stepahead_models.closed_form import ClosedForm
from stepahead_models.examples import VOCABULARY, mixed_workload, roofline_device
from stepahead_models.record import Outcome, RunRecord
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash

EOS = 7
#: What depends on token values, and on how long stretches are: checked prompts go step by step.
NOT_SHARED = {"tokens", "checksums", "tokens_digest", "events"}


def _run(seed: int, *, lookahead: int, checked: bool, prune: bool = False) -> RunRecord:
    config = KernelConfig(
        num_blocks=60,
        block_size=4,
        max_concurrency=6,
        max_num_batched_tokens=32,
        max_model_len=240,
        lookahead=lookahead,
        prune=prune,
        eos_token_id=EOS,
    )
    model = (HistoryHash if checked else ClosedForm)(vocab_size=VOCABULARY, eos_token_id=EOS)
    return Simulation(
        Kernel(config), mixed_workload(seed, 4), roofline_device(), model, keep_tokens=True
    ).run()


@given(st.integers(0, 10**6), st.integers(0, 2), st.booleans())
@settings(max_examples=15)
def test_times_and_decisions_are_those_of_a_checked_run(
    seed: int,
    lookahead: int,
    prune: bool,  # noqa: FBT001 # drawn
) -> None:
    """Token values decide nothing but ends, and ends come where the trace has them."""
    one = _run(seed, lookahead=lookahead, checked=True, prune=prune)
    other = _run(seed, lookahead=lookahead, checked=False, prune=prune)
    for field in fields(RunRecord):
        if field.name not in NOT_SHARED:
            np.testing.assert_equal(
                getattr(one, field.name), getattr(other, field.name), err_msg=field.name
            )


@given(st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=15)
def test_tokens_are_those_of_the_reference_whatever_the_lookahead(
    seed: int, lookahead: int
) -> None:
    """Preemption, chunks and stretches leave the output of a request as its place makes it."""
    load = mixed_workload(seed, 4)
    model = ClosedForm(vocab_size=VOCABULARY, eos_token_id=EOS)
    record = _run(seed, lookahead=lookahead, checked=False)
    for request, tokens in record.tokens.items():
        expected = model.reference(
            request,
            int(load.prompts.lengths[request]),
            len(tokens),
            eos_at=int(load.eos_at[request]),
        )
        assert tokens.tolist() == expected.tolist()
    assert (record.outcomes != Outcome.ERRORED).all()


@given(st.integers(0, 2**40), st.integers(1, 9))
def test_places_in_a_row_have_the_tokens_of_each_place(first: int, steps: int) -> None:
    """Steps at once are the steps one by one."""
    model = ClosedForm(vocab_size=VOCABULARY, eos_token_id=EOS)
    words, firsts = model.words(np.arange(3)), np.array([first, first + 5, 2 * first])
    expected = [model.sample(words, firsts + step).tolist() for step in range(steps)]
    assert model.sample_steps(words, firsts, steps).tolist() == expected


def test_seed_request_and_place_decide_the_token_and_eos_is_never_drawn() -> None:
    """Over many draws each of the three makes a difference, and every other token comes up."""
    places = np.arange(2000)
    requests = np.array([[0], [1]])
    drawn = ClosedForm(vocab_size=11, eos_token_id=EOS)
    tokens = drawn.sample(drawn.words(requests), places)
    assert set(tokens.ravel().tolist()) == set(range(11)) - {EOS}
    assert (tokens[0] != tokens[1]).any()
    again = ClosedForm(seed=1, vocab_size=11, eos_token_id=EOS)
    assert (again.sample(again.words(requests), places) != tokens).any()
    without = ClosedForm(vocab_size=11)
    assert set(without.sample(without.words(requests), places).ravel().tolist()) == set(range(11))
