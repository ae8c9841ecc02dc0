"""Defects of which token goes in where, and what a result is applied to."""

from stepahead_specs.mutants.patching import Edit
from stepahead_specs.mutants.registry import Edits, mutant

_FILL = "tokens = columns.last_token[seats if len(rows) == len(seats) else seats[rows]]"
#: Where it is told that a result is for somebody else.
_TOLD = 'raise KernelBug(f"batch {batch.batch_id} came back for rows that are not its own")'


@mutant("M06", "B07", "B08", expects=("INV-3",))
def batches_share_one_plan() -> Edits:
    """The arrays of the batch before are written in place for the next one."""
    return [
        Edit(
            "reserve",
            "    positions = columns.scheduled[seats]\n",
            "    positions = columns.scheduled[seats]\n"
            "    if state.outstanding and state.outstanding[-1].seats is seats:\n"
            "        positions = state.outstanding[-1].positions\n"
            "        positions += rows.counts\n",
        )
    ]


@mutant("M09", "B57", "B60", expects=("INV-7",))
def tokens_are_filled_in_by_row() -> Edits:
    """Row i of a batch gets the token of row i of the batch before."""
    return [
        Edit(
            "_dispatch",
            _FILL,
            "before = state.filled[-1] if state.filled else batch\n"
            "    tokens = columns.last_token[np.resize(before.seats, len(rows))]",
        )
    ]


@mutant("B53", "B52", expects=("INV-7", "INV-8"))
def only_the_batch_before_fills_in() -> Edits:
    """A request that was not in the batch before keeps its placeholder."""
    return [
        Edit(
            "_dispatch",
            _FILL,
            "before = state.filled[-1] if state.filled else batch\n"
            "    there = np.isin(seats[rows], before.seats)\n"
            "    tokens = np.where(there, columns.last_token[seats[rows]], -1)",
        )
    ]


@mutant("B51", expects=("INV-7",))
def tokens_wait_in_a_ring() -> Edits:
    """Sampled tokens wait in a ring of two places until they are filled in."""
    return [
        Edit("_dispatch", _FILL, "tokens = columns.last_token[seats[rows] % 2]"),
        Edit(
            "fill",
            "columns.last_token[sampled] = tokens",
            "columns.last_token[sampled % 2] = tokens",
        ),
    ]


@mutant("B61", "B49", expects=("INV-7",))
def a_batch_is_dispatched_before_it_is_filled() -> Edits:
    """The next batch goes out with the tokens of one step earlier."""
    return [
        Edit("fill", "    columns.last_token[sampled] = tokens\n", ""),
        Edit(
            "fill",
            "    commands = dispatch_next(state)\n",
            "    commands = dispatch_next(state)\n    columns.last_token[sampled] = tokens\n",
        ),
    ]


@mutant("M11", "B54", expects=("INV-7",))
def the_history_of_a_resumed_request_is_cut() -> Edits:
    """The last token that was sampled before a preemption is left out of the history."""
    return [
        Edit(
            "_history",
            "last = batch.ends - batch.samples",
            "last = batch.ends - batch.samples - 1",
        )
    ]


@mutant("M11", "B45", "B48", expects=("INV-8",))
def the_history_of_a_resumed_request_is_placeholders() -> Edits:
    """What was sampled before a preemption is told as placeholders."""
    return [
        Edit(
            "_history",
            "columns.tokens[batch.seats[row], span - prompt[row]]",
            "columns.tokens[batch.seats[row], span - prompt[row]] * 0 - 1",
        )
    ]


@mutant("M12", "B38", "B87", expects=("INV-9", "INV-10", "INV-28", "kernel"))
def a_victim_in_flight_is_preempted_at_once() -> Edits:
    """A request with rows outstanding is sent back to the line; their results come later."""
    return [
        Edit(
            "_make_room",
            "columns.intent[victim.seat] = Intent.PREEMPT.value",
            "state.requeue(victim, state.newest_row(victim.seat))",
        )
    ]


