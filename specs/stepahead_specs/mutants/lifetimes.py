"""Defects of who holds a block or seat, and until when."""

from stepahead_specs.mutants.patching import Edit
from stepahead_specs.mutants.registry import Edits, mutant


@mutant("M01", "B01", "B04", "B05", "B10", expects=("INV-2", "INV-3"))
def blocks_are_free_as_soon_as_a_request_ends() -> Edits:
    """Blocks go back to the pool at the end of a request, though a row in flight may touch them."""
    return [
        Edit(
            "State.vacate",
            "self.columns.held(seat), fence)",
            "self.columns.held(seat), 0)",
        )
    ]


@mutant("M02", "B04", "B13", "B14", expects=("INV-2", "INV-4", "kernel"))
def a_discarded_row_releases_its_new_blocks_again() -> Edits:
    """When a batch comes back, dead rows release the blocks granted for them once more."""
    return [
        Edit(
            "fill",
            "    seats, ends = batch.seats, batch.ends\n",
            "    seats, ends = batch.seats, batch.ends\n"
            "    state.pool.release(batch.grant.blocks[~batch.live[batch.grant_rows]], 0)\n",
        )
    ]


@mutant("B12", expects=("INV-2", "INV-4", "kernel"))
def a_discarded_row_releases_the_block_of_its_token() -> Edits:
    """When a batch comes back, dead rows release the block they wrote, whoever it was opened by."""
    return [
        Edit(
            "fill",
            "    seats, ends = batch.seats, batch.ends\n",
            "    seats, ends = batch.seats, batch.ends\n"
            "    for seat, end in zip(seats[~batch.live], ends[~batch.live], strict=True):\n"
            "        last = (int(end) - 1) // state.config.block_size\n"
            "        state.pool.release(columns.table[seat, last : last + 1].copy(), 0)\n",
        )
    ]


@mutant("M03", "B22", "B27", expects=("INV-1", "INV-2"))
def blocks_of_rows_in_flight_are_forgotten() -> Edits:
    """A request that ends releases the blocks that are settled, not those of its rows in flight."""
    return [
        Edit(
            "State.vacate",
            "self.columns.held(seat), fence)",
            "self.columns.held(seat)[\n"
            "            : -(-int(self.columns.settled[seat]) // self.config.block_size)\n"
            "        ], fence)",
        )
    ]


@mutant("M04", "B11", "B12", "B24", expects=("INV-1", "INV-2"))
def the_release_is_counted_from_the_text() -> Edits:
    """The number of blocks to release is computed from the known tokens, not from the table."""
    return [
        Edit(
            "State.vacate",
            "self.columns.held(seat), fence)",
            "self.columns.held(seat)[\n"
            "            : int(self.columns.known[seat]) // self.config.block_size\n"
            "        ], fence)",
        )
    ]


@mutant("M05", "B03", expects=("INV-2", "INV-3"))
def a_seat_is_free_as_soon_as_its_request_ends() -> Edits:
    """A newcomer may get the seat, and with it the block table, of a row in flight."""
    return [Edit("State.vacate", "    if fence:\n", "    if False:\n")]


@mutant("B29", expects=("INV-1", "INV-2"))
def a_draining_seat_never_comes_back() -> Edits:
    """When the last row of an ended request is back, its seat is forgotten."""
    return [Edit("State.pass_fences", "self.columns.free_seats.append(seat)", "pass")]


@mutant("ours", expects=("INV-1",))
def a_draining_seat_waits_for_one_batch_too_many() -> Edits:
    """A seat comes back a batch after its last row: never, if that was the last batch of all."""
    return [Edit("State.vacate", "append((fence, seat))", "append((fence + 1, seat))")]


@mutant("B25", expects=("INV-1", "INV-2"))
def a_release_returns_early() -> Edits:
    """A request that ends with rows in flight gives up its seat and keeps its blocks."""
    return [
        Edit(
            "State.vacate",
            "    self.pool.release(self.columns.held(seat), fence)\n",
            "    if not fence:\n        self.pool.release(self.columns.held(seat), fence)\n",
        )
    ]


@mutant("M36", "B16", "B17", expects=("INV-2",))
def the_line_of_free_blocks_takes_a_block_twice() -> Edits:
    """A block that waits for a fence is listed, and put in line, for every time it was released."""
    return [
        Edit("BlockPool._wait", "blocks[self._position[blocks] != _LISTED]", "blocks"),
    ]


