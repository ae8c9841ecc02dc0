"""Defects of the tiers behind KV memory: what counts, or is let go, before a copy is complete."""

from stepahead_specs.mutants.patching import Edit
from stepahead_specs.mutants.registry import Edits, tier_mutant

_PAGES = "        state.pages.release(transfer.pages, 0)\n"
_RELEASE_STORED = f"    if transfer.kind is not TransferKind.LOAD:\n{_PAGES}"
_RELEASE_LOADED = f"    if transfer.kind is TransferKind.LOAD:\n{_PAGES}"


@tier_mutant("M21", "B78", expects=("INV-17", "INV-4"))
def the_source_of_a_load_is_not_pinned() -> Edits:
    """A host page may be reused while it is being copied to the NPU."""
    return [
        Edit("_start", "    state.pages.hit(reload.pages)\n", ""),
        Edit("_close", "    state.pages.release(transfer.pages, 0)\n", _RELEASE_STORED),
    ]


@tier_mutant("B79", "B82", expects=("INV-17", "INV-4"))
def the_target_of_a_store_is_free_at_once() -> Edits:
    """A host page may be reused while a copy to it is outstanding."""
    return [
        Edit(
            "_store",
            "    pages = state.pages.take(count).blocks\n",
            "    pages = state.pages.take(count).blocks\n    state.pages.release(pages, 0)\n",
        ),
        Edit("_close", "    state.pages.release(transfer.pages, 0)\n", _RELEASE_LOADED),
    ]


@tier_mutant("M22", "B81", "B85", expects=("INV-2", "INV-4"))
def the_source_of_a_store_is_not_pinned() -> Edits:
    """A block may be written again while it is being copied to the host."""
    return [
        Edit("_store", "        state.pool.hit(blocks)\n", "        pass\n"),
        Edit(
            "_close",
            "    state.pool.release(transfer.held, 0)\n",
            "    if transfer.kind is TransferKind.LOAD:\n"
            "        state.pool.release(transfer.held, 0)\n",
        ),
    ]


@tier_mutant("M22", "B85", expects=("INV-17",))
def nobody_waits_for_a_write_back() -> Edits:
    """A batch is dispatched while the old content of its new blocks is still being copied."""
    return [
        Edit(
            "dispatch_next",
            "if state.ledger.open and state.ledger.guards(batch.grant.blocks):",
            "if False:",
        )
    ]


@tier_mutant("M23", "B80", expects=("INV-5",))
def a_failed_store_counts_as_success() -> Edits:
    """A page gets its key though the copy to it came to nothing."""
    return [
        Edit(
            "fail",
            "    state.counters.failed_transfers += 1\n",
            "    state.counters.failed_transfers += 1\n"
            "    if transfer.kind is not TransferKind.LOAD:\n"
            "        state.pages.commit(transfer.pages, transfer.keys)\n",
        )
    ]


@tier_mutant("M22", "B50", expects=("INV-5",))
def a_page_is_published_when_its_store_begins() -> Edits:
    """A page gets its key when the copy to it is asked for."""
    return [
        Edit(
            "_store",
            "    pages = state.pages.take(count).blocks\n",
            "    pages = state.pages.take(count).blocks\n    state.pages.commit(pages, keys)\n",
        )
    ]


@tier_mutant("B06", "B05", expects=("INV-5",))
def loaded_blocks_are_published_when_their_load_begins() -> Edits:
    """A block gets its key when the copy to it is asked for."""
    return [
        Edit(
            "_start",
            "    ledger.enter(load)\n",
            "    ledger.enter(load)\n    pool.commit(blocks, reload.keys)\n",
        )
    ]


@tier_mutant("B72", "B88", expects=("INV-5", "kernel"))
def a_failed_load_counts_as_success() -> Edits:
    """Blocks that a load did not fill get their keys."""
    return [
        Edit(
            "fail",
            "    _void(state, transfer)\n",
            "    if transfer.kind is TransferKind.LOAD:\n"
            "        state.pool.commit(transfer.blocks, transfer.keys)\n",
        )
    ]


@tier_mutant("B72", expects=("INV-9", "INV-28", "kernel"))
def rows_outlive_the_load_that_they_ran_on() -> Edits:
    """A layer-wise load fails, and the rows that ran on it are not discarded."""
    return [Edit("fail", "    _void(state, transfer)\n", "")]


@tier_mutant("M25", "B84", expects=("INV-17", "INV-9", "kernel"))
def a_cancel_releases_the_blocks_of_a_load() -> Edits:
    """A request that ends while it loads gives back the blocks that the copy still writes."""
    return [
        Edit(
            "State.end",
            "    self.ledger.loading.pop(stay.handle, None)\n",
            "    load = self.ledger.open.get(self.ledger.loading.pop(stay.handle, 0))\n"
            "    if load is not None:\n"
            "        self.pool.release(load.held, 0)\n"
            "        self.pages.release(load.pages, 0)\n"
            "        self.ledger.leave(load)\n",
        )
    ]


