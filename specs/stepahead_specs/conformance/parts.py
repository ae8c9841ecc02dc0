"""What must be told about a scheduler before an invariant can be checked, and what never is.

An adapter or a history need not tell everything. Each rule names the parts that it reads; a rule
whose parts are missing is not run, and the page of results lists it with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final

from stepahead_specs.invariants import INVARIANTS, NOT_APPLICABLE, Invariant


class Part(Enum):
    """Something that may be told; the value completes the sentence "it is not told ..."."""

    TABLES = "which blocks each row reads and writes (`blocks` of a row)"
    INPUTS = "which tokens go into the device (`inputs` of a dispatch)"
    POOL = "which blocks are free and held (`state`)"
    REFERENCES = "how often each block is referenced (`references` of a state)"
    COUNTS = "known, scheduled and settled tokens (`counts` of a state)"
    PROMISES = "what each request gives when it runs alone (`promise` of a submission)"
    DRAINED = "that everything was given the time to end (a `drained` fact)"


#: What each rule reads beyond requests, rows and answers, by the name of its function.
NEEDS: Final[Mapping[str, tuple[Part, ...]]] = {
    "batches_keep_to_the_limits": (),
    "outputs_keep_to_the_limits": (),
    "rows_follow_each_other": (),
    "batches_are_dispatched_one_at_a_time_in_order": (),
    "selection_keeps_to_the_lookahead": (),
    "nothing_is_kept_when_nothing_is_left": (Part.POOL,),
    "every_block_is_in_one_place": (Part.POOL, Part.TABLES),
    "what_a_batch_may_touch_has_no_other_owner": (Part.TABLES,),
    "a_block_has_one_writer": (Part.TABLES, Part.POOL),
    "references_are_counted_by_their_holders": (Part.REFERENCES,),
    "a_live_row_reads_its_own_history": (Part.TABLES,),
    "blocks_follow_what_is_scheduled": (Part.TABLES, Part.POOL, Part.COUNTS),
    "every_arrival_is_answered_once": (),
    "a_client_that_left_hears_nothing_more": (),
    "an_ended_request_is_not_selected": (),
    "waste_is_bounded_by_the_lookahead": (),
    "an_idle_device_gets_work": (),
    "every_request_ends": (Part.DRAINED,),
    "nobody_overtakes_in_the_line": (),
    "a_handle_names_one_stay": (),
    "every_input_is_a_token_of_its_own_request": (Part.INPUTS,),
    "no_placeholder_is_seen": (),
    "counts_equal_the_rows_in_flight": (Part.COUNTS,),
    "results_reach_their_own_stay_and_epoch": (),
    "an_epoch_ends_with_its_last_row": (),
    "outputs_go_out_once_and_in_order": (),
    "outputs_are_those_of_a_run_alone": (Part.PROMISES,),
    "ends_are_those_of_a_run_alone": (Part.PROMISES,),
    "an_end_follows_from_the_tokens": (),
    "drafts_follow_one_sampled_token": (),
    "a_rejected_draft_leaves_nothing": (Part.COUNTS,),
}

_NO_TRANSFERS: Final = "copies between the tiers of a cache are not told"

#: Rules that a history cannot feed, with the reason.
NEVER: Final[Mapping[str, str]] = {
    "a_prepared_batch_does_not_wait": "the host decides when it dispatches, not the scheduler",
    "the_device_is_served_before_the_clients": "the order inside one answer is not told",
    "every_seat_is_in_one_place": "free and draining seats are not told",
    "a_key_stands_for_written_content": "the keys of cached blocks are not told",
    "keys_and_blocks_agree": "the keys of cached blocks are not told",
    "a_reset_forgets_everything": "no cache reset is asked for",
    "a_pause_waits_for_the_device": "no pause is asked for",
    "counters_equal_what_was_seen": "counters are not told",
    "a_state_follows_the_oldest_row": "the states of requests are derived, not told",
    "a_marked_victim_joins_no_batch": "who is to be preempted is not told",
    "the_youngest_are_the_victims": "who is to be preempted is not told",
    "a_victim_is_chosen_for_want_of_blocks": "who is to be preempted is not told",
    "content_that_came_back_can_be_found": "the keys of cached blocks are not told",
    "nobody_is_left_out_while_there_is_room": "how full a batch should be is the engine's policy",
    "the_first_in_line_is_let_in_while_there_is_room": (
        "when a request is admitted is the engine's policy"
    ),
    "no_row_is_left_out_for_a_draft": "how full a batch should be is the engine's policy",
    "drafts_take_what_is_left": "how full a batch should be is the engine's policy",
    "a_refusal_has_a_reason_that_holds": "reasons of refusals are the engine's own words",
    "every_page_is_in_one_place": _NO_TRANSFERS,
    "a_page_is_in_one_transfer": _NO_TRANSFERS,
    "what_a_transfer_needs_is_not_free": _NO_TRANSFERS,
    "nobody_writes_what_a_store_reads": _NO_TRANSFERS,
    "a_copy_is_of_what_its_key_says": _NO_TRANSFERS,
    "a_load_is_of_its_requests_prefix": _NO_TRANSFERS,
    "what_a_load_writes_has_no_other_user": _NO_TRANSFERS,
    "a_pin_belongs_to_a_transfer": _NO_TRANSFERS,
    "a_transfer_is_open_until_it_is_reported": _NO_TRANSFERS,
    "what_was_copied_can_be_found": _NO_TRANSFERS,
    "idle_means_that_nothing_is_left": "whether the engine calls itself idle is not told",
}

_WAIVED: Final = "waived by the adapter"

#: Situations that the kit does not bring about.
NOT_DRIVEN: Final = (
    "batches that the host refuses, device failures, pauses, cache resets, wake-ups",
    "KV transfers, cache tiers and several devices",
    "speculative decoding (a history may have it) and structured output",
    "requests that can never fit, and ids that are still live",
    "time: only the order of calls counts",
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which rules are run, and why the others are not."""

    rules: tuple[Invariant, ...]
    left_out: Mapping[str, str]


