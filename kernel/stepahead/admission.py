"""Arrivals: who may enter the waiting line, and the one sentence for who may not."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead.arrays import EMPTY, Ints, quick
from stepahead.commands import AdmitRequest, RefusalReason, RefuseRequest
from stepahead.config import WaitingOrder
from stepahead.errors import HostContractError
from stepahead.events import RequestArrived
from stepahead.requests import Stay
from stepahead.state import State

_PRIORITY_LIMIT: Final = 1 << 20
_ARRIVALS: Final = 1 << 40
_KEY_LIMIT: Final = 1 << 30
_INT64: Final = np.dtype(np.int64)


def arrive(state: State, event: RequestArrived) -> AdmitRequest | RefuseRequest:
    """Admit the request to the waiting line, or say why not. What is refused leaves no trace.

    Raises:
        HostContractError: the request arrived later than it is reported.
    """
    if event.arrived_at > event.at:
        raise HostContractError(
            f"request {event.request_id} arrived at {event.arrived_at}, after it was reported at "
            f"{event.at}; report arrived_at <= at"
        )
    final = min(event.prompt_length + event.max_tokens, state.config.max_model_len)
    refusal = _refusal(state, event, final)
    if refusal is not None:
        state.counters.refused += 1
        reason, detail = refusal
        return RefuseRequest(request_id=event.request_id, reason=reason, detail=detail)
    config = state.config
    handle = state.next_handle
    by_priority = config.order is WaitingOrder.PRIORITY
    given = event.block_keys if config.prefix_caching else None
    keys = EMPTY if given is None else quick(given.copy())  # the host may write its own again
    stay = Stay(
        request_id=event.request_id,
        handle=handle,
        rank=(event.priority * _ARRIVALS if by_priority else 0) + handle,
        prompt=event.prompt_length,
        final=final,
        # Above the final length all floors are one: nothing but the length ends it.
        floor=min(event.prompt_length + event.min_tokens, final + 1),
        eos=-1 if event.ignore_eos or config.eos_token_id is None else config.eos_token_id,
        stops=frozenset(event.stop_token_ids),
        keys=keys,
        remote_blocks=len(keys) if event.remote_blocks is None else event.remote_blocks,
    )
    if len(keys):
        key_max = keys.item(keys.argmax())
        state.pool.learn_keys(key_max)
        if state.tiers:
            state.pages.learn_keys(key_max)
    state.next_handle += 1
    state.live[handle] = stay
    state.stop_sets += bool(stay.stops)
    state.newest[event.request_id] = handle
    state.waiting.add(stay)
    if state.waiting.head() is stay:
        state.steady = None
        state.joinable = True
    state.counters.admitted += 1
    return AdmitRequest(request_id=event.request_id, handle=handle)


def _refusal(state: State, event: RequestArrived, final: int) -> tuple[RefusalReason, str] | None:
    if event.prompt_length < 1:
        return RefusalReason.EMPTY_PROMPT, "the prompt has no token; send at least one"
    if problem := _bad_parameter(state, event):
        return RefusalReason.BAD_PARAMETERS, problem
    if state.device_failed:
        return RefusalReason.DEVICE_FAILED, "the device has failed; restart the server"
    if event.request_id in state.newest:
        detail = f"request id {event.request_id} is live; wait for its end or use another id"
        return RefusalReason.DUPLICATE_ID, detail
    return _does_not_fit(state, event, final)


def _does_not_fit(
    state: State, event: RequestArrived, final: int
) -> tuple[RefusalReason, str] | None:
    config = state.config
    if event.prompt_length >= config.max_model_len:
        detail = (
            f"the prompt has {event.prompt_length} tokens, max_model_len={config.max_model_len} "
            f"leaves room for {config.max_model_len - 1}; shorten it or raise max_model_len"
        )
        return RefusalReason.PROMPT_TOO_LONG, detail
    blocks = -(-(final - 1) // config.block_size)
    if blocks > config.num_blocks:
        detail = (
            f"prompt and output need {blocks} KV blocks, num_blocks={config.num_blocks}; lower "
            "max_tokens, shorten the prompt or raise num_blocks"
        )
        return RefusalReason.NEVER_FITS, detail
    if len(state.waiting) >= config.max_waiting:
        detail = f"{len(state.waiting)} requests wait, max_waiting={config.max_waiting}; try later"
        return RefusalReason.QUEUE_FULL, detail
    return None


def _bad_parameter(state: State, event: RequestArrived) -> str | None:
    if event.max_tokens < 1:
        return f"max_tokens={event.max_tokens}; give at least 1"
    if not 0 <= event.min_tokens <= event.max_tokens:
        return f"min_tokens={event.min_tokens}; give 0 to max_tokens={event.max_tokens}"
    if abs(event.priority) > _PRIORITY_LIMIT:
        return f"priority={event.priority}; give -{_PRIORITY_LIMIT} to {_PRIORITY_LIMIT}"
    if event.stop_token_ids and min(event.stop_token_ids) < 0:
        return f"stop_token_ids={event.stop_token_ids}; give token ids >= 0"
    return _bad_content(event, event.prompt_length // state.config.block_size)


def _bad_content(event: RequestArrived, full: int) -> str | None:
    keys, found = event.block_keys, event.remote_blocks
    problem = None if keys is None else _bad_keys(keys, full)
    named = 0 if keys is None else len(keys)
    if problem is None and found is not None and not 0 <= found <= named:
        return f"remote_blocks={found}; give None, or 0 to {named}: block_keys names so many"
    return problem


def _bad_keys(keys: Ints, full: int) -> str | None:
    if keys.ndim != 1 or len(keys) > full or keys.dtype != _INT64:
        return (
            f"block_keys is {keys.dtype} of shape {keys.shape}; give at most {full} int64, one per "
            "full block of the prompt"
        )
    if not len(keys):
        return None
    ascending = keys[1:] > keys[:-1]
    distinct = keys if np.count_nonzero(ascending) == len(ascending) else np.unique(keys)
    if distinct.item(0) < 0:
        return "block_keys holds a negative key; give integers >= 0"
    if (key := distinct.item(-1)) >= _KEY_LIMIT:
        return f"block_keys holds {key}, but keys index an array; number contents from 0 on"
    if len(distinct) < len(keys):
        return (
            "block_keys holds a key twice, but a key stands for a block and all before it; give "
            "each block of a prompt its own"
        )
    return None
