"""Defects of arrivals, ends, cancels, limits, order and reports."""

from stepahead_specs.mutants.patching import Edit
from stepahead_specs.mutants.registry import Edits, mutant

_LINE = "    commands.extend(finished)\n"
_KNOWN = "handle = state.newest.get(event.request_id) if event.handle is None else event.handle"
_GONE = "if stay is None or stay.request_id != event.request_id:"


@mutant("B19", expects=("INV-11", "INV-20"))
def an_end_is_told_again_when_its_row_is_discarded() -> Edits:
    """The last word goes out at the end, and once more when the discarded row is back."""
    return [
        Edit(
            "fill",
            _LINE,
            "    commands.extend(finished)\n"
            "    for row, reason in batch.dead.items():\n"
            "        handle = int(batch.handles[row])\n"
            "        commands.append(\n"
            "            FinishRequest(\n"
            '                request_id="", handle=handle, reason=reason, output_tokens=0\n'
            "            )\n"
            "        )\n",
        )
    ]


@mutant("M30", "B33", "B101", expects=("INV-11",))
def a_cancel_waits_for_the_result() -> Edits:
    """A request on the device is not cancelled before its result has gone out."""
    return [
        Edit(
            "_cancelled",
            _GONE,
            "running = state.outstanding[:1]\n"
            "    there = stay and stay.seat >= 0 and running\n"
            "    if there and running[0].row_of(stay.seat) is not None:\n"
            "        return []\n"
            f"    {_GONE}",
        )
    ]


@mutant("M31", "B102", "B107", expects=("INV-11", "INV-20"))
def a_cancel_looks_into_batches_only() -> Edits:
    """A request that is in no batch at this moment is not found."""
    return [
        Edit(
            "_cancelled",
            _GONE,
            "if stay is None or stay.request_id != event.request_id or not any(\n"
            "        stay.seat >= 0 and batch.row_of(stay.seat) is not None\n"
            "        for batch in state.outstanding\n"
            "    ):",
        )
    ]


@mutant("M31", "B26", expects=("INV-11", "INV-20"))
def a_cancel_misses_requests_between_chunks() -> Edits:
    """A request whose prompt is half computed is not found."""
    return [
        Edit(
            "_cancelled",
            _GONE,
            "if stay is None or stay.request_id != event.request_id or (\n"
            "        stay.seat >= 0\n"
            "        and 0 < state.columns.scheduled[stay.seat] < state.columns.prompt[stay.seat]\n"
            "    ):",
        )
    ]


@mutant("M25", "B105", expects=("INV-11", "INV-20"))
def a_cancel_goes_by_the_id_alone() -> Edits:
    """A late cancel of a request that has ended hits the next one with the same id."""
    return [Edit("_cancelled", _KNOWN, "handle = state.newest.get(event.request_id)")]


@mutant("M25", "B84", "B105", expects=("INV-11", "INV-24"))
def handles_are_used_again() -> Edits:
    """A handle is free for the next request when its request has ended."""
    return [
        Edit(
            "arrive",
            "    handle = state.next_handle\n",
            "    handle = 1 + max(state.live, default=0)\n",
        )
    ]


@mutant("M25", expects=("INV-24",))
def an_id_may_be_live_twice() -> Edits:
    """A second request with a live id is admitted."""
    return [Edit("_refusal", "if event.request_id in state.newest:", "if False:")]


@mutant("B105", expects=("INV-24", "INV-34"))
def an_id_stays_taken_after_its_end() -> Edits:
    """A request that has ended still blocks its id."""
    return [
        Edit(
            "State.end",
            "        del self.newest[stay.request_id]\n",
            "        pass\n",
        )
    ]


@mutant("M26", "B90", expects=("INV-12", "INV-13", "INV-26"))
def the_length_guard_ignores_rows_in_flight() -> Edits:
    """A request may be selected until its last token is known."""
    return [
        Edit(
            "_able",
            "scheduled < columns.final[order] - ONE",
            "columns.known[order] < columns.final[order]",
        )
    ]


@mutant("M26", "B91", expects=("INV-15", "INV-33"))
def the_length_guard_stops_one_early() -> Edits:
    """A request is left out one token before its end."""
    return [
        Edit(
            "_able",
            "scheduled < columns.final[order] - ONE",
            "scheduled < columns.final[order] - ONE - ONE",
        )
    ]


