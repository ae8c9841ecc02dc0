"""What a draft may take, and what is left of it when it was wrong."""

from collections.abc import Iterator

from stepahead_specs.invariants.registry import invariant
from stepahead_specs.invariants.service import free_blocks, nobody_lacks, spare_blocks
from stepahead_specs.observation import Observation
from stepahead_specs.records import QUEUED, RequestAccount


@invariant("INV-36", source="design: speculation is eager, and goes by a sampled token")
def drafts_follow_one_sampled_token(seen: Observation) -> Iterator[str]:
    """Only a row that reads one sampled token has drafts, no more than may be, and not ahead."""
    limits = seen.limits
    for batch in seen.now.selected:
        for row in batch.rows:
            most = 0 if limits.lookahead else seen.drafts_max(row)
            if not 0 <= row.drafts <= most:
                yield (
                    f"the row of request {row.handle} in batch {batch.ident} reads "
                    f"{row.count - row.drafts} known tokens from {row.position} on and has "
                    f"{row.drafts} drafts, {most} may be"
                )


@invariant("INV-36", source="design: rejected positions are rolled back in both counts")
def a_rejected_draft_leaves_nothing(seen: Observation) -> Iterator[str]:
    """Settled are positions of known tokens only; with no row out, nothing more is scheduled."""
    if seen.account is None:
        return
    for handle, account in seen.account.requests.items():
        request = seen.requests.get(handle)
        if request is None or not request.live or account.state == QUEUED:
            continue
        if account.settled > request.known - 1:
            yield (
                f"request {handle} has {account.settled} settled positions, and its "
                f"{request.known} known tokens can have {request.known - 1}"
            )
        if account.scheduled != request.scheduled and not seen.rows_of(handle):
            yield (
                f"request {handle} has {account.scheduled} scheduled positions and no row out, "
                f"its rows and what was rejected of them leave {request.scheduled}"
            )


@invariant("INV-37", source="design: drafts come last")
def no_row_is_left_out_for_a_draft(seen: Observation) -> Iterator[str]:
    """Beside drafts, every running request that lacks one token only has its row."""
    drafted = [row for batch in seen.now.selected for row in batch.rows if row.drafts]
    rows = [row for batch in seen.now.selected for row in batch.rows]
    if not drafted or seen.account is None or len(rows) >= seen.limits.max_concurrency:
        return
    chosen = {row.handle for row in rows}
    taken = spare_blocks(seen) > 0
    for handle, account in seen.account.requests.items():
        if account.seat is None or account.intent != "none" or handle in chosen:
            continue
        if account.known - account.scheduled == 1 and (taken or _has_place(seen, account)):
            yield f"request {handle} has no row, and request {drafted[0].handle} has drafts"


@invariant("INV-37", source="design: drafts take what is left")
def drafts_take_what_is_left(seen: Observation) -> Iterator[str]:
    """With tokens and blocks to spare, a decode row has as many drafts as may be."""
    limits, account = seen.limits, seen.account
    rows = [row for batch in seen.now.selected for row in batch.rows]
    if account is None or not limits.num_speculative_tokens or not nobody_lacks(seen):
        return
    if sum(row.count for row in rows) >= limits.max_num_batched_tokens:
        return
    for row in rows:
        most = seen.drafts_max(row)
        more = free_blocks(seen) > 0 or row.end % limits.block_size > 0
        if row.drafts < most and more:
            yield (
                f"request {row.handle} has {row.drafts} drafts of {most}, and there is room: "
                f"{free_blocks(seen)} blocks are free, its positions end at {row.end}"
            )


def _has_place(seen: Observation, account: RequestAccount) -> bool:
    """Tell whether the next position of a request fits into the blocks that it holds."""
    return account.scheduled < len(account.blocks) * seen.limits.block_size