def scope(told: Collection[Part], waived: Mapping[str, str]) -> Scope:
    """Choose the rules that can be run on what is told.

    Args:
        told: the parts that are there.
        waived: names of rules that the scheduler does not claim, with the reason.
    """
    return _scope(frozenset(told), tuple(sorted(waived.items())))


def together(scopes: Iterable[Scope]) -> Scope:
    """Join the scopes of several runs: what some of them left out is listed, and said to be some.

    A run that ends early is told less than others; a part that comes late counts as told.
    """
    rules: dict[str, Invariant] = {}
    left_out: dict[str, str] = {}
    for one in scopes:
        rules |= {_title(entry): entry for entry in one.rules}
        left_out |= one.left_out
    partly = {
        title: f"in some runs {why}" if title in rules else why
        for title, why in left_out.items()
        if title not in rules or why.startswith(_WAIVED)
    }
    return Scope(tuple(entry for entry in INVARIANTS if _title(entry) in rules), partly)


def _title(entry: Invariant) -> str:
    return f"{entry.key} {entry.name.replace('_', ' ')}"


@cache
def _scope(told: frozenset[Part], waivers: tuple[tuple[str, str], ...]) -> Scope:
    rules: list[Invariant] = []
    left_out = dict(NOT_APPLICABLE)
    waived = dict(waivers)
    for entry in INVARIANTS:
        why = _why_not(entry.name, told, waived)
        if why is None:
            rules.append(entry)
        else:
            left_out[_title(entry)] = why
    return Scope(tuple(rules), left_out)


def unknown_rules(names: Iterable[str]) -> list[str]:
    """Return the names that no invariant has: a waiver with a typo would waive nothing."""
    known = {entry.name for entry in INVARIANTS}
    return [name for name in names if name not in known]


def _why_not(name: str, told: Collection[Part], waived: Mapping[str, str]) -> str | None:
    if name in waived:
        return f"{_WAIVED}: {waived[name]}"
    if name in NEVER:
        return NEVER[name]
    if name not in NEEDS:
        return "it is new: nobody has said yet what it reads"
    missing = [part.value for part in NEEDS[name] if part not in told]
    return f"it is not told {', nor '.join(missing)}" if missing else None
