"""The executor on scripted batches: what it computes, and what the sanitizer reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from stepahead import Kernel, KernelConfig
from stepahead.blocks import BlockPool
from stepahead.commands import DispatchBatch, PrepareBatch
from stepahead_models.errors import SanitizerError
from stepahead_models.examples import VOCABULARY, mixed_workload, plain_workload, roofline_device
from stepahead_models.executor import Executor
from stepahead_models.simulation import Simulation
from stepahead_models.speculation import Acceptance, Drafter, Samples
from stepahead_models.tokens import HistoryHash, Ints, reference_tokens

WAY_OUT = "the scheduler reused or mixed up what a row still needs"
PROMPTS = [4, 4, 6]
WORKLOAD = plain_workload(PROMPTS)
MODEL = HistoryHash(vocab_size=VOCABULARY, eos_token_id=7)


class Script:
    """Batches of one or more rows by hand: blocks of 2 positions, handles 1 to 3 for r0 to r2.

    Drafts are all right or all wrong.
    """

    def __init__(self, *, sanitize: bool = True, right: bool = True) -> None:
        config = KernelConfig(num_blocks=16, block_size=2, max_concurrency=4, max_model_len=32)
        acceptance = Acceptance(seed=0, probability_ppm=1_000_000 if right else 0)
        drafter = Drafter(MODEL, WORKLOAD.prompts, WORKLOAD.eos_at, acceptance)
        self.executor = Executor(
            config, MODEL, WORKLOAD.prompts, WORKLOAD.eos_at, drafter=drafter, sanitize=sanitize
        )
        for request in range(len(PROMPTS)):
            self.executor.admit(request + 1, request)

    def prepare(  # noqa: PLR0913 - the parts of a batch, by keyword
        self,
        batch_id: int,
        rows: Sequence[tuple[int, int, int, int]],
        blocks: Sequence[tuple[int, int, int]] = (),
        *,
        epoch: int = 0,
        history: Sequence[tuple[int, int, int]] = (),
        drafts: Sequence[int] | None = None,
    ) -> None:
        """Prepare rows (seat, handle, position, count) with blocks (row, slot, block)."""
        seats, handles, positions, counts = np.array(rows).T
        given = np.array(blocks, dtype=np.int64).reshape(-1, 3).T
        known = np.array(history, dtype=np.int64).reshape(-1, 3).T
        self.executor.prepare(
            PrepareBatch(
                batch_id=batch_id,
                seats=seats,
                handles=handles,
                epochs=np.full(len(rows), epoch),
                positions=positions,
                token_counts=counts,
                samples=np.ones(len(rows), dtype=bool),
                block_rows=given[0],
                block_slots=given[1],
                blocks=given[2],
                history_rows=known[0],
                history_positions=known[1],
                history_tokens=known[2],
                drafts=None if drafts is None else np.array(drafts),
            )
        )

    def run(self, batch_id: int, rows: int = 1, fills: Sequence[int] = ()) -> list[int]:
        """Dispatch with a fill for each of the first rows, and execute; return the first tokens."""
        tokens: list[int] = self.samples(batch_id, rows, fills).tokens[0].tolist()
        return tokens

    def samples(self, batch_id: int, rows: int = 1, fills: Sequence[int] = ()) -> Samples:
        """Dispatch as `run` does; return everything."""
        self.executor.dispatch(
            DispatchBatch(
                batch_id=batch_id,
                fill_rows=np.arange(len(fills)),
                fill_tokens=np.array(fills, dtype=np.int64),
                live=np.ones(rows, dtype=bool),
            )
        )
        return self.executor.execute(batch_id)


def _oracle(request: int, count: int) -> list[int]:
    tokens: list[int] = reference_tokens(MODEL, WORKLOAD.prompts, request, count).tolist()
    return tokens


def _fault(action: Callable[[], object]) -> str:
    with pytest.raises(SanitizerError) as caught:
        action()
    return str(caught.value)


def test_chunks_fills_and_neighbours_give_the_tokens_of_the_reference() -> None:
    """Two requests in scattered blocks, one prompt in chunks of 5 and 1."""
    script = Script()
    script.prepare(
        1, [(0, 1, 0, 4), (1, 3, 0, 5)], [(0, 0, 9), (0, 1, 2), (1, 0, 5), (1, 1, 4), (1, 2, 3)]
    )
    first = script.run(1, rows=2)[0]
    script.prepare(2, [(0, 1, 4, 1), (1, 3, 5, 1)], [(0, 2, 11)])
    second, third = script.run(2, rows=2, fills=[first])
    assert [first, second] == _oracle(0, 2)
    assert [third] == _oracle(2, 1)


def test_a_preempted_request_recomputes_its_history_in_other_blocks() -> None:
    """Prompt and sampled token in one row, in another seat and epoch; the fill comes last."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    first = script.run(1)
    script.prepare(2, [(0, 1, 4, 1)], [(0, 2, 2)])
    second = script.run(2, fills=first)
    script.prepare(
        3, [(3, 1, 0, 6)], [(0, 0, 2), (0, 1, 1), (0, 2, 0)], epoch=1, history=[(0, 4, first[0])]
    )
    third = script.run(3, fills=second)
    assert first + second + third == _oracle(0, 3)