@mutant("M27", "B92", expects=("INV-13", "INV-14", "INV-29", "INV-34", "kernel"))
def the_longest_length_is_not_kept() -> Edits:
    """A request may grow beyond the longest sequence of the model."""
    return [
        Edit(
            "arrive",
            "min(event.prompt_length + event.max_tokens, state.config.max_model_len)",
            "event.prompt_length + event.max_tokens",
        )
    ]


@mutant("B98", expects=("INV-13", "kernel"))
def one_request_too_many_is_admitted() -> Edits:
    """Admission compares with at most where it needs less than."""
    return [
        Edit(
            "_admit",
            "rows = config.max_concurrency - shares.able",
            "rows = config.max_concurrency - shares.able + 1",
        ),
    ]


@mutant("ours", expects=("INV-13",))
def the_token_budget_counts_prompts_only() -> Edits:
    """Decode rows cost nothing of the budget of a batch."""
    return [
        Edit("_divide", "        left -= len(single)\n", "        pass\n"),
    ]


@mutant("M28", "B93", "B116", expects=("INV-33",))
def a_draining_request_counts_as_running() -> Edits:
    """A request that has ended takes a place of the batch until its last row is back."""
    return [
        Edit(
            "_admit",
            "and len(hits) < rows",
            "and len(hits) + len(state.fenced_seats) < rows",
        )
    ]


@mutant("M28", "B119", "B135", expects=("INV-35",))
def rows_that_drain_do_not_keep_the_kernel_busy() -> Edits:
    """The kernel calls itself idle when no request is live, whatever is on the device."""
    return [
        Edit(
            "Kernel.idle",
            "return not state.live and not state.outstanding and not state.ledger.open",
            "return not state.live",
        )
    ]


@mutant("M29", "B94", expects=("INV-15", "INV-31", "kernel"))
def admission_promises_blocks_twice() -> Edits:
    """What running requests are about to take counts as free for a newcomer."""
    return [
        Edit(
            "_admit",
            "spare = pool.available - sum(promised.tolist())",
            "spare = pool.available",
        )
    ]


@mutant("M29", "B95", expects=("INV-34",))
def a_request_that_fits_exactly_is_refused() -> Edits:
    """The last token, which needs no KV, is counted as if it did."""
    return [
        Edit(
            "_does_not_fit",
            "-(-(final - 1) // config.block_size)",
            "-(-final // config.block_size)",
        )
    ]


@mutant("B117", expects=("INV-15", "INV-34", "kernel"))
def a_request_that_never_fits_is_admitted() -> Edits:
    """A request may need one block more than there are."""
    return [
        Edit(
            "_does_not_fit",
            "if blocks > config.num_blocks:",
            "if blocks > config.num_blocks + 1:",
        )
    ]


@mutant("M32", "B114", expects=("INV-31",))
def victims_are_taken_until_a_block_is_free_now() -> Edits:
    """What is about to come back does not count, so one victim after the other is chosen."""
    return [
        Edit(
            "_make_room",
            "missing = need - state.pool.available - state.pool.pending_count",
            "missing = need - state.pool.available",
        ),
        Edit(
            "_make_room",
            "    missing -= sum(_own_blocks(state, int(seat)) for seat in order[leaving])\n",
            "",
        ),
    ]


@mutant("B117", expects=("INV-15", "INV-31", "bench"))
def a_request_is_its_own_victim() -> Edits:
    """A request that lacks a block may be preempted for itself."""
    return [
        Edit(
            "_make_room",
            "(columns.rank[order] > columns.rank[lacking])",
            "(columns.rank[order] >= columns.rank[lacking])",
        )
    ]


@mutant("ours", expects=("INV-15", "INV-31"))
def the_oldest_is_the_first_victim() -> Edits:
    """Victims are taken from the front of the running requests, not from the back."""
    return [
        Edit(
            "_make_room",
            "younger = ~leaving & (columns.rank[order] > columns.rank[lacking])",
            "younger = ~leaving & (columns.rank[order] != columns.rank[lacking])",
        ),
        Edit(
            "_make_room",
            "state.stays(order[younger][::-1])",
            "state.stays(order[younger])",
        ),
    ]


@mutant("B123", expects=("INV-31", "kernel", "progress"))
def a_victim_stays_in_the_plan() -> Edits:
    """A request that is preempted for the batch under construction keeps its row in it."""
    return [
        Edit(
            "_running",
            "        short = None if _make_room(state, int(state.order[row]), needed) else row\n",
            "        order = state.order\n"
            "        short = None if _make_room(state, int(order[row]), needed) else row\n"
            "        state.order = order\n",
        )
    ]


