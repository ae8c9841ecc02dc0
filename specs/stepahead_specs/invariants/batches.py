"""What a batch may hold, and when it may be selected and dispatched."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from stepahead_specs.invariants.registry import invariant
from stepahead_specs.observation import Observation
from stepahead_specs.records import DISPATCHED, PREPARED, QUEUED, Batch

_CATALOGUE: Final = "catalogue of known defects"


@invariant("INV-13", source=f"{_CATALOGUE}: limits")
def batches_keep_to_the_limits(seen: Observation) -> Iterator[str]:
    """Rows, tokens per batch and per row keep to their limits, and every row computes something."""
    limits = seen.limits
    for batch in seen.now.selected:
        tokens = sum(row.count for row in batch.rows)
        if not batch.rows:
            yield f"batch {batch.ident} has no row"
        if len(batch.rows) > limits.max_concurrency:
            yield f"batch {batch.ident} has {len(batch.rows)} rows, {limits.max_concurrency} may be"
        if tokens > limits.max_num_batched_tokens:
            yield f"batch {batch.ident} has {tokens} tokens, {limits.max_num_batched_tokens} may be"
        for handle, times in Counter(row.handle for row in batch.rows).items():
            if times > 1:
                yield f"batch {batch.ident} has {times} rows of request {handle}"
        for row in batch.rows:
            where = f"the row of request {row.handle} in batch {batch.ident}"
            last = seen.requests[row.handle].final_length - 1
            if not 1 <= row.count <= limits.max_tokens_per_row:
                yield f"{where} has {row.count} tokens, 1 to {limits.max_tokens_per_row} may be"
            if row.end > last:
                yield f"{where} ends at {row.end}, its request needs no more than {last} positions"


@invariant("INV-13", source=f"{_CATALOGUE}: limits")
def outputs_keep_to_the_limits(seen: Observation) -> Iterator[str]:
    """No request gets more tokens than it asked for, or than the model has positions."""
    for handle in {token.handle for token in seen.now.emitted}:
        request = seen.requests[handle]
        if request.prompt_length + len(request.emitted) > request.final_length:
            yield (
                f"request {handle} has {len(request.emitted)} output tokens, "
                f"{request.final_length - request.prompt_length} may be"
            )


@invariant("INV-26", source="ours: a request's rows cover its positions without gap or overlap")
def rows_follow_each_other(seen: Observation) -> Iterator[str]:
    """A row starts where the one before ended, and samples exactly if it reaches the known end."""
    rows = seen.outstanding_rows() if seen.now.selected else {}
    for batch in seen.now.selected:
        for row in batch.rows:
            request = seen.requests[row.handle]
            where = f"the row of request {row.handle} in batch {batch.ident}"
            if row.position != row.after:
                yield f"{where} starts at {row.position}, the one before ended at {row.after}"
            # Tokens that are sampled by rows in flight count: their successor may be selected.
            due = request.known + sum(
                other.samples for older, other in rows.get(row.handle, ()) if older is not batch
            )
            end = row.known_end
            if row.samples != (end == due):
                yield f"{where} ends at {end} of {due}, and samples: {row.samples}"
            if end > due:
                yield f"{where} ends at {end}, only {due} tokens will be known"
            if row.position and row.position == request.cached:
                yield from _hit(seen, batch.ident, row.handle, row.position)


@invariant("INV-25", source="design: dispatch guard")
def batches_are_dispatched_one_at_a_time_in_order(seen: Observation) -> Iterator[str]:
    """A batch is dispatched when every older one is back; its mask says which requests live."""
    for batch in seen.now.dispatched:
        for older in seen.outstanding():
            if older.ident < batch.ident:
                yield f"batch {batch.ident} is dispatched and batch {older.ident} is {older.state}"
        if len(batch.live) != len(batch.rows):
            yield f"the mask of batch {batch.ident} has {len(batch.live)} rows of {len(batch.rows)}"
        for row, live in zip(batch.rows, batch.live, strict=False):
            if live != seen.counts(row):
                word = "live" if live else "dead"
                yield f"batch {batch.ident} takes request {row.handle} for {word}"
    owned = [batch.ident for batch in seen.outstanding() if batch.state == DISPATCHED]
    if len(owned) > 1:
        yield f"batches {owned} are all dispatched"


@invariant("INV-25", source="design: dispatch follows at once")
def a_prepared_batch_does_not_wait(seen: Observation) -> Iterator[str]:
    """When the oldest outstanding batch is prepared, it is dispatched in that very step.

    But for one that is to write what a store to the host still reads: it waits for that.
    """
    out = seen.outstanding()
    if out and out[0].state == PREPARED and not _awaits_a_store(seen, out[0]):
        yield f"batch {out[0].ident} is prepared, nothing is before it, and it is not dispatched"


@invariant("INV-27", source="design: select when at most lookahead batches are outstanding")
def selection_keeps_to_the_lookahead(seen: Observation) -> Iterator[str]:
    """At most one batch is selected per step, when asked, and few enough are outstanding."""
    selected = seen.now.selected
    if not selected:
        return
    if len(selected) > 1 or seen.now.event not in ("HostReady", "Woke"):
        yield f"{seen.now.event} selects {[batch.ident for batch in selected]}"
    newest = selected[-1]
    if len(seen.outstanding()) > seen.limits.lookahead + 1:
        yield (
            f"batch {newest.ident} is selected and {len(seen.outstanding())} batches are "
            f"outstanding with lookahead {seen.limits.lookahead}"
        )
    for batch in seen.outstanding():
        if batch is not newest and batch.state == QUEUED:
            yield f"batch {newest.ident} is selected while the host builds batch {batch.ident}"
    if newest.after >= newest.ident:
        yield f"batch {newest.ident} is selected after batch {newest.after}"


@invariant("INV-30", source="design: at Fill, dispatch first, then tokens, then ends")
def the_device_is_served_before_the_clients(seen: Observation) -> Iterator[str]:
    """In one answer a dispatch comes before tokens, and tokens before ends."""
    rank = {"dispatch": 0, "emit": 1, "finish": 2}
    last = "dispatch"
    for word, subject in seen.now.order:
        if word not in rank or seen.now.event != "BatchExecuted":
            continue
        if rank[word] < rank[last]:
            yield f"{word} of {subject} comes after {last}"
        last = word


def _awaits_a_store(seen: Observation, batch: Batch) -> bool:
    read = {b for t in seen.transfers.values() if t.store for b in t.blocks.tolist()}
    return any(block in read for block in batch.granted(seen.limits.block_size))


def _hit(seen: Observation, ident: int, handle: int, position: int) -> Iterator[str]:
    size = seen.limits.block_size
    where = f"batch {ident} starts request {handle} at position {position}"
    if not seen.limits.prefix_caching:
        yield f"{where}, and nothing is cached"
    if position % size or position > (seen.requests[handle].known - 1) // size * size:
        yield f"{where}, of {seen.requests[handle].known} known tokens"