@mutant("B76", expects=("INV-2",))
def waiting_blocks_are_counted_by_reference() -> Edits:
    """A block that goes pending is counted even if somebody else still holds it."""
    return [
        Edit(
            "BlockPool.release",
            "    return len(loose)\n",
            "    shared = blocks[left > 0]\n"
            "    self.pending_count += int((self.fence[shared] > self.passed).sum())\n"
            "    return len(loose)\n",
        )
    ]


@mutant("B74", expects=("INV-2", "INV-4", "kernel"))
def the_last_block_of_a_hit_is_not_pinned() -> Edits:
    """All blocks of a cached prefix get a reference, but the deepest one."""
    return [
        Edit(
            "BlockPool.hit",
            "self.references[blocks] = held + ONE",
            "self.references[blocks[:-1]] = held[:-1] + ONE",
        )
    ]


@mutant("B01", "B02", expects=("INV-3",))
def whoever_lets_go_last_does_not_wait() -> Edits:
    """A shared block remembers no fence while others hold it, so the last one frees it at once."""
    return [
        Edit(
            "BlockPool.release",
            "self.fence[blocks] = maximum(self.fence[blocks], fence)",
            "self.fence[loose] = maximum(self.fence[loose], fence)",
        ),
        Edit(
            "BlockPool.release",
            "self.fence[blocks] = self._newest_fence = fence",
            "self.fence[loose] = self._newest_fence = fence",
        ),
    ]


@mutant("B18", expects=("INV-2", "INV-4", "kernel"))
def the_end_and_the_preemption_both_release() -> Edits:
    """A preempted request is released on its way to the line and once more when it is seated."""
    return [
        Edit(
            "State.requeue",
            "    self.vacate(stay, fence)\n",
            "    self.pool.release(self.columns.held(stay.seat).copy(), 0)\n"
            "    self.vacate(stay, fence)\n",
        )
    ]


@mutant("ours", expects=("INV-3",))
def a_fence_passes_one_batch_early() -> Edits:
    """The fence of the oldest outstanding batch counts as passed while that batch is out."""
    return [
        Edit(
            "State.pass_fences",
            "self.pool.pass_fence(oldest - 1)",
            "self.pool.pass_fence(oldest)",
        )
    ]


@mutant("ours", expects=("INV-1", "INV-2", "INV-15"))
def a_fence_never_passes_when_nothing_is_left() -> Edits:
    """With no batch outstanding, fences are compared with the newest batch, which never passes."""
    return [
        Edit(
            "State.pass_fences",
            "if self.outstanding else self.next_batch",
            "if self.outstanding else self.next_batch - 1",
        )
    ]


@mutant("ours", expects=("INV-2", "INV-3"))
def pruned_rows_free_more_than_their_own() -> Edits:
    """When dead rows are left out of a batch, blocks that wait for any batch are free as well."""
    return [
        Edit(
            "BlockPool.drop_fence",
            "dropped = blocks[self.fence[blocks] == fence]",
            "dropped = blocks",
        )
    ]


@mutant("M34", "B29", "B35", expects=("INV-2", "INV-4", "INV-21"))
def a_refused_batch_keeps_its_blocks() -> Edits:
    """The blocks that were reserved for a batch stay with its requests when it is refused."""
    return [
        Edit("undo", "    pool.give_back(batch.grant.subset(kept))\n", ""),
        Edit(
            "undo",
            "columns.blocks[seats] -= np.bincount(",
            "columns.blocks[seats] -= 0 * np.bincount(",
        ),
    ]


@mutant("B21", expects=("INV-2", "INV-4", "kernel"))
def blocks_are_given_back_before_they_leave_the_table() -> Edits:
    """A refused batch returns its blocks, and the table still counts them."""
    return [
        Edit(
            "undo",
            "columns.blocks[seats] -= np.bincount(",
            "columns.blocks[seats] -= 0 * np.bincount(",
        ),
    ]


@mutant("B29", "B32", expects=("INV-2", "INV-4"))
def a_refused_admission_keeps_its_hit() -> Edits:
    """A request that returns to the line keeps the references on the prefix it had hit."""
    return [Edit("undo", "        pool.undo_hit(receipt)\n", "")]


@mutant("M14", "B40", expects=("INV-9", "INV-21"))
def a_refused_batch_stays_scheduled() -> Edits:
    """The positions of a batch that was refused still count as given to rows."""
    return [Edit("undo", "    columns.scheduled[seats] = batch.positions[live]\n", "")]
