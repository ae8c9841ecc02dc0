"""Which token goes in, which comes out, whose it is, and in which order."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from stepahead_specs.invariants.registry import invariant
from stepahead_specs.observation import Observation
from stepahead_specs.records import Batch, Request, Row

_CATALOGUE: Final = "catalogue of known defects"


@invariant("INV-7", source=f"{_CATALOGUE}: fill-in")
def every_input_is_a_token_of_its_own_request(seen: Observation) -> Iterator[str]:
    """Each sampled token that a dispatched live row reads is given once, as it came back."""
    for batch in seen.now.dispatched:
        for index, row in enumerate(batch.rows):
            if index < len(batch.live) and batch.live[index]:
                yield from _inputs(batch, index, row, seen.requests[row.handle])


@invariant("INV-8", source=f"{_CATALOGUE}: placeholders")
def no_placeholder_is_seen(seen: Observation) -> Iterator[str]:
    """Tokens in histories, fills and emissions are values, never negative marks."""
    for batch in seen.now.selected:
        for handle, position, value in batch.history:
            if value < 0:
                yield f"batch {batch.ident} is told {value} at {position} of request {handle}"
    for batch in seen.now.dispatched:
        for index, value in batch.fills:
            if value < 0:
                yield f"row {index} of batch {batch.ident} is filled with {value}"
    for token in seen.now.emitted:
        if token.value < 0:
            yield f"request {token.handle} is sent {token.value} by batch {token.batch}"


@invariant("INV-9", source=f"{_CATALOGUE}: ledger")
def counts_equal_the_rows_in_flight(seen: Observation) -> Iterator[str]:
    """Scheduled minus settled is the sum of the outstanding rows; known is what came back."""
    if seen.account is None:
        return
    outstanding = seen.outstanding_rows()
    for handle, account in seen.account.requests.items():
        request = seen.alive.get(handle)
        if request is None or not request.live:
            continue
        rows = outstanding.get(handle, [])
        out = sum(row.count for _, row in rows)
        if account.scheduled - account.settled != out:
            where = ", ".join(str(batch.ident) for batch, _ in rows) or "none"
            yield (
                f"request {handle} has {account.scheduled} scheduled and {account.settled} settled "
                f"positions, its outstanding rows (batches {where}) hold {out}"
            )
        if account.known != request.known:
            yield f"request {handle} knows {account.known} tokens, {request.known} are known"
        if rows and account.scheduled != request.scheduled:
            yield (
                f"request {handle} has {account.scheduled} scheduled positions, "
                f"its rows up to batch {rows[-1][0].ident} end at {request.scheduled}"
            )


@invariant("INV-10", source=f"{_CATALOGUE}: results by identity")
def results_reach_their_own_stay_and_epoch(seen: Observation) -> Iterator[str]:
    """A token goes out only for the request, epoch and position of the row that sampled it."""
    returned = {(token.handle, token.index): token for token in seen.now.returned}
    for token in seen.now.emitted:
        origin = returned.get((token.handle, token.index))
        if origin is None:
            yield (
                f"batch {token.batch} emits output {token.index} of request {token.handle}, "
                "which no live row sampled in this step"
            )
        elif (origin.value, origin.batch) != (token.value, token.batch):
            yield (
                f"batch {token.batch} emits {token.value} as output {token.index} of request "
                f"{token.handle}, batch {origin.batch} sampled {origin.value}"
            )
        elif origin.epoch != seen.requests[token.handle].epoch:
            yield (
                f"output {token.index} of request {token.handle} comes from epoch {origin.epoch}, "
                f"it is in epoch {seen.requests[token.handle].epoch}"
            )


@invariant("INV-10", source=f"{_CATALOGUE}: results by identity")
def an_epoch_ends_with_its_last_row(seen: Observation) -> Iterator[str]:
    """A request starts a new epoch, with a higher number, only when no older row is outstanding."""
    rows = seen.outstanding_rows() if seen.now.selected else {}
    for batch in seen.now.selected:
        for row in batch.rows:
            for older, other in rows.get(row.handle, ()):
                if other.epoch != row.epoch:
                    yield (
                        f"request {row.handle} is in epoch {row.epoch} in batch {batch.ident}, in "
                        f"epoch {other.epoch} in outstanding batch {older.ident}"
                    )


@invariant("INV-11", source=f"{_CATALOGUE}: each position once")
def outputs_go_out_once_and_in_order(seen: Observation) -> Iterator[str]:
    """Each token that came back for a live request goes out at once, at the next output index."""
    counted = Counter((token.handle, token.index) for token in seen.now.emitted)
    for (handle, index), times in counted.items():
        if times > 1:
            yield f"output {index} of request {handle} goes out {times} times"
    for token in seen.now.returned:
        if not counted[token.handle, token.index]:
            yield f"output {token.index} of request {token.handle} from batch {token.batch} is lost"
    for handle, times in Counter(token.handle for token in seen.now.emitted).items():
        emitted = seen.requests[handle].emitted
        before = max(len(emitted) - times, 0)
        for place, token in enumerate(emitted[before:], start=before):
            if token.index != place:
                yield f"request {handle} gets output {token.index} at place {place}"
                break


@invariant("INV-14", source=f"{_CATALOGUE}: eager and overlap agree")
def outputs_are_those_of_a_run_alone(seen: Observation) -> Iterator[str]:
    """Every token that goes out is the one that an eager, unbatched run gives at that place."""
    if seen.truth is None:
        return
    for token in seen.now.emitted:
        expected, _ = seen.truth(token.handle)
        if token.index >= len(expected):
            yield (
                f"request {token.handle} gets output {token.index} from batch {token.batch}, "
                f"alone it gives {len(expected)} tokens"
            )
        elif expected[token.index] != token.value:
            yield (
                f"output {token.index} of request {token.handle} from batch {token.batch} is "
                f"{token.value}, alone it is {expected[token.index]}"
            )


@invariant("INV-14", source=f"{_CATALOGUE}: eager and overlap agree")
def ends_are_those_of_a_run_alone(seen: Observation) -> Iterator[str]:
    """A request that is not cancelled ends where and why it ends when it runs alone."""
    if seen.truth is None:
        return
    for handle in seen.now.finished:
        request = seen.requests[handle]
        if request.finish not in ("stop", "length"):
            continue
        expected, reason = seen.truth(handle)
        if (len(request.emitted), request.finish) != (len(expected), reason):
            yield (
                f"request {handle} ends by {request.finish} after {len(request.emitted)} tokens, "
                f"alone by {reason} after {len(expected)}"
            )


@invariant("INV-29", source="ours: an end has a cause, and a cause ends at once")
def an_end_follows_from_the_tokens(seen: Observation) -> Iterator[str]:
    """A request ends by stop or length exactly in the step whose token says so."""
    # Of several tokens of one row only the last may end it: what is behind an end never returned.
    newest = {token.handle: token for token in seen.now.returned}
    for token in newest.values():
        request = seen.requests[token.handle]
        if request.cancelled_at is not None or request.failed:
            continue
        due = seen.ends_by(request, token.index, token.value)
        if due != request.finish:
            yield (
                f"after output {token.index} from batch {token.batch} request {token.handle} "
                f"is {_ended(request.finish)}, it should be {_ended(due)}"
            )
    for handle in seen.now.finished:
        if seen.requests[handle].finish in ("stop", "length") and handle not in newest:
            yield f"request {handle} ends by {seen.requests[handle].finish} without a new token"


def _ended(reason: str | None) -> str:
    return "live" if reason is None else f"ended by {reason}"


def _inputs(batch: Batch, index: int, row: Row, request: Request) -> Iterator[str]:
    given = [(p, value) for handle, p, value in batch.history if handle == row.handle]
    fills = [value for at, value in batch.fills if at == index]
    given.extend((row.known_end - 1, value) for value in fills)
    where = f"row {index} of batch {batch.ident} (request {request.handle})"
    needed = range(max(row.position, request.prompt_length), row.known_end)
    times = Counter(position for position, _ in given)
    for position in needed:
        if times[position] != 1:
            yield f"{where} is given the token of position {position} {times[position]} times"
    for position, value in given:
        output = position - request.prompt_length
        if position not in needed:
            yield f"{where} is given a token for position {position}, which it does not wait for"
        elif output >= len(request.sampled):
            yield f"{where} is given {value} for position {position}, which is not sampled yet"
        elif request.sampled[output].value != value:
            origin = request.sampled[output]
            yield (
                f"{where} is given {value} for position {position}, "
                f"batch {origin.batch} sampled {origin.value}"
            )
