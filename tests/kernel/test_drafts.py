"""Speculation: who gets drafts, what they may take, and what is left of those that were wrong."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead import BatchPreference, ConfigError, HostContractError, Kernel, KernelConfig
from stepahead.arrays import Ints
from stepahead.commands import (
    AbandonBatch,
    Command,
    DispatchBatch,
    EmitTokens,
    FinishReason,
    FinishRequest,
    PrepareBatch,
)
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    FailureScope,
    HostReady,
    RequestArrived,
    RequestCancelled,
)


def make(**options: object) -> Kernel:
    """Return a small kernel that guesses two tokens."""
    limits: dict[str, object] = {
        "num_blocks": 16,
        "block_size": 2,
        "max_model_len": 24,
        "num_speculative_tokens": 2,
        "eos_token_id": 0,
    }
    return Kernel(KernelConfig(**(limits | options)))  # type: ignore[arg-type]


def arrive(kernel: Kernel, *prompts: int, max_tokens: int = 10, **fields: object) -> None:
    """Let requests a, b, ... come with prompts of these lengths."""
    for prompt in prompts:
        name = chr(ord("a") + kernel.counters.admitted)
        event = RequestArrived(
            request_id=name,
            prompt_length=prompt,
            max_tokens=max_tokens,
            at=0,
            arrived_at=0,
            **fields,  # type: ignore[arg-type]
        )
        kernel.step(event)


def select(kernel: Kernel) -> PrepareBatch:
    """Let the host be ready; return the batch that it shall build."""
    (command,) = kernel.step(HostReady(at=0))
    assert isinstance(command, PrepareBatch)
    return command


def dispatch(kernel: Kernel) -> PrepareBatch:
    """Select, build and dispatch a batch."""
    batch = select(kernel)
    kernel.step(BatchPrepared(batch_id=batch.batch_id, at=0))
    return batch


def result(batch_id: int, *columns: tuple[int, ...], most: int = 2) -> BatchExecuted:
    """Return what came back: the tokens of each row, the last of them not drafted."""
    tokens = np.full((1 + most, len(columns)), -1, dtype=np.int64)
    for row, column in enumerate(columns):
        tokens[: len(column), row] = column
    accepted = np.array([len(column) - 1 for column in columns], dtype=np.int64)
    return BatchExecuted(batch_id=batch_id, tokens=tokens, accepted=accepted, at=0)


def plain(batch_id: int, *tokens: int) -> BatchExecuted:
    """Return what came back for rows without drafts."""
    values = np.array([tokens], dtype=np.int64).reshape(1, -1)
    return BatchExecuted(batch_id=batch_id, tokens=values, at=0)


def decoding(kernel: Kernel, *prompts: int, max_tokens: int = 10, **fields: object) -> Kernel:
    """Bring requests behind their prompts, each with one sampled token."""
    arrive(kernel, *prompts, max_tokens=max_tokens, **fields)
    batch = dispatch(kernel)
    kernel.step(plain(batch.batch_id, *range(11, 11 + len(prompts))))
    return kernel


def drafts(batch: PrepareBatch) -> list[int] | None:
    """Return the drafts of each row."""
    return None if batch.drafts is None else batch.drafts.tolist()


def sent(commands: tuple[Command, ...]) -> list[list[int]]:
    """Return the tokens that each request is sent, in the order of the rows."""
    (emit,) = (command for command in commands if isinstance(command, EmitTokens))
    assert emit.counts is not None
    return [emit.tokens[:count, row].tolist() for row, count in enumerate(emit.counts.tolist())]


# -- limits ---------------------------------------------------------------------------------------


def test_speculation_needs_a_loop_without_lookahead() -> None:
    """What is accepted is known when the batch is back, so nothing can be selected behind it."""
    with pytest.raises(ConfigError) as caught:
        make(lookahead=1)
    assert str(caught.value) == (
        "num_speculative_tokens=2 is not usable; give 0 with lookahead above 0, or lookahead=0 to "
        "speculate"
    )


# -- selection ------------------------------------------------------------------------------------


def test_a_prompt_has_no_drafts_and_a_decode_row_has_as_many_as_may_be() -> None:
    """Behind a prompt there is no sampled token to go by."""
    kernel = make()
    arrive(kernel, 3)
    batch = dispatch(kernel)
    assert batch.drafts is None
    kernel.step(plain(1, 11))
    batch = select(kernel)
    assert (drafts(batch), batch.positions.tolist(), batch.token_counts.tolist()) == ([2], [3], [3])


def test_the_last_token_of_a_prompt_computed_alone_has_no_drafts() -> None:
    """It lacks one token as a decode row does, but that is not a sampled one."""
    kernel = make(max_num_batched_tokens=3)
    arrive(kernel, 4)
    kernel.step(BatchPrepared(batch_id=select(kernel).batch_id, at=0))
    kernel.step(plain(1))
    batch = select(kernel)
    assert (batch.positions.tolist(), batch.token_counts.tolist()) == ([3], [1])
    assert batch.drafts is None


@pytest.mark.parametrize(("max_tokens", "expected"), [(2, None), (3, [1]), (4, [2]), (5, [2])])
def test_no_draft_stands_for_the_last_token(max_tokens: int, expected: list[int] | None) -> None:
    """One token is known; the last one needs no position, so it is never a draft."""
    kernel = decoding(make(), 3, max_tokens=max_tokens)
    assert drafts(select(kernel)) == expected


def test_a_row_keeps_to_its_tokens() -> None:
    """A row of two tokens has one draft, a row of one none."""
    assert drafts(select(decoding(make(max_tokens_per_row=2), 2))) == [1]
    kernel = make(max_tokens_per_row=1)
    arrive(kernel, 1)
    dispatch(kernel)
    kernel.step(plain(1, 11))
    assert drafts(select(kernel)) is None


def test_no_decode_row_goes_without_its_token_for_drafts() -> None:
    """Four tokens for three rows: each has its own, the eldest one draft."""
    kernel = decoding(make(max_num_batched_tokens=4), 1, 1, 1)
    batch = select(kernel)
    assert (batch.token_counts.tolist(), drafts(batch)) == ([2, 1, 1], [1, 0, 0])


@pytest.mark.parametrize(
    ("preference", "counts", "guessed"),
    [
        (BatchPreference.DECODE_FIRST, [3, 4], [2, 0]),
        (BatchPreference.PREFILL_FIRST, [2, 5], [1, 0]),
    ],
)
def test_drafts_stand_where_decode_rows_stand(
    preference: BatchPreference, counts: list[int], guessed: list[int]
) -> None:
    """Seven tokens: decode-first they come before the running prompt, else behind it."""
    kernel = make(max_num_batched_tokens=7, preference=preference)
    decoding(kernel, 3)
    arrive(kernel, 12)
    first = dispatch(kernel)
    kernel.step(plain(2) if first.drafts is None else result(2, (12,)))
    batch = select(kernel)
    assert batch.positions.tolist()[1] > 0, "the prompt runs already"
    assert (batch.token_counts.tolist(), drafts(batch)) == (counts, guessed)


def test_the_youngest_prompt_leaves_the_tokens_that_drafts_take() -> None:
    """Nine tokens: one and two drafts, and of the running prompts the elder has what it wants."""
    kernel = make(max_num_batched_tokens=9, max_tokens_per_row=4)
    decoding(kernel, 1)
    arrive(kernel, 8, 8)
    first = dispatch(kernel)
    assert (first.token_counts.tolist(), drafts(first)) == ([3, 4, 2], [2, 0, 0])
    kernel.step(result(2, (12,)))
    batch = select(kernel)
    assert (batch.token_counts.tolist(), drafts(batch)) == ([3, 4, 2], [2, 0, 0])


def test_a_prompt_may_be_left_no_token_by_drafts() -> None:
    """Ten tokens are five and five: the prompt behind the decode rows has no row this time."""
    kernel = make(max_num_batched_tokens=10, max_tokens_per_row=5, num_speculative_tokens=4)
    decoding(kernel, 1)
    arrive(kernel, 4, 8)
    batch = dispatch(kernel)
    assert (batch.token_counts.tolist(), drafts(batch)) == ([5, 4, 1], [4, 0, 0])
    kernel.step(result(2, (12,), (22,), most=4))
    batch = dispatch(kernel)
    assert (batch.token_counts.tolist(), drafts(batch)) == ([5, 5], [4, 4])


@pytest.mark.parametrize(
    ("budget", "counts", "guessed"),
    [(4, [3, 1], [2, 0]), (5, [3, 2], [2, 0]), (6, [3, 2, 1], [2, 0, 0])],
)
def test_a_prompt_that_lacks_two_tokens_has_what_drafts_leave(
    budget: int, counts: list[int], guessed: list[int]
) -> None:
    """One token, just both, and one for the next in line: never more than there are."""
    kernel = make(max_num_batched_tokens=budget, max_tokens_per_row=3)
    decoding(kernel, 1)
    arrive(kernel, budget - 1)
    kernel.step(result(dispatch(kernel).batch_id, (12,)))
    arrive(kernel, 2)
    batch = select(kernel)
    assert (batch.token_counts.tolist(), drafts(batch)) == (counts, guessed)


def test_where_somebody_lacks_a_block_drafts_take_none() -> None:
    """The younger needs two blocks and one is free: the elder has its token, and no draft in it."""
    kernel = make(num_blocks=6, block_size=2, max_tokens_per_row=4)
    decoding(kernel, 2, max_tokens=8)
    arrive(kernel, 8, max_tokens=1)
    assert drafts(dispatch(kernel)) == [2, 0]
    kernel.step(result(2, (12, 13, 14)))
    assert kernel.pool.available == 1
    batch = select(kernel)
    assert (batch.handles.tolist(), batch.token_counts.tolist(), drafts(batch)) == ([1], [1], None)


def test_drafts_take_the_blocks_that_nobody_needs_in_order_of_rank() -> None:
    """One block is free: the elder's drafts have it, the younger's only what is left of its own."""
    kernel = decoding(make(num_blocks=5, block_size=2), 4, 2, max_tokens=3)
    # Rows at 4 and 2 both need a block for their token; of the five, three are in use.
    batch = select(kernel)
    assert kernel.pool.available == 0
    assert (batch.token_counts.tolist(), drafts(batch)) == ([2, 2], [1, 1])
    kernel = decoding(
        make(num_blocks=6, block_size=2, num_speculative_tokens=4), 4, 2, max_tokens=8
    )
    batch = select(kernel)
    assert kernel.pool.available == 0
    assert (batch.token_counts.tolist(), drafts(batch)) == ([4, 2], [3, 1])


def test_a_draft_keeps_no_waiting_request_out() -> None:
    """The last block is that of the arrival; without it a draft would have had it."""
    kernel = decoding(make(num_blocks=3, block_size=2), 2, max_tokens=5)
    assert drafts(select(kernel)) == [2]
    kernel.step(BatchRefused(batch_id=2, at=0))
    arrive(kernel, 1, max_tokens=1)
    batch = select(kernel)
    assert (batch.token_counts.tolist(), drafts(batch)) == ([2, 1], [1, 0])


def test_a_draft_preempts_nobody() -> None:
    """The pool is full of running requests: drafts have what is left of their blocks."""
    kernel = decoding(make(num_blocks=4, block_size=2), 2, 2, max_tokens=5)
    batch = select(kernel)
    assert kernel.pool.available == 0
    assert (drafts(batch), kernel.counters.preemptions) == ([1, 1], 0)


def test_a_selection_with_drafts_is_undone_without_a_trace() -> None:
    """Blocks of drafts go back with the others."""
    kernel = decoding(make(), 3, 2)
    before = kernel.digest()
    assert drafts(select(kernel)) == [2, 2]
    assert kernel.digest() != before
    kernel.step(BatchRefused(batch_id=2, at=0))
    # The next batch has another number; nothing else tells.
    again = select(kernel)
    assert (again.batch_id, drafts(again)) == (3, [2, 2])
    assert kernel.audit().problems == ()


def test_no_stretch_goes_over_a_kernel_that_guesses() -> None:
    """The same rows may have other drafts in the next batch, also where they have none now."""
    kernel = decoding(make(max_num_batched_tokens=3), 1, 1, 1)
    assert dispatch(kernel).drafts is None
    assert kernel.repeat() is None
    with pytest.raises(HostContractError, match="came back after 2 steps, 1 keep its rows"):
        kernel.step(BatchExecuted(batch_id=2, tokens=np.full((2, 3), 9, dtype=np.int64), at=0))


# -- results --------------------------------------------------------------------------------------


def test_accepted_drafts_go_out_with_the_token_behind_them() -> None:
    """Each request gets its own number of tokens, at its own place."""
    kernel = decoding(make(), 3, 2)
    dispatch(kernel)
    commands = kernel.step(result(2, (12, 13, 14), (22,)))
    assert sent(commands) == [[12, 13, 14], [22]]
    (emit,) = (command for command in commands if isinstance(command, EmitTokens))
    assert emit.offsets.tolist() == [1, 1]
    known = [(r.known, r.scheduled, r.settled, r.sampled) for r in kernel.requests()]
    assert known == [(7, 6, 6, (11, 12, 13, 14)), (4, 3, 3, (12, 22))]
    assert [len(request.blocks) for request in kernel.requests()] == [3, 2]
    assert (kernel.counters.drafted_tokens, kernel.counters.accepted_tokens) == (4, 2)


def test_the_newest_token_is_what_the_next_row_reads() -> None:
    """It is the one behind the accepted drafts, at the position behind them."""
    kernel = decoding(make(), 3)
    dispatch(kernel)
    kernel.step(result(2, (12, 13)))
    batch = select(kernel)
    assert batch.positions.tolist() == [5]
    (command,) = kernel.step(BatchPrepared(batch_id=3, at=0))
    assert isinstance(command, DispatchBatch)
    assert (command.fill_rows.tolist(), command.fill_tokens.tolist()) == ([0], [13])


@pytest.mark.parametrize(("right", "blocks"), [(0, 2), (1, 3), (2, 3)])
def test_a_request_keeps_the_blocks_of_what_was_right(right: int, blocks: int) -> None:
    """The row was at position 3 with drafts at 4 and 5, blocks of two; a block is kept if begun."""
    kernel = decoding(make(), 3)
    assert dispatch(kernel).positions.tolist() == [3]
    kernel.step(result(2, (12, 13, 14)[: right + 1]))
    (request,) = kernel.requests()
    assert (len(request.blocks), kernel.audit().held) == (blocks, blocks)


def test_the_blocks_of_rejected_drafts_are_the_next_to_be_taken() -> None:
    """However often a guess is wrong, no more of the cache is lost than once."""
    kernel = make(num_blocks=7, block_size=2)
    keys = np.arange(4, dtype=np.int64)
    arrive(kernel, 8, max_tokens=1, block_keys=keys)
    dispatch(kernel)
    kernel.step(plain(1, 9))
    assert kernel.audit().cached == 4
    decoding(kernel, 4, max_tokens=8)
    cached: list[int] = []
    for token in range(31, 35):
        batch = dispatch(kernel)
        kernel.step(result(batch.batch_id, (token,)))
        cached.append(kernel.audit().cached)
    # One is lost with the token at 4 and its drafts, one with that at 6: none with the others.
    assert cached == [3, 3, 2, 2]
    assert kernel.audit().problems == ()


def test_a_request_ends_within_its_accepted_drafts() -> None:
    """What was accepted behind an EOS is not sent, not counted, and keeps nothing."""
    kernel = decoding(make(), 3)
    dispatch(kernel)
    commands = kernel.step(result(2, (12, 0, 14)))
    assert sent(commands) == [[12, 0]]
    (finish,) = (command for command in commands if isinstance(command, FinishRequest))
    assert (finish.reason, finish.output_tokens) == (FinishReason.STOP, 3)
    assert kernel.idle()
    assert kernel.audit().free == 16


def test_a_token_below_the_floor_ends_nothing_among_drafts() -> None:
    """With min_tokens of three an EOS as second output does not end the request, one later does."""
    kernel = decoding(make(), 3, min_tokens=3, stop_token_ids=(7,))
    dispatch(kernel)
    commands = kernel.step(result(2, (0, 7, 14)))
    assert sent(commands) == [[0, 7]]
    (finish,) = (command for command in commands if isinstance(command, FinishRequest))
    assert (finish.reason, finish.output_tokens) == (FinishReason.STOP, 3)


def test_a_stop_token_of_one_request_ends_no_other_one() -> None:
    """Stop tokens are looked for in the column of their request."""
    kernel = make()
    arrive(kernel, 3, stop_token_ids=(7,))
    arrive(kernel, 3)
    dispatch(kernel)
    kernel.step(plain(1, 11, 11))
    dispatch(kernel)
    commands = kernel.step(result(2, (7, 8, 9), (7, 8, 9)))
    assert sent(commands) == [[7], [7, 8, 9]]


def test_the_last_token_comes_behind_accepted_drafts() -> None:
    """A request that may have four tokens ends with the third behind the first one."""
    kernel = decoding(make(), 3, max_tokens=4)
    dispatch(kernel)
    commands = kernel.step(result(2, (12, 13, 14)))
    assert sent(commands) == [[12, 13, 14]]
    (finish,) = (command for command in commands if isinstance(command, FinishRequest))
    assert (finish.reason, finish.output_tokens) == (FinishReason.LENGTH, 4)


def test_a_cancelled_row_says_nothing_and_its_blocks_wait() -> None:
    """What the device returns for it is ignored, be it nonsense; the others get theirs."""
    kernel = decoding(make(), 3, 2)
    dispatch(kernel)
    kernel.step(RequestCancelled(request_id="a", at=0))
    assert kernel.audit().pending == 3
    event = result(2, (), (22, 23, 24))
    commands = kernel.step(event)
    assert sent(commands) == [[22, 23, 24]]
    assert kernel.audit().pending == 0
    assert (kernel.counters.drafted_tokens, kernel.counters.accepted_tokens) == (2, 2)


def test_rows_that_are_left_out_take_their_drafts_with_them() -> None:
    """The device runs what is left: with its own drafts, or with none."""
    kernel = decoding(make(prune=True), 3, 2, max_tokens=4)
    assert drafts(select(kernel)) == [2, 2]
    kernel.step(RequestCancelled(request_id="a", at=0))
    kernel.step(BatchPrepared(batch_id=2, at=0))
    assert sent(kernel.step(result(2, (22,)))) == [[22]]
    arrive(kernel, 1, max_tokens=1)
    kernel.step(RequestCancelled(request_id="b", at=0))
    assert kernel.audit().problems == ()

    kernel = decoding(make(prune=True), 3)
    arrive(kernel, 1, max_tokens=1)
    assert drafts(select(kernel)) == [2, 0]
    kernel.step(RequestCancelled(request_id="a", at=0))
    kernel.step(BatchPrepared(batch_id=2, at=0))
    kernel.step(plain(2, 31))
    assert kernel.idle()


def test_a_batch_of_left_out_rows_with_drafts_is_abandoned() -> None:
    """Nobody is left to guess for."""
    kernel = decoding(make(prune=True), 3)
    select(kernel)
    kernel.step(RequestCancelled(request_id="a", at=0))
    assert kernel.step(BatchPrepared(batch_id=2, at=0)) == (AbandonBatch(batch_id=2),)
    assert kernel.audit().free == 16


def test_a_failed_batch_with_drafts_gives_everything_back() -> None:
    """Its requests end; their blocks, those for drafts too, are free."""
    kernel = decoding(make(), 3, 2)
    dispatch(kernel)
    kernel.step(BatchFailed(batch_id=2, scope=FailureScope.BATCH, at=0))
    assert kernel.idle()
    assert kernel.audit().free == 16


def test_a_preempted_request_comes_back_with_what_was_accepted() -> None:
    """Its history is the accepted tokens; what was rejected is in no batch any more."""
    kernel = decoding(make(num_blocks=4, block_size=2), 2, 2, max_tokens=6)
    dispatch(kernel)
    kernel.step(result(2, (12, 13), (22,), most=1))
    batch = select(kernel)
    assert kernel.counters.preemptions == 1
    assert batch.handles.tolist() == [1]
    waiting = next(request for request in kernel.requests() if request.handle == 2)
    assert (waiting.seat, waiting.sampled) == (None, (12, 22))


def test_a_copy_of_the_state_has_its_drafts() -> None:
    """A snapshot taken while drafts are on the device goes on as the kernel does."""
    kernel = decoding(make(), 3, 2)
    dispatch(kernel)
    saved = kernel.snapshot()
    view = [(row.drafts, row.end) for batch in kernel.batches() for row in batch.rows]
    assert view[-2:] == [(2, 6), (2, 5)]
    kernel.step(result(2, (12,), (22, 23)))
    after = kernel.digest()
    other = make()
    other.restore(saved)
    other.step(result(2, (12,), (22, 23)))
    assert other.digest() == after


# -- the contract ---------------------------------------------------------------------------------


def numbers(*values: int) -> Ints:
    """Return integers."""
    return np.array(values, dtype=np.int64)


GOOD = np.array([[12, 22], [13, -1], [14, -1]], dtype=np.int64)
BROKEN = {
    "missing": (
        GOOD,
        None,
        (
            "batch 2 has drafts and came back without accepted; say how many of each sampling "
            "row's were right"
        ),
    ),
    "short": (
        GOOD,
        numbers(2),
        (
            "batch 2 came back with accepted of type int64 and shape (1,); give int64 of "
            "shape (2,), one number per sampling row"
        ),
    ),
    "type": (
        GOOD,
        np.array([2.0, 0.0]),
        (
            "batch 2 came back with accepted of type float64 and shape (2,); give int64 of "
            "shape (2,), one number per sampling row"
        ),
    ),
    "many": (
        GOOD,
        numbers(2, 2),
        "batch 2 came back with 2 accepted drafts in sampling row 1, which has 1; report 0 to 1",
    ),
    "negative": (
        GOOD,
        numbers(-1, 0),
        "batch 2 came back with -1 accepted drafts in sampling row 0, which has 2; report 0 to 2",
    ),
    "shape": (
        GOOD[:2],
        numbers(1, 0),
        (
            "batch 2 returned tokens of shape (2, 2); expected (3, 2), one more than the most "
            "drafts of a row, and one column per sampling row"
        ),
    ),
    "placeholder": (
        GOOD,
        numbers(2, 1),
        (
            "batch 2 returned a negative token in a live row; a placeholder must never reach the "
            "kernel"
        ),
    ),
    "kind": (
        GOOD.astype(np.float64),
        numbers(2, 0),
        "batch 2 returned tokens of type float64; give int64",
    ),
    "truth values": (
        GOOD > 0,
        numbers(2, 0),
        "batch 2 returned tokens of type bool; give int64",
    ),
}


@pytest.mark.parametrize(("tokens", "accepted", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_report_that_fits_no_drafts_changes_nothing(
    tokens: Ints, accepted: Ints | None, text: str
) -> None:
    """The sentence says what was reported and what stands; the right report is still taken."""
    kernel = make()
    arrive(kernel, 3)
    arrive(kernel, 3, max_tokens=3)
    dispatch(kernel)
    kernel.step(plain(1, 11, 21))
    assert drafts(dispatch(kernel)) == [2, 1]
    before = kernel.digest()
    with pytest.raises(HostContractError) as caught:
        kernel.step(BatchExecuted(batch_id=2, tokens=tokens, accepted=accepted, at=0))
    assert str(caught.value) == text
    assert kernel.digest() == before
    right = BatchExecuted(batch_id=2, tokens=GOOD, accepted=numbers(2, 0), at=0)
    assert sent(kernel.step(right)) == [[12, 13, 14], [22]]


def test_a_batch_without_drafts_may_say_that_none_was_accepted() -> None:
    """Zero of none is right, one is not."""
    kernel = make()
    arrive(kernel, 3)
    dispatch(kernel)
    event = BatchExecuted(batch_id=1, tokens=GOOD[:1, :1], accepted=numbers(1), at=0)
    with pytest.raises(HostContractError) as caught:
        kernel.step(event)
    assert str(caught.value) == (
        "batch 1 came back with 1 accepted drafts in sampling row 0, which has 0; report 0 to 0"
    )
    (emit,) = kernel.step(result(1, (12,), most=0))
    assert isinstance(emit, EmitTokens)
    assert (emit.tokens.tolist(), emit.counts) == ([[12]], None)