@mutant("B124", expects=("INV-15", "INV-33"))
def the_request_behind_a_victim_is_skipped() -> Edits:
    """After a preemption the row before the one that lacked a block is left out."""
    return [
        Edit("_running", "    short = None\n", "    short, skipped = None, False\n"),
        Edit(
            "_running",
            "        if lacking is None:\n",
            "        shares.counts[: int(skipped)] = 0\n        if lacking is None:\n",
        ),
        Edit(
            "_running",
            "if _make_room(state, int(state.order[row]), needed) else",
            "if (skipped := _make_room(state, int(state.order[row]), needed)) else",
        ),
    ]


@mutant("B124", "B125", expects=("INV-16", "INV-33"))
def the_second_in_line_is_served_first() -> Edits:
    """Of several waiting requests, the second is looked at before the first."""
    return [
        Edit(
            "WaitingLine.head",
            "    while self._heap:\n",
            "    if len(self._stays) > 1:\n"
            "        return self._stays[sorted(self._stays)[1]]\n"
            "    while self._heap:\n",
        )
    ]


@mutant("B125", expects=("INV-16", "INV-33"))
def the_line_is_served_from_its_end() -> Edits:
    """The newest waiting request is served first."""
    return [
        Edit(
            "WaitingLine.head",
            "    while self._heap:\n",
            "    if self._stays:\n"
            "        return self._stays[max(self._stays)]\n"
            "    while self._heap:\n",
        )
    ]


@mutant("B125", expects=("INV-16", "INV-31"))
def a_preempted_request_goes_to_the_end_of_the_line() -> Edits:
    """A request that comes back waits behind everybody who arrived meanwhile."""
    return [
        Edit(
            "State.requeue",
            "    self.waiting.add(stay)\n",
            "    stay.rank += 1000\n    self.waiting.add(stay)\n",
        )
    ]


@mutant("ours", expects=("INV-16", "INV-31"))
def priorities_are_read_backwards() -> Edits:
    """The request with the largest priority number is served first."""
    return [Edit("arrive", "(event.priority * _ARRIVALS", "(-event.priority * _ARRIVALS")]


@mutant("B106", expects=("INV-11",))
def a_refusal_is_not_told() -> Edits:
    """A request that is not admitted gets no answer."""
    return [
        Edit(
            "_answer",
            "return [arrive(state, event)]",
            "return [word for word in [arrive(state, event)] if not hasattr(word, 'reason')]",
        )
    ]


@mutant("M39", "B130", expects=("INV-19",))
def a_pause_does_not_wait_for_the_device() -> Edits:
    """A pause is reported when the host has nothing to build, whatever is on the device."""
    return [
        Edit(
            "report_pause",
            "not state.outstanding",
            "all(batch.state is BatchState.DISPATCHED for batch in state.outstanding)",
        )
    ]


@mutant("B122", expects=("INV-19",))
def a_pause_is_a_flag_that_nobody_reads() -> Edits:
    """Selection goes on during a pause."""
    return [Edit("may_select", "    not state.paused\n", "    True\n")]


@mutant("ours", expects=("INV-19",))
def a_pause_is_forgotten_when_a_built_batch_is_abandoned() -> Edits:
    """A pause is reported when a batch comes back, and by no other end of the work."""
    return [
        Edit(
            "Kernel.step",
            "answer.extend(report_pause(state))",
            "answer.extend([] if isinstance(event, BatchPrepared) else report_pause(state))",
        )
    ]


@mutant("M43", "B103", "B119", expects=("INV-15", "INV-25", "bench"))
def the_last_batch_waits_for_another() -> Edits:
    """A prepared batch is dispatched when the next one has been selected."""
    return [
        Edit(
            "dispatch_next",
            "while state.outstanding and",
            "while len(state.outstanding) > 1 and",
        )
    ]


@mutant("ours", expects=("INV-25", "kernel"))
def a_prepared_batch_does_not_wait_its_turn() -> Edits:
    """A batch is dispatched while the one before it is on the device."""
    return [
        Edit(
            "_prepared",
            "    return dispatch_next(state)",
            "    before = state.outstanding\n"
            "    state.outstanding = [b for b in before if b.state is not BatchState.DISPATCHED]\n"
            "    answer = dispatch_next(state)\n"
            "    state.outstanding = before\n"
            "    return answer",
        )
    ]


@mutant("ours", expects=("INV-27",))
def one_batch_too_many_is_selected() -> Edits:
    """One more batch than the lookahead allows may stand outstanding."""
    return [
        Edit(
            "may_select",
            "len(outstanding) <= state.config.lookahead",
            "len(outstanding) <= state.config.lookahead + 1",
        )
    ]


