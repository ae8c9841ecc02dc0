"""Defects of speculation: what drafts take, and what is left of those that were wrong."""

from stepahead_specs.mutants.patching import Edit
from stepahead_specs.mutants.registry import Edits, mutant

_BACK = "columns.scheduled[seats] = columns.settled[seats] = ends"
_ELDEST = """wanted = _wanted(state, seats, counts)
    wanted[1:] = 0"""


@mutant("B91", "B40", expects=("INV-26", "INV-36"))
def a_rejected_draft_stays_scheduled() -> Edits:
    """Planning goes on behind the positions that were rejected."""
    return [Edit("_roll_back", _BACK, "columns.settled[seats] = ends")]


@mutant("ours", expects=("INV-9", "INV-36"))
def a_rejected_draft_counts_as_settled() -> Edits:
    """Rejected positions are taken back where planning counts, not where publishing does."""
    return [Edit("_roll_back", _BACK, "columns.scheduled[seats] = ends")]


@mutant("ours", expects=("INV-21",))
def a_rejected_draft_keeps_its_block() -> Edits:
    """The block behind the accepted tokens stays with the request."""
    return [Edit("_roll_back", "    if void:\n", "    if False and void:\n")]


@mutant("ours", expects=("INV-2", "INV-3", "INV-4", "INV-21"))
def a_block_is_given_back_and_stays_in_the_table() -> Edits:
    """The blocks of rejected drafts are free, and the request writes on into them."""
    return [
        Edit(
            "_roll_back",
            "columns.blocks[seats] = np.minimum(held, keep)",
            "columns.blocks[seats] = held",
        )
    ]


@mutant("ours", expects=("INV-2", "INV-4", "INV-21"))
def a_block_with_the_newest_position_is_given_back() -> Edits:
    """What is kept is rounded down to whole blocks."""
    return [Edit("_roll_back", "keep = (ends + (size - 1)) // size", "keep = ends // size")]


@mutant("ours", expects=("INV-9", "INV-11"))
def the_token_behind_the_drafts_is_lost() -> Edits:
    """Only accepted drafts go out, not the token that was sampled behind them."""
    return [
        Edit(
            "take_in",
            "np.minimum(accepted + 1, first)",
            "np.minimum(np.maximum(accepted, 1), first)",
        )
    ]


@mutant("ours", expects=("INV-10", "INV-11", "INV-14", "INV-29"))
def tokens_behind_an_end_are_sent() -> Edits:
    """Whoever ends within accepted drafts gets all that were accepted."""
    return [Edit("take_in", "np.minimum(accepted + 1, first)", "accepted + 1")]


@mutant("ours", expects=("INV-9", "INV-11", "INV-14", "INV-29"))
def a_floor_does_not_hold_for_drafts() -> Edits:
    """A stop token before min_tokens ends the request if it stands among drafts."""
    return [Edit("take_in", " & (lengths >= columns.floor[sampled])", "")]


@mutant("ours", expects=("INV-7",))
def the_newest_token_is_the_first_that_came_back() -> Edits:
    """The next row reads the first accepted draft, not the token behind them."""
    return [
        Edit("fill", "steps[counts - 1, arange(len(counts))]", "steps[0]"),
        # Who ends is still told by the last one.
        Edit(
            "fill",
            "finished = _finish(state, sampled, known, tokens)",
            "last = tokens if counts is None else steps[counts - 1, arange(len(counts))]\n"
            "    finished = _finish(state, sampled, known, last)",
        ),
    ]


@mutant("M11", "B54", expects=("INV-7", "INV-8"))
def accepted_drafts_are_in_no_history() -> Edits:
    """Of the tokens of a row only the last is written down for the case of a preemption."""
    return [Edit("take_in", "[:, None] < counts).nonzero()", "[:, None] == counts - 1).nonzero()")]


@mutant("ours", expects=("INV-31", "INV-33"))
def a_draft_preempts_somebody() -> Edits:
    """Blocks for drafts are needs like those of tokens."""
    return [
        Edit(
            "_first_without_block",
            "rows, needs = _growth(state, shares, shares.counts)",
            "drafts = state.config.num_speculative_tokens * (shares.counts == 1)\n"
            "    rows, needs = _growth(state, shares, shares.counts + drafts)",
        ),
        Edit(
            "_first_without_block",
            "shares.left + running, running",
            "shares.left + running * state.config.block_size, running",
        ),
    ]


@mutant("ours", expects=("INV-33",))
def a_draft_keeps_an_arrival_out() -> Edits:
    """Admission counts the blocks that drafts may want as taken."""
    return [
        Edit(
            "_admit",
            "spare = pool.available - sum(promised.tolist())",
            "spare = pool.available - sum(promised.tolist())\n"
            "    spare -= shares.able if config.num_speculative_tokens else 0",
        )
    ]


@mutant("ours", expects=("INV-33", "INV-37"))
def a_decode_row_waits_for_drafts() -> Edits:
    """The budget goes to rows with all their drafts, as far as it lasts."""
    return [
        Edit(
            "_divide",
            "        left -= len(single)\n",
            "        counts[single[-(-left // (1 + config.num_speculative_tokens)) :]] = 0\n"
            "        left -= len(single)\n",
        )
    ]


@mutant("ours", expects=("INV-37",))
def only_the_eldest_guesses() -> Edits:
    """Tokens and blocks that are left go to the drafts of one row."""
    return [Edit("_share", "wanted = _wanted(state, seats, counts)", _ELDEST)]


@mutant("ours", expects=("INV-37",))
def a_draft_opens_no_block() -> Edits:
    """Drafts stop at the end of the row's last block, whatever is free."""
    return [Edit("_share", "if complete else 0", "if not complete else 0")]


@mutant("ours", expects=("INV-13",))
def drafts_cost_no_tokens() -> Edits:
    """The token budget is divided without drafts, which come on top."""
    return [Edit("_share", "np.clip(budget - (wanted.cumsum() - wanted), 0, wanted)", "wanted")]


@mutant("M27", "B92", expects=("INV-13", "INV-36", "kernel"))
def a_draft_stands_for_the_last_token() -> Edits:
    """The last token, which needs no position, may be a draft as well."""
    return [Edit("_wanted", "columns.final[seats] - 1 - known", "columns.final[seats] - known")]


@mutant("ours", expects=("INV-36",))
def a_prompt_has_drafts() -> Edits:
    """A prompt that lacks its last token counts as a decode row."""
    return [Edit("_wanted", " & (scheduled >= columns.prompt[seats])", "")]


@mutant("ours", expects=("INV-20",))
def drafts_of_the_dead_are_counted() -> Edits:
    """Drafts of requests that have ended count as drafted."""
    return [Edit("take_in", "_sampling_drafts(batch)[live].sum()", "_sampling_drafts(batch).sum()")]
