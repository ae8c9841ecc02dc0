"""Defects of what a block is said to contain."""

from stepahead_specs.mutants.patching import Edit
from stepahead_specs.mutants.registry import Edits, mutant

_SETTLED = "columns.settled.item(seat) // size"
_COMMIT = (
    "    if not batch.decode:\n"
    "        # Of dead rows as well: nobody has their seats until this batch is back.\n"
    "        commit(state, batch.seats[batch.positions < columns.prompt[batch.seats]])\n"
)


@mutant("M07", "B50", "B68", expects=("INV-5",))
def blocks_are_published_when_they_are_scheduled() -> Edits:
    """A block gets its key when a row is given its positions, not when they are written."""
    return [Edit("commit", _SETTLED, "columns.scheduled.item(seat) // size")]


@mutant("M16", "B65", "B67", expects=("INV-5", "INV-21"))
def a_prefix_is_published_at_selection() -> Edits:
    """The prompt blocks of a batch get their keys when it is selected."""
    return [
        Edit(
            "reserve",
            "    state.next_batch += 1\n",
            "    for stay in state.stays(seats):\n"
            "        written = int(columns.scheduled[stay.seat]) // state.config.block_size\n"
            "        full = min(written, len(stay.keys))\n"
            "        state.pool.commit(columns.table[stay.seat, :full].copy(), stay.keys[:full])\n"
            "    state.next_batch += 1\n",
        )
    ]


@mutant("M17", "B68", "B71", expects=("INV-5",))
def one_token_too_many_is_published() -> Edits:
    """A block gets its key one position before it is full."""
    return [Edit("commit", _SETTLED, "(columns.settled.item(seat) + 1) // size")]


@mutant("M18", "B73", expects=("INV-32",))
def a_request_is_released_before_its_blocks_are_published() -> Edits:
    """A request that ends with the batch that completed its prompt leaves nothing in the cache."""
    return [
        Edit("fill", _COMMIT, ""),
        Edit(
            "fill",
            "    _move_on(state, batch, seats)\n",
            _COMMIT + "    _move_on(state, batch, seats)\n",
        ),
    ]


@mutant("M19", "B66", expects=("INV-6",))
def a_reused_block_stays_in_the_index() -> Edits:
    """A block that is handed out forgets its key, and the key still leads to it."""
    return [
        Edit("KeyIndex._look_up", "self._keys[blocks] == keys", "blocks != UNKNOWN"),
    ]


@mutant("M19", "B67", expects=("INV-5", "INV-6"))
def a_reused_block_keeps_its_key() -> Edits:
    """A block that is handed out leaves the index and keeps its key."""
    return [Edit("BlockPool.take", "    self.key[blocks] = NO_KEY\n", "")]


@mutant("B69", expects=("INV-6",))
def a_newer_copy_leaves_the_older_its_key() -> Edits:
    """When a second block gets the same content, the first one keeps the key as well."""
    return [
        Edit("KeyIndex.put", "self.key[older] = -1", "pass"),
    ]


@mutant("B96", expects=("INV-13", "INV-28", "INV-33", "kernel"))
def a_whole_prompt_may_be_cached() -> Edits:
    """A hit may cover every known token, so that nothing is left to compute."""
    return [
        Edit(
            "_admit",
            "keys = stay.keys[: (known - 1) // config.block_size]",
            "keys = stay.keys[: known // config.block_size]",
        )
    ]


@mutant("B24", expects=("INV-6", "INV-26", "INV-21"))
def a_hit_is_rounded_up() -> Edits:
    """One block more than matched counts as cached."""
    return [
        Edit(
            "State.seat",
            "    tokens = blocks * self.config.block_size\n",
            "    tokens = blocks * self.config.block_size\n"
            "    if blocks:\n"
            "        tokens = min(tokens + self.config.block_size, stay.known - 1)\n",
        )
    ]


@mutant("B65", expects=("INV-5", "INV-6"))
def an_undone_grant_restores_a_wrong_key() -> Edits:
    """Blocks that a refused batch gives back get their old keys although others have them now."""
    return [
        Edit(
            "BlockPool.give_back",
            "(receipt.forgotten >= 0) & (self.index.find(receipt.forgotten) < 0)",
            "receipt.forgotten >= 0",
        ),
        Edit(
            "BlockPool.give_back",
            "self.index.put(receipt.forgotten[lost], blocks[lost])",
            "self.key[blocks[lost]] = receipt.forgotten[lost]",
        ),
    ]


@mutant("B27", expects=("INV-5",))
def a_cancelled_request_publishes_what_is_in_flight() -> Edits:
    """A request that ends gives keys to all its prompt blocks, written or not."""
    return [
        Edit(
            "State.end",
            "        self.vacate(stay, self.lose_rows(seat, reason))\n",
            "        full = min(int(self.columns.blocks[seat]), len(stay.keys))\n"
            "        self.pool.commit(self.columns.held(seat)[:full].copy(), stay.keys[:full])\n"
            "        self.vacate(stay, self.lose_rows(seat, reason))\n",
        )
    ]


@mutant("B128", expects=("INV-6", "INV-18"))
def a_reset_forgets_the_index_only() -> Edits:
    """After a reset blocks keep their keys."""
    return [Edit("BlockPool.forget_all", "self.key[:]", "vars(self.index)['_cells'][:]")]


@mutant("M39", "B129", expects=("INV-18",))
def a_reset_is_reported_and_not_done() -> Edits:
    """The answer to a reset is always that it is done."""
    return [
        Edit(
            "_answer",
            "ReportCacheReset(done=_reset(state, event.target))",
            "ReportCacheReset(done=_reset(state, event.target) or True)",
        )
    ]


@mutant("ours", expects=("INV-32",))
def the_blocks_of_later_chunks_are_not_published() -> Edits:
    """Only the first chunk of a prompt gives its blocks their keys."""
    return [Edit("commit", "    if upto > done:", "    if upto > done == 0:")]
