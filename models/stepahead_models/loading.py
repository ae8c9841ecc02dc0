"""From a trace and its plan to the requests of a run."""

from __future__ import annotations

from stepahead_models.tokens import Prompts
from stepahead_models.traces import RequestPlan, Trace, block_keys
from stepahead_models.workload import Workload, no_keys


def load_workload(
    trace: Trace,
    plan: RequestPlan,
    *,
    block_size: int,
    vocab_size: int,
    prefix_caching: bool = True,
) -> Workload:
    """Return the requests of a trace for a kernel with blocks of ``block_size`` tokens.

    Args:
        trace: the requests.
        plan: their limits and ends.
        block_size: tokens per KV block.
        vocab_size: prompt token ids are below it.
        prefix_caching: tell the kernel which prompt blocks are equal.
    """
    prompts = Prompts(
        request_ids=trace.request_ids,
        lengths=trace.input_lengths,
        vocab_size=vocab_size,
        hash_offsets=trace.hash_offsets,
        hash_ids=trace.hash_ids,
        hash_block_size=trace.hash_block_size,
    )
    shares = prefix_caching and trace.hash_block_size > 0
    return Workload(
        prompts=prompts,
        arrivals_ns=trace.arrivals_ns,
        max_tokens=plan.max_tokens,
        eos_at=plan.eos_at,
        cancel_after_ns=trace.cancel_after_ns,
        cancel_after_tokens=trace.cancel_after_tokens,
        priorities=trace.priorities,
        block_keys=block_keys(trace, block_size).keys_of if shares else no_keys,
    )