@tier_mutant("M37", "B20", "B32", expects=("INV-6", "INV-17"))
def the_prefix_before_a_load_is_not_pinned() -> Edits:
    """The cached blocks in front of a load may be reused while it runs."""
    return [
        Edit("_start", "    pool.hit(cached)\n", ""),
        Edit("_start", "prefix=cached,", "prefix=EMPTY,"),
    ]


@tier_mutant("B30", "B05", expects=("INV-9", "INV-4"))
def a_load_for_a_request_that_left_is_never_closed() -> Edits:
    """The end of a load is not looked at when nobody waits for it, and what it held stays held."""
    return [
        Edit(
            "_close",
            "    state.pool.release(transfer.held, 0)\n",
            "    if transfer.kind is TransferKind.LOAD and not state.ledger.waited_for(\n"
            "        transfer.transfer_id\n"
            "    ):\n"
            "        return\n"
            "    state.pool.release(transfer.held, 0)\n",
        )
    ]


@tier_mutant("B31", "B86", expects=("INV-9", "INV-17"))
def a_late_load_is_taken_for_a_good_one() -> Edits:
    """What comes after the deadline still counts, and its blocks are let go at the deadline."""
    return [
        Edit(
            "expire",
            "            state.ledger.give_up(load)\n",
            "            state.ledger.give_up(load)\n"
            "            state.pool.release(load.held, 0)\n"
            "            state.pages.release(load.pages, 0)\n"
            "            state.ledger.leave(load)\n",
        )
    ]


@tier_mutant("ours", expects=("INV-17",))
def a_load_asks_for_what_the_lookup_did_not_find() -> Edits:
    """Cached blocks make room for a load of content that the remote store has not."""
    return [Edit("find", "keys[cached : stay.remote_blocks]", "keys[cached:]")]


@tier_mutant("ours", expects=("INV-17",))
def a_lookup_is_counted_from_behind_the_cached_prefix() -> Edits:
    """What was found from the first block on is asked for from the first missing one on."""
    return [
        Edit("find", "keys[cached : stay.remote_blocks]", "keys[cached:][: stay.remote_blocks]")
    ]


@tier_mutant("M39", "B128", expects=("INV-18",))
def a_reset_during_a_transfer_is_done() -> Edits:
    """Content is forgotten while a copy of it is under way, which then brings it back."""
    return [
        Edit(
            "_reset",
            "if len(state.order) or state.outstanding or state.ledger.open:",
            "if len(state.order) or state.outstanding:",
        )
    ]


@tier_mutant("M39", "B128", expects=("INV-18",))
def a_reset_clears_one_tier() -> Edits:
    """A reset of everything forgets what is on the NPU, and the host keeps its pages."""
    return [Edit("_reset", "        tiers.append(state.pages)\n", "        pass\n")]


@tier_mutant("M39", "B130", expects=("INV-19",))
def a_pause_does_not_wait_for_transfers() -> Edits:
    """A pause is reported while something is still being copied."""
    return [
        Edit(
            "report_pause",
            "if not state.outstanding and not state.ledger.open:",
            "if not state.outstanding:",
        )
    ]


@tier_mutant("ours", "B130", expects=("INV-35",))
def a_kernel_is_idle_during_transfers() -> Edits:
    """Work in flight that is no batch is forgotten when somebody asks whether there is any."""
    return [
        Edit("Kernel.idle", " and not state.ledger.open", ""),
    ]


@tier_mutant("B78", "B82", expects=("INV-17",))
def two_loads_read_one_page_at_once() -> Edits:
    """A request loads what is being loaded for somebody else."""
    return [
        Edit(
            "must_wait",
            "    return any(np.isin(reload.pages, load.pages).any() for load in ledger.loads())\n",
            "    return False\n",
        )
    ]


@tier_mutant("B82", "B84", expects=("INV-17",))
def a_store_files_its_blocks_under_each_others_keys() -> Edits:
    """Several blocks are written back at once, and their keys are taken in another order."""
    return [
        Edit(
            "take",
            "receipt.forgotten[keyed], TransferKind.WRITE_BACK",
            "receipt.forgotten[keyed][::-1], TransferKind.WRITE_BACK",
        )
    ]


@tier_mutant("B06", "B72", expects=("INV-17", "INV-6"))
def a_request_runs_before_its_load() -> Edits:
    """A request that should wait for its blocks gets them while they are being filled."""
    return [
        Edit("begin", "return load.blocks if load.layerwise else None", "return load.blocks"),
        Edit("_start", "    if load.layerwise:\n", "    if True:\n"),
    ]


@tier_mutant("B80", expects=("INV-32",))
def a_complete_store_is_not_published() -> Edits:
    """What was copied to the host is never found there."""
    return [Edit("complete", "        state.pages.commit(transfer.pages, transfer.keys)\n", "")]


@tier_mutant("B86", expects=("INV-20", "INV-5"))
def a_failed_store_is_counted_as_stored() -> Edits:
    """The gauge of stored blocks grows with every report."""
    return [
        Edit(
            "fail",
            "    state.counters.failed_transfers += 1\n",
            "    state.counters.failed_transfers += 1\n"
            "    state.counters.stored_blocks += len(transfer.pages)\n",
        )
    ]