def test_a_wrong_history_is_reported_where_it_shows() -> None:
    """Recomputed KV must reach the state that the request had before it was preempted."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    first = script.run(1)
    script.prepare(2, [(0, 1, 4, 1)], [(0, 2, 2)])
    second = script.run(2, fills=first)
    script.prepare(
        3, [(3, 1, 0, 6)], [(0, 0, 2), (0, 1, 1), (0, 2, 0)], epoch=1, history=[(0, 4, 1)]
    )
    assert _fault(lambda: script.run(3, fills=second)) == (
        "request 'r0' in batch 3: recomputed KV differs at or before position 4; " + WAY_OUT
    )


def test_a_block_of_a_request_in_flight_may_not_be_given_away() -> None:
    """The first request's row is prepared, so its block 1 is still needed."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    assert _fault(lambda: script.prepare(2, [(1, 2, 0, 4)], [(0, 0, 1), (0, 1, 3)])) == (
        "request 'r1' in batch 2, block 1: the block is still in use by request 'r0'; " + WAY_OUT
    )


def test_a_block_that_was_given_away_may_not_be_read_in_the_same_epoch() -> None:
    """With nothing in flight the giving looks like a preemption, until the row goes on."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.run(1)
    script.prepare(2, [(1, 2, 0, 4)], [(0, 0, 1), (0, 1, 3)])
    script.run(2)
    assert _fault(lambda: script.prepare(3, [(0, 1, 4, 1)], [(0, 2, 2)])) == (
        "request 'r0' in batch 3, block 1: the block was given to another request before; "
        + WAY_OUT
    )


def test_a_block_twice_in_one_table_is_reported() -> None:
    """The table of the first request grows by a block that it has already."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.run(1)
    assert _fault(lambda: script.prepare(2, [(0, 1, 4, 1)], [(0, 2, 0)])) == (
        "request 'r0' in batch 2, block 0: the block is still in use by request 'r0'; " + WAY_OUT
    )


def test_a_seat_may_not_change_hands_while_rows_are_outstanding() -> None:
    """The second request is put where the first one's row still is."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    assert _fault(lambda: script.prepare(2, [(0, 2, 0, 4)], [(0, 0, 2), (0, 1, 3)])) == (
        "request 'r1' in batch 2: seat 0 still has outstanding rows of request 'r0'; " + WAY_OUT
    )


def test_a_row_that_skips_a_position_is_reported() -> None:
    """Position 4 was never computed."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.run(1)
    script.prepare(2, [(0, 1, 5, 1)], [(0, 2, 2)])
    fills = _oracle(0, 1)
    assert _fault(lambda: script.run(2, fills=fills)) == (
        "request 'r0' in batch 2: the row begins at position 5, its KV ends at 4; " + WAY_OUT
    )


def test_a_row_that_writes_beyond_its_blocks_is_reported() -> None:
    """Of every kind: a chunk, a decode row, and a row with drafts."""
    script = Script()
    ends = "the row writes up to position 4, its blocks end before 4; " + WAY_OUT
    assert _fault(lambda: script.prepare(1, [(0, 3, 0, 5)], [(0, 0, 0), (0, 1, 1)])) == (
        f"request 'r2' in batch 1: {ends}"
    )
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.run(1)
    assert _fault(lambda: script.prepare(2, [(0, 1, 4, 1)])) == f"request 'r0' in batch 2: {ends}"
    script = _drafted(right=True)
    assert _fault(
        lambda: script.prepare(3, [(0, 1, 8, 2)], [(0, 3, 4)], drafts=[1])
    ) == "request 'r0' in batch 3: the row writes up to position 9, its blocks end before 8; " + (
        WAY_OUT
    )