@mutant("ours", expects=("INV-30",))
def clients_are_served_before_the_device() -> Edits:
    """Tokens go out before the next batch is dispatched."""
    return [Edit("fill", "    return commands\n", "    return commands[::-1]\n")]


@mutant("B132", expects=("INV-20",))
def an_end_in_the_line_is_not_counted() -> Edits:
    """The count of ended requests leaves out those that never ran."""
    return [Edit("State.end", "self.counters.ended += 1", "self.counters.ended += seat != NO_SEAT")]


@mutant("B134", expects=("INV-20",))
def waste_is_counted_before_it_happens() -> Edits:
    """Rows count as wasted on the device when their request ends, dispatched or not."""
    return [
        Edit(
            "State.lose_rows",
            "self.counters.discarded_rows += batch.state is BatchState.DISPATCHED",
            "self.counters.discarded_rows += 1",
        )
    ]


@mutant("B136", "M42", expects=("INV-14", "INV-29"))
def stop_tokens_are_lost() -> Edits:
    """The stop tokens of a request do not reach the place where ends are decided."""
    return [Edit("arrive", "stops=frozenset(event.stop_token_ids)", "stops=frozenset()")]


@mutant("M42", "B136", expects=("INV-14", "INV-29"))
def the_minimum_of_tokens_is_lost() -> Edits:
    """A request may stop before it has its minimum of tokens."""
    return [Edit("arrive", "event.prompt_length + event.min_tokens", "event.prompt_length")]


@mutant("B98", expects=("INV-14", "INV-29"))
def the_minimum_of_tokens_is_off_by_one() -> Edits:
    """A stop counts only beyond the minimum, not at it."""
    return [Edit("_finish", "length >= stay.floor", "length > stay.floor")]


@mutant("B33", "B103", expects=("INV-11", "INV-15", "kernel"))
def a_failed_batch_ends_nobody() -> Edits:
    """The device fails a batch, and its requests wait for a result that never comes."""
    return [
        Edit(
            "_failed",
            "doomed = state.stays(failed.seats[failed.live])",
            "doomed = state.stays(failed.seats[~failed.live])",
        )
    ]


@mutant("B37", expects=("INV-12", "INV-15", "kernel"))
def a_cancelled_request_stays_in_the_line() -> Edits:
    """A waiting request that is cancelled is not taken out of the line."""
    return [Edit("State.end", "        self.waiting.remove(stay)\n", "")]


@mutant("B103", "B119", expects=("INV-2",))
def an_ended_request_stays_in_the_running_order() -> Edits:
    """A request that has ended is still looked at when rows are selected."""
    return [Edit("State.vacate", "    self.order = self.order[self.order != seat]\n", "")]


@mutant("B111", "B15", expects=("INV-12", "kernel"))
def the_rows_of_last_time_outlive_their_requests() -> Edits:
    """While nobody waits, the rows that are selected again keep a request that has ended."""
    return [
        Edit(
            "State.vacate",
            "if self.steady is not None:",
            "if self.steady is not None and (len(self.waiting) or len(self.outstanding) < 2):",
        )
    ]


@mutant("B90", "B91", expects=("INV-12", "INV-14", "INV-29"))
def a_request_ends_one_token_before_its_length() -> Edits:
    """The end by length is judged with one token less than the selection goes by."""
    return [
        Edit(
            "_finish",
            "ending |= known >= columns.final[sampled]",
            "ending |= known >= columns.final[sampled] - 1",
        ),
        Edit("_finish", "length >= stay.final:", "length >= stay.final - 1:"),
    ]


@mutant("B37", "B115", expects=("INV-15",))
def nobody_makes_room() -> Edits:
    """No request is ever preempted; those that run and lack a block wait for each other."""
    return [Edit("_make_room", "    found = False\n", "    found = False\n    missing = 0\n")]


@mutant("B122", expects=("INV-15", "INV-33"))
def a_resumed_scheduler_stays_asleep() -> Edits:
    """The end of a pause ends the wait for it, and nothing is selected all the same."""
    return [Edit("_answer", "state.paused = state.pause_due = False", "state.pause_due = False")]


@mutant("M29", "B95", expects=("INV-15", "INV-33"))
def a_request_that_just_fits_is_not_let_in() -> Edits:
    """Admission wants one block to be left over."""
    return [Edit("_admit", "if spare - idle < fresh:", "if spare - idle <= fresh:")]
