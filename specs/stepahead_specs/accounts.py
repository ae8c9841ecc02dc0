"""What our own kernel says of its state, in neutral words."""

from __future__ import annotations

from dataclasses import fields

from stepahead.kernel import Kernel
from stepahead_specs.records import Account, BlockAccount, RequestAccount


def account(kernel: Kernel) -> Account:
    """Read the whole state of a kernel."""
    audit = kernel.audit()
    keys, keyed = kernel.pool.index.known()
    return Account(
        requests={
            request.handle: RequestAccount(
                handle=request.handle,
                state=request.state.value,
                epoch=request.epoch,
                known=request.known,
                scheduled=request.scheduled,
                settled=request.settled,
                intent=request.intent.name.lower(),
                seat=request.seat,
                blocks=request.blocks,
            )
            for request in kernel.requests()
        },
        batches={batch.batch_id: batch.state.value for batch in kernel.batches()},
        blocks=[
            BlockAccount(place=block.place.value, references=block.references, key=block.key)
            for block in kernel.blocks()
        ],
        queue=kernel.pool.queued().tolist(),
        index=dict(zip(keys.tolist(), keyed.tolist(), strict=True)),
        seats_free=audit.free_seats,
        seats_draining=audit.draining_seats,
        seats=kernel.config.max_concurrency * (kernel.config.lookahead + 2),
        counters={
            entry.name: getattr(kernel.counters, entry.name) for entry in fields(kernel.counters)
        },
        idle=kernel.idle(),
        problems=audit.problems,
    )
