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
from stepahead_models.tokens import HistoryHash, Ints, reference_tokens

WAY_OUT = "the scheduler reused or mixed up what a row still needs"
PROMPTS = [4, 4, 6]
WORKLOAD = plain_workload(PROMPTS)
MODEL = HistoryHash(vocab_size=VOCABULARY, eos_token_id=7)


class Script:
    """Batches of one or more rows by hand: blocks of 2 positions, handles 1 to 3 for r0 to r2."""

    def __init__(self, *, sanitize: bool = True) -> None:
        config = KernelConfig(num_blocks=16, block_size=2, max_concurrency=4, max_model_len=32)
        self.executor = Executor(
            config, MODEL, WORKLOAD.prompts, WORKLOAD.eos_at, sanitize=sanitize
        )
        for request in range(len(PROMPTS)):
            self.executor.admit(request + 1, request)

    def prepare(
        self,
        batch_id: int,
        rows: Sequence[tuple[int, int, int, int]],
        blocks: Sequence[tuple[int, int, int]] = (),
        *,
        epoch: int = 0,
        history: Sequence[tuple[int, int, int]] = (),
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
            )
        )

    def run(self, batch_id: int, rows: int = 1, fills: Sequence[int] = ()) -> list[int]:
        """Dispatch with a fill for each of the first rows, and execute."""
        self.executor.dispatch(
            DispatchBatch(
                batch_id=batch_id,
                fill_rows=np.arange(len(fills)),
                fill_tokens=np.array(fills, dtype=np.int64),
                live=np.ones(rows, dtype=bool),
            )
        )
        tokens: list[int] = self.executor.execute(batch_id).tokens[0].tolist()
        return tokens


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