def _drafted(*, right: bool) -> Script:
    """Run a prompt of 4, then a row at position 4 with 3 drafts in blocks 2 and 3."""
    script = Script(right=right)
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    first = script.run(1)
    script.prepare(2, [(0, 1, 4, 4)], [(0, 2, 2), (0, 3, 3)], drafts=[3])
    samples = script.samples(2, fills=first)
    assert samples.accepted is not None
    accepted = 3 if right else 0
    assert samples.accepted.tolist() == [accepted]
    assert samples.tokens.shape == (4, 1)
    found = samples.tokens[: accepted + 1, 0].tolist()
    assert found == _oracle(0, accepted + 2)[1:]
    return script


def test_accepted_drafts_are_kv_like_any_other() -> None:
    """The next row begins behind them, and reads what they wrote."""
    script = _drafted(right=True)
    script.prepare(3, [(0, 1, 8, 1)], [(0, 4, 4)])
    assert script.run(3, fills=_oracle(0, 5)[-1:]) == _oracle(0, 6)[-1:]
    script.prepare(4, [(1, 2, 0, 4)], [(0, 0, 3), (0, 1, 5)])
    script.run(4)
    assert "block 3: the block was given to another request" in _fault(
        lambda: script.prepare(5, [(0, 1, 9, 1)])
    )


def test_rejected_drafts_are_as_if_never_written() -> None:
    """The request goes on behind its last valid position; their block is anybody's."""
    script = _drafted(right=False)
    script.prepare(3, [(1, 2, 0, 4)], [(0, 0, 3), (0, 1, 5)])
    assert script.run(3) == _oracle(1, 1)
    script.prepare(4, [(0, 1, 5, 2)], [(0, 3, 7)], drafts=[1])
    samples = script.samples(4, fills=_oracle(0, 2)[-1:])
    assert samples.tokens[0].tolist() == _oracle(0, 3)[-1:]


def test_whoever_got_the_block_of_rejected_drafts_holds_it() -> None:
    """Also when the request that had tried them there ends."""
    script = _drafted(right=False)
    script.prepare(3, [(1, 2, 0, 4)], [(0, 0, 3), (0, 1, 5)])
    script.executor.end(1)
    blocks = [(0, 0, 3), (0, 1, 6), (0, 2, 7)]
    assert _fault(lambda: script.prepare(4, [(2, 3, 0, 6)], blocks)) == (
        "request 'r2' in batch 4, block 3: the block is still in use by request 'r1'; " + WAY_OUT
    )


def test_a_request_that_goes_on_behind_rejected_drafts_is_reported() -> None:
    """Their positions hold nothing, wherever in them the row begins."""
    for position in (6, 7, 8):
        script = _drafted(right=False)
        script.prepare(3, [(0, 1, position, 1)], [(0, 3, 3), (0, 4, 4)])
        fills = _oracle(0, 2)[-1:]
        assert _fault(lambda: script.run(3, fills=fills)) == (  # noqa: B023 - called at once
            f"request 'r0' in batch 3: the row begins at position {position}, its KV ends at 5; "
            + WAY_OUT
        )


def test_a_block_with_a_valid_position_is_not_given_back_with_rejected_ones() -> None:
    """Block 2 holds position 4, which is valid, and position 5, which is not."""
    script = _drafted(right=False)
    script.prepare(3, [(1, 2, 0, 4)], [(0, 0, 2), (0, 1, 5)])
    script.run(3)
    assert _fault(lambda: script.prepare(4, [(0, 1, 5, 1)])) == (
        "request 'r0' in batch 4, block 2: the block was given to another request before; "
        + WAY_OUT
    )


def test_a_wrong_fill_before_drafts_is_reported_at_its_own_position() -> None:
    """The drafts stand behind the fill."""
    script = _drafted(right=True)
    script.prepare(3, [(0, 1, 8, 3)], [(0, 4, 4), (0, 5, 5)], drafts=[2])
    sampled = _oracle(0, 5)[-1]
    assert _fault(lambda: script.run(3, fills=[sampled + 1])) == (
        f"request 'r0' in batch 3: token {sampled + 1} was filled in at position 8, it had sampled "
        f"{sampled}; {WAY_OUT}"
    )