@mutant("M12", "B99", expects=("INV-9", "INV-10", "INV-28", "kernel"))
def a_late_result_reaches_a_preempted_request() -> Edits:
    """A victim is preempted in flight, and nobody looks whose result it is."""
    return [
        Edit(
            "_make_room",
            "columns.intent[victim.seat] = Intent.PREEMPT.value",
            "state.requeue(victim, state.newest_row(victim.seat))",
        ),
        Edit("_own_rows", _TOLD, "pass"),
    ]


@mutant("B38", "B129", expects=("INV-10", "INV-20"))
def a_preemption_keeps_the_epoch() -> Edits:
    """A request that is preempted goes on in the same epoch."""
    return [Edit("State.requeue", "    stay.epoch += 1\n", "")]


@mutant("B59", expects=("INV-7", "INV-10", "kernel"))
def results_go_to_the_newest_batch() -> Edits:
    """Which rows a result belongs to is read from the newest batch, not from its own."""
    return [
        Edit(
            "_own_rows",
            "    known = columns.known[seats]\n",
            "    if batch.decode:\n"
            "        seats = (state.outstanding or [batch])[-1].seats\n"
            "    known = columns.known[seats]\n",
        )
    ]


@mutant("B41", expects=("INV-11", "INV-26", "kernel"))
def sampling_is_decided_when_the_batch_is_back() -> Edits:
    """Whether a row samples is judged by what is scheduled now, not by what was selected then."""
    return [
        Edit(
            "_own_rows",
            "batch.samples & batch.live if batch.dead else batch.samples",
            "batch.live & (columns.scheduled[seats] >= columns.known[seats])",
        )
    ]


@mutant("B42", expects=("INV-26",))
def the_chunk_before_the_last_samples() -> Edits:
    """A prompt chunk counts as sampling when the next one would end the prompt."""
    return [
        Edit(
            "row_set",
            "samples = ends >= columns.known[seats]",
            "samples = ends + state.config.max_tokens_per_row >= columns.known[seats]",
        )
    ]


@mutant("B62", "B97", expects=("INV-11",))
def a_mixed_batch_sends_no_tokens() -> Edits:
    """Tokens go out only when every row of the batch has sampled."""
    return [Edit("fill", "    if len(sampled):\n", "    if len(sampled) == len(batch.seats):\n")]


@mutant("B100", expects=("INV-10", "INV-11"))
def tokens_are_numbered_by_what_is_scheduled() -> Edits:
    """The place of an output is taken from the rows that are prepared, not from what is known."""
    return [
        Edit(
            "fill",
            "offsets=offsets,\n",
            "offsets=columns.scheduled[sampled] - columns.prompt[sampled],\n",
        )
    ]


@mutant("B137", "M42", expects=("INV-10", "INV-11", "kernel"))
def a_dead_row_still_speaks() -> Edits:
    """What the device returns for a request that has ended is sent all the same."""
    return [
        Edit(
            "fill",
            "steps, accepted = steps.take(alive, 1)",
            "steps, accepted = steps",
        ),
        Edit(
            "_own_rows",
            "batch.samples & batch.live if batch.dead else batch.samples",
            "batch.samples",
        ),
        Edit("_own_rows", _TOLD, "pass"),
    ]


@mutant("B64", expects=("INV-21", "INV-3", "bench", "kernel"))
def the_fast_path_opens_no_block() -> Edits:
    """Selecting the same rows again takes no new block where a row crosses a block's end."""
    return [
        Edit(
            "_grow",
            "    if not len(rows) and not hits:\n",
            "    if state.steady is not None:\n"
            "        rows = needs = EMPTY\n"
            "    if not len(rows) and not hits:\n",
        )
    ]


@mutant("ours", expects=("INV-12", "INV-13", "INV-26"))
def the_fast_path_forgets_to_count() -> Edits:
    """Selecting the same rows again never asks whether one of them is at its end."""
    return [Edit("select", "    steady.turns -= 1\n", "")]


@mutant("ours", expects=("INV-16", "INV-33"))
def the_fast_path_does_not_see_arrivals() -> Edits:
    """While the same rows can be selected again, nobody looks at the waiting line."""
    return [Edit("arrive", "        state.steady = None\n", "")]
