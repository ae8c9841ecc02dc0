"""Every invariant speaks up: a sound moment is spoiled in one way, and it says what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from stepahead.config import KernelConfig
from stepahead_specs.bench import Bench
from stepahead_specs.invariants import (
    INVARIANTS,
    NOT_APPLICABLE,
    InvariantViolated,
    Kind,
    Violation,
    drafts,
    tiers,
    violations,
)
from stepahead_specs.memory import Content
from stepahead_specs.observation import Observation
from stepahead_specs.oracle import Ask, HashModel
from stepahead_specs.records import (
    DISPATCHED,
    HELD,
    PREPARED,
    Account,
    Facts,
    Index,
    Ints,
)

CONFIG = KernelConfig(
    num_blocks=9, block_size=2, max_concurrency=2, max_num_batched_tokens=16, lookahead=1
)


def _bench() -> Bench:
    bench = Bench(CONFIG, HashModel())
    bench.arrive(Ask(request_id="a", prompt=(1, 2, 3, 4, 5), max_tokens=4))
    bench.arrive(Ask(request_id="b", prompt=(7, 8, 9), max_tokens=3))
    return bench


def arrived() -> Observation:
    """The second of two requests has arrived."""
    return _bench().seen


def started() -> Observation:
    """Batch 1 has been selected with both requests."""
    bench = _bench()
    bench.host_ready()
    return bench.seen


def selected() -> Observation:
    """Batch 1 is on the device, batch 2 has been selected."""
    bench = _bench()
    bench.host_ready()
    bench.prepared()
    bench.host_ready()
    return bench.seen


def filled() -> Observation:
    """Batch 1 has come back: two tokens went out, and batch 2 is dispatched."""
    bench = _bench()
    bench.host_ready()
    bench.prepared()
    bench.host_ready()
    bench.prepared()
    bench.executed()
    return bench.seen


def ended() -> Observation:
    """Request 2 has ended by length, request 1 goes on in batch 3 that was dispatched."""
    bench = _bench()
    while bench.seen.requests[2].live:
        if bench.building is not None:
            bench.prepared()
        elif bench.ready_due:
            bench.host_ready()
        else:
            bench.executed()
    return bench.seen


def drained() -> Observation:
    """Nothing is live or outstanding."""
    bench = _bench()
    bench.drain()
    return bench.seen


@dataclass(frozen=True, slots=True)
class Corruption:
    """A sound moment, one way to spoil it, and what the rule then says."""

    rule: str
    moment: Callable[[], Observation]
    spoil: Callable[[Observation], object]
    sentences: tuple[str, ...]


def _account(seen: Observation) -> Account:
    assert seen.account is not None
    return seen.account


def _block(seen: Observation, number: int, **changes: int) -> None:
    """Change columns of the account at one block."""
    account = _account(seen)
    columns: dict[str, Ints] = {}
    for name, value in changes.items():
        columns[name] = getattr(account.blocks, name).copy()
        columns[name][number] = value
    _memory(seen, **columns)


def _memory(seen: Observation, **changes: object) -> None:
    account = _account(seen)
    changed = replace(account.blocks, **changes)  # type: ignore[arg-type]
    seen.account = replace(account, blocks=changed)


def _request(seen: Observation, handle: int, **changes: object) -> None:
    account = _account(seen)
    requests = dict(account.requests)
    requests[handle] = replace(requests[handle], **changes)  # type: ignore[arg-type]
    seen.account = replace(account, requests=requests)


def _ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _row(seen: Observation, ident: int, index: int, **changes: object) -> None:
    batch = seen.batches[ident]
    rows = list(batch.rows)
    rows[index] = replace(rows[index], **changes)  # type: ignore[arg-type]
    batch.rows = tuple(rows)


def _token(seen: Observation, place: int, **changes: object) -> None:
    seen.now.emitted[place] = replace(seen.now.emitted[place], **changes)  # type: ignore[arg-type]


def _back_in_line(seen: Observation) -> None:
    """Request 2 waits again, and batch 2 has no row of it."""
    _request(seen, 2, state="queued", seat=None, blocks=_ints(), known=3)
    seen.batches[2].rows = seen.batches[2].rows[:1]


def _leave(_: Observation) -> None:
    """Spoil nothing: the moment itself is too early."""


def _ended_before(seen: Observation) -> None:
    seen.requests[2].finish, seen.requests[2].finished_at = "stop", 3


def _ends_by_length(seen: Observation) -> None:
    seen.requests[2].finish = "length"
    seen.now.finished.append(2)


CORRUPTIONS = [
    Corruption(
        "nothing_is_kept_when_nothing_is_left",
        drained,
        lambda seen: _block(seen, 3, places=HELD, references=1),
        ("block 3 is held (1 references) at quiescence",),
    ),
    Corruption(
        "every_block_is_in_one_place",
        filled,
        lambda seen: _memory(seen, queue=_ints(5, 6, 7, 8, 8)),
        ("block 8 stands 2 times in the line of free blocks",),
    ),
    Corruption(
        "every_seat_is_in_one_place",
        filled,
        lambda seen: setattr(seen, "account", replace(_account(seen), seats_free=3)),
        ("3 free, 0 draining and 2 taken seats are not 6",),
    ),
    Corruption(
        "what_a_batch_may_touch_has_no_other_owner",
        filled,
        lambda seen: _memory(seen, queue=_ints(0, 7, 8)),
        ("block 0 may be handed out, and the row of request 1 in outstanding batch 2 touches it",),
    ),
    Corruption(
        "a_block_has_one_writer",
        selected,
        lambda seen: _request(seen, 1, blocks=_ints(0, 1, 4)),
        ("batch 2 writes block 4 for request 2, and request 1 holds it too",),
    ),
    Corruption(
        "references_are_counted_by_their_holders",
        filled,
        lambda seen: _block(seen, 1, references=2),
        ("block 1 has 2 references, 1 table entries of live requests name it",),
    ),
    Corruption(
        "a_key_stands_for_written_content",
        filled,
        lambda seen: _block(seen, 2, keys=5),
        ("block 2 has key 5, but only 1 positions of request 1 are written",),
    ),
    Corruption(
        "keys_and_blocks_agree",
        filled,
        lambda seen: _memory(seen, index=Index(_ints(0, 1), _ints(1, 0))),
        (
            "key 0 leads to block 1, which has key 1",
            "key 1 leads to block 0, which has key 0",
            "block 0 has key 0, which leads to 1",
            "block 1 has key 1, which leads to 0",
            "block 3 has key 2, which leads to None",
        ),
    ),
    Corruption(
        "a_live_row_reads_its_own_history",
        filled,
        lambda seen: seen.blocks.put(
            1, Content(handle=2, slot=1, filled=2, key=None, age=0, origin=1)
        ),
        (
            (
                "batch 2 reads slot 1 of request 1: block 1 holds slot 1 of request 2, "
                "written by batch 1"
            ),
        ),
    ),
    Corruption(
        "a_reset_forgets_everything",
        filled,
        lambda seen: setattr(seen.now, "reset", True),
        (
            "block 0 still has key 0 after the reset",
            "block 1 still has key 1 after the reset",
            "block 3 still has key 2 after the reset",
        ),
    ),
    Corruption(
        "blocks_follow_what_is_scheduled",
        filled,
        lambda seen: _request(seen, 1, blocks=_ints(0, 1)),
        ("request 1 holds 2 blocks, 3 hold its 6 scheduled positions",),
    ),
    Corruption(
        "every_input_is_a_token_of_its_own_request",
        filled,
        lambda seen: setattr(seen.batches[2], "fills", ((0, 96),)),
        (
            "row 0 of batch 2 (request 1) is given 96 for position 5, batch 1 sampled 19",
            "row 1 of batch 2 (request 2) is given the token of position 3 0 times",
        ),
    ),
    Corruption(
        "no_placeholder_is_seen",
        filled,
        lambda seen: _token(seen, 0, value=-1),
        ("request 1 is sent -1 by batch 1",),
    ),
    Corruption(
        "counts_equal_the_rows_in_flight",
        filled,
        lambda seen: _request(seen, 1, settled=4),
        (
            (
                "request 1 has 6 scheduled and 4 settled positions, its outstanding rows "
                "(batches 2) hold 1"
            ),
        ),
    ),
    Corruption(
        "results_reach_their_own_stay_and_epoch",
        filled,
        lambda seen: _token(seen, 0, handle=2, index=1),
        ("batch 1 emits output 1 of request 2, which no live row sampled in this step",),
    ),
    Corruption(
        "an_epoch_ends_with_its_last_row",
        selected,
        lambda seen: _row(seen, 2, 0, epoch=1),
        ("request 1 is in epoch 1 in batch 2, in epoch 0 in outstanding batch 1",),
    ),
    Corruption(
        "outputs_go_out_once_and_in_order",
        filled,
        lambda seen: seen.now.emitted.append(seen.now.emitted[0]),
        ("output 0 of request 1 goes out 2 times",),
    ),
    Corruption(
        "outputs_are_those_of_a_run_alone",
        filled,
        lambda seen: _token(seen, 1, value=96),
        ("output 0 of request 2 from batch 1 is 96, alone it is 53",),
    ),
    Corruption(
        "ends_are_those_of_a_run_alone",
        ended,
        lambda seen: seen.requests[2].emitted.pop(),
        ("request 2 ends by length after 2 tokens, alone by length after 3",),
    ),
    Corruption(
        "an_end_follows_from_the_tokens",
        ended,
        lambda seen: setattr(seen.requests[2], "finish", "stop"),
        ("after output 2 from batch 3 request 2 is ended by stop, it should be ended by length",),
    ),
    Corruption(
        "every_arrival_is_answered_once",
        arrived,
        lambda seen: seen.now.admitted.append(3),
        ("1 arrivals get 2 answers",),
    ),
    Corruption(
        "a_client_that_left_hears_nothing_more",
        filled,
        lambda seen: seen.now.cancelled.append(1),
        ("request 1 was cancelled and is still live",),
    ),
    Corruption(
        "an_ended_request_is_not_selected",
        selected,
        _ended_before,
        ("batch 2 selects request 2, ended at step 3",),
    ),
    Corruption(
        "waste_is_bounded_by_the_lookahead",
        filled,
        _ends_by_length,
        ("request 2 ends by length and has a row in outstanding batch 2",),
    ),
    Corruption(
        "an_idle_device_gets_work",
        arrived,
        lambda seen: setattr(seen, "now", Facts(event="HostReady")),
        ("nothing is outstanding or selected, and request 1 waits for ever",),
    ),
    Corruption(
        "every_request_ends",
        selected,
        _leave,
        (
            "request 1 has not ended",
            "request 2 has not ended",
            "batch 1 is still dispatched",
            "batch 2 is still queued",
        ),
    ),
    Corruption(
        "nobody_overtakes_in_the_line",
        started,
        lambda seen: _request(seen, 1, state="queued"),
        ("batch 1 starts request 2, and request 1 before it waits",),
    ),
    Corruption(
        "a_marked_victim_joins_no_batch",
        selected,
        lambda seen: _request(seen, 1, intent="preempt"),
        ("batch 2 selects request 1, which is to be preempted",),
    ),
    Corruption(
        "the_youngest_are_the_victims",
        selected,
        lambda seen: _request(seen, 1, intent="preempt"),
        ("request 1 is chosen as victim, and request 2 is younger",),
    ),
    Corruption(
        "a_pause_waits_for_the_device",
        filled,
        lambda seen: setattr(seen.now, "paused", 1),
        ("the pause is reported and batch 2 is dispatched",),
    ),
    Corruption(
        "counters_equal_what_was_seen",
        filled,
        lambda seen: seen.count("preemptions"),
        ("the counter preemptions is 0, 1 were seen",),
    ),
    Corruption(
        "a_handle_names_one_stay",
        arrived,
        lambda seen: setattr(seen.requests[2], "request_id", "a"),
        ("request 2 is admitted as 'a', as is request 1",),
    ),
    Corruption(
        "a_state_follows_the_oldest_row",
        filled,
        lambda seen: _request(seen, 2, state="filled"),
        ("request 2 is filled; its batches: 2 is dispatched",),
    ),
    Corruption(
        "batches_keep_to_the_limits",
        selected,
        lambda seen: _row(seen, 2, 1, count=0),
        ("the row of request 2 in batch 2 has 0 tokens, 1 to 1073741824 may be",),
    ),
    Corruption(
        "outputs_keep_to_the_limits",
        filled,
        lambda seen: setattr(seen.requests[1], "final_length", 5),
        ("request 1 has 1 output tokens, 0 may be",),
    ),
    Corruption(
        "rows_follow_each_other",
        selected,
        lambda seen: _row(seen, 2, 0, after=4),
        ("the row of request 1 in batch 2 starts at 5, the one before ended at 4",),
    ),
    Corruption(
        "batches_are_dispatched_one_at_a_time_in_order",
        filled,
        lambda seen: setattr(seen.batches[1], "state", DISPATCHED),
        ("batch 2 is dispatched and batch 1 is dispatched", "batches [1, 2] are all dispatched"),
    ),
    Corruption(
        "a_prepared_batch_does_not_wait",
        filled,
        lambda seen: setattr(seen.batches[2], "state", PREPARED),
        ("batch 2 is prepared, nothing is before it, and it is not dispatched",),
    ),
    Corruption(
        "selection_keeps_to_the_lookahead",
        selected,
        lambda seen: setattr(seen, "limits", replace(seen.limits, lookahead=0)),
        ("batch 2 is selected and 2 batches are outstanding with lookahead 0",),
    ),
    Corruption(
        "the_device_is_served_before_the_clients",
        filled,
        lambda seen: seen.now.order.reverse(),
        ("dispatch of 2 comes after emit",),
    ),
    Corruption(
        "a_victim_is_chosen_for_want_of_blocks",
        selected,
        lambda seen: _request(seen, 2, intent="preempt"),
        ("request 2 is chosen as victim, its elders want 0 blocks and 4 are free or coming",),
    ),
    Corruption(
        "content_that_came_back_can_be_found",
        filled,
        lambda seen: _memory(seen, index=Index(_ints(), _ints())),
        (
            "slot 0 of request 1 is back, and key 0 leads nowhere",
            "slot 1 of request 1 is back, and key 1 leads nowhere",
            "slot 0 of request 2 is back, and key 2 leads nowhere",
        ),
    ),
    Corruption(
        "nobody_is_left_out_while_there_is_room",
        selected,
        lambda seen: setattr(seen.batches[2], "rows", seen.batches[2].rows[:1]),
        ("request 2 has no row, and there is room for it",),
    ),
    Corruption(
        "the_first_in_line_is_let_in_while_there_is_room",
        selected,
        _back_in_line,
        ("request 2 waits, its 2 blocks and 0 promised ones are among 4 free ones",),
    ),
    Corruption(
        "a_refusal_has_a_reason_that_holds",
        arrived,
        lambda seen: seen.now.declined.append((seen.requests[2], "never_fits")),
        ("'b' is refused as never_fits, which does not hold",),
    ),
    Corruption(
        "idle_means_that_nothing_is_left",
        arrived,
        lambda seen: setattr(seen, "account", replace(_account(seen), idle=True)),
        ("the scheduler calls itself idle, and request 1 is live",),
    ),
]


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.rule)
def test_a_spoiled_moment_is_named_in_full(
    told: Callable[[str, Observation, Callable[[Observation], object]], tuple[str, ...]],
    corruption: Corruption,
) -> None:
    """The sound moment is silent; the spoiled one is told in the exact words."""
    said = told(corruption.rule, corruption.moment(), corruption.spoil)
    assert said == corruption.sentences


def test_every_rule_has_a_spoiled_moment() -> None:
    """A rule that nothing has ever broken may be unable to speak.

    Those of tiers and drafts are in `test_tier_invariants` and `test_draft_invariants`.
    """
    elsewhere = (tiers.__name__, drafts.__name__)
    here = {e.name for e in INVARIANTS if e.rule.__module__ not in elsewhere}
    assert {corruption.rule for corruption in CORRUPTIONS} == here


def test_the_catalogue_is_complete() -> None:
    """Each of the 24 catalogued invariants has a rule, or a reason why it has none."""
    ruled = {entry.key for entry in INVARIANTS}
    catalogue = {f"INV-{number}" for number in range(1, 25)}
    assert catalogue - ruled == set(NOT_APPLICABLE)
    assert not ruled & set(NOT_APPLICABLE)


def test_every_rule_states_its_claim_and_source() -> None:
    """The generated reference has something to print for each rule."""
    for entry in INVARIANTS:
        assert entry.claim.endswith("."), entry.name
        assert entry.source, entry.name


def test_a_violation_says_which_rule_when_and_what(
    found: Callable[[Observation, str], list[Violation]],
) -> None:
    """One line for a person: key, claim in short, step, sentence."""
    seen = drained()
    _block(seen, 3, places=HELD, references=1)
    line = str(found(seen, "nothing_is_kept_when_nothing_is_left")[0])
    assert line == (
        f"INV-1 (nothing is kept when nothing is left) at step {seen.step}: "
        "block 3 is held (1 references) at quiescence"
    )


def test_one_mistake_in_many_blocks_is_told_three_times() -> None:
    """Each broken rule has its first lines, and a count of those that are left out."""
    many = [Violation("INV-3", "a_block_has_one_writer", 7, f"block {n}") for n in range(9)]
    other = Violation("INV-7", "every_input_is_a_token_of_its_own_request", 7, "row 0")
    said = str(InvariantViolated([*many[:5], other, *many[5:]])).splitlines()
    assert said == [*map(str, many[:2]), f"{many[2]}; and 6 more", str(other)]
    assert str(InvariantViolated(many[:3])).splitlines() == [*map(str, many[:3])]


def test_the_drained_moment_satisfies_what_must_hold_in_the_end() -> None:
    """After a drain nothing is owed to anybody."""
    assert violations(drained(), Kind.EVENTUALLY) == []