def test_rows_with_more_fewer_and_no_drafts_share_a_batch() -> None:
    """A column holds one token more than its row has accepted drafts; the rest is not read."""
    script = Script()
    blocks = [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3), (2, 0, 4), (2, 1, 5), (2, 2, 6)]
    script.prepare(1, [(0, 1, 0, 4), (1, 2, 0, 4), (2, 3, 0, 6)], blocks)
    first = script.run(1, rows=3)
    rows = [(0, 1, 4, 1), (1, 2, 4, 4), (2, 3, 6, 2)]
    script.prepare(2, rows, [(0, 2, 7), (1, 2, 8), (1, 3, 9), (2, 3, 10)], drafts=[0, 3, 1])
    samples = script.samples(2, rows=3, fills=first)
    assert samples.accepted is not None
    assert samples.accepted.tolist() == [0, 3, 1]
    for request, count in enumerate([1, 4, 2]):
        assert samples.tokens[:count, request].tolist() == _oracle(request, count + 1)[1:]


def test_a_cached_prefix_must_hold_the_prompt() -> None:
    """Blocks of the first request are passed off as a prefix of another prompt."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.run(1)
    assert _fault(lambda: script.prepare(2, [(1, 3, 2, 4)], [(0, 0, 0), (0, 1, 4), (0, 2, 5)])) == (
        "request 'r2' in batch 2, block 0: prefix block 0 holds other content than the prompt; "
        + WAY_OUT
    )


def test_memory_that_changed_under_a_row_is_reported_with_its_block() -> None:
    """Somebody else's write, simulated by a table that points elsewhere."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4), (1, 2, 0, 4)], [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)])
    first = script.run(1, rows=2)
    # A slot that the table has already: the host would now read block 5, which nobody wrote.
    script.prepare(2, [(0, 1, 4, 1)], [(0, 1, 5), (0, 2, 6)])
    assert _fault(lambda: script.run(2, fills=first[:1])) == (
        "request 'r0' in batch 2, block 5: position 3 holds another history than its own; "
        + WAY_OUT
    )


def test_a_withdrawn_batch_leaves_no_holder_behind() -> None:
    """Its blocks may go to anyone, and the request may come back with other blocks."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.executor.withdraw(1)
    script.prepare(2, [(1, 2, 0, 4)], [(0, 0, 1), (0, 1, 0)])
    assert script.run(2) == _oracle(1, 1)
    script.prepare(3, [(0, 1, 0, 4)], [(0, 0, 4), (0, 1, 5)])
    assert script.run(3) == _oracle(0, 1)


def test_an_ended_request_gives_up_its_blocks_when_its_last_row_is_back() -> None:
    """Draining: while the row is out the block is in use, afterwards it is not."""
    script = Script()
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    script.executor.end(1)
    assert "still in use by request 'r0'" in _fault(
        lambda: script.prepare(2, [(1, 2, 0, 4)], [(0, 0, 1), (0, 1, 3)])
    )
    again = Script()
    again.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    again.executor.end(1)
    again.run(1)
    again.prepare(2, [(1, 2, 0, 4)], [(0, 0, 1), (0, 1, 0)])
    assert again.run(2) == _oracle(1, 1)


def test_without_the_sanitizer_nothing_is_reported_but_tokens_change() -> None:
    """The stolen block is read as it stands."""
    script = Script(sanitize=False)
    script.prepare(1, [(0, 1, 0, 4)], [(0, 0, 0), (0, 1, 1)])
    first = script.run(1)
    script.prepare(2, [(1, 2, 0, 4)], [(0, 0, 3), (0, 1, 1)])
    script.run(2)
    script.prepare(3, [(0, 1, 4, 1)], [(0, 2, 2)])
    second = script.run(3, fills=first)
    assert first == _oracle(0, 1)
    assert second != _oracle(0, 2)[1:]


@pytest.mark.interpreted  # it replaces a method
def test_a_kernel_that_forgets_its_fences_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks released at once although rows that read them are in flight."""
    release = BlockPool.release

    def at_once(pool: BlockPool, blocks: Ints, fence: int) -> int:
        assert fence >= 0
        return release(pool, blocks, 0)

    monkeypatch.setattr(BlockPool, "release", at_once)
    config = KernelConfig(
        num_blocks=80,
        block_size=4,
        max_concurrency=16,
        max_num_batched_tokens=64,
        max_model_len=256,
        lookahead=1,
        eos_token_id=7,
    )
    simulation = Simulation(
        Kernel(config), mixed_workload(3, 4, count=40), roofline_device(), MODEL
    )
    with pytest.raises(SanitizerError, match="the block is still in use by request"):
        simulation.run()
