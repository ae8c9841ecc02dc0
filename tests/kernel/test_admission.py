"""Who may enter, by a rule of one line each, on and around every limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead import Kernel, KernelConfig
from stepahead.arrays import Ints
from stepahead.commands import AdmitRequest, PrepareBatch, RefusalReason, RefuseRequest
from stepahead.config import WaitingOrder
from stepahead.events import BatchExecuted, BatchPrepared, HostReady, RequestArrived

KEY_LIMIT = 2**30
PLAIN = KernelConfig(num_blocks=4, block_size=2, max_model_len=8, max_waiting=3)
GOOD = RequestArrived(request_id="a", prompt_length=4, max_tokens=2, at=0, arrived_at=0)


def bad_keys(keys: Ints | None, prompt: int) -> bool:
    """Tell whether these cannot be the keys of a prompt's blocks of two tokens."""
    if keys is None:
        return False
    if keys.ndim != 1 or keys.dtype != np.int64 or len(keys) > prompt // 2:
        return True
    named: list[int] = keys.tolist()
    return any(not 0 <= key < KEY_LIMIT for key in named) or len(set(named)) < len(named)


def refused(event: RequestArrived, config: KernelConfig) -> RefusalReason | None:
    """Return why an empty kernel refuses the request."""
    final = min(event.prompt_length + event.max_tokens, config.max_model_len)
    named = 0 if event.block_keys is None else event.block_keys.size
    bad = (
        event.max_tokens < 1
        or not 0 <= event.min_tokens <= event.max_tokens
        or not -(2**20) <= event.priority <= 2**20
        or min(event.stop_token_ids, default=0) < 0
        or bad_keys(event.block_keys, event.prompt_length)
        or not (event.remote_blocks is None or 0 <= event.remote_blocks <= named)
    )
    if event.prompt_length < 1:
        return RefusalReason.EMPTY_PROMPT
    if bad:
        return RefusalReason.BAD_PARAMETERS
    if event.prompt_length >= config.max_model_len:
        return RefusalReason.PROMPT_TOO_LONG
    # The last token is sampled and never computed, so it needs no KV.
    return RefusalReason.NEVER_FITS if final - 1 > 2 * config.num_blocks else None


key_arrays = st.one_of(
    st.none(),
    st.lists(st.sampled_from([0, 1, 2, 3, KEY_LIMIT - 1, KEY_LIMIT, -1, 1 << 62]), max_size=4).map(
        lambda keys: np.array(keys, dtype=np.int64)
    ),
    st.permutations([0, 5, 9]).map(lambda keys: np.array(keys, dtype=np.int64)),
    st.sampled_from([np.array([[1, 2]]), np.array([1.0]), np.array([1], dtype=np.int32)]),
)
arrivals = st.builds(
    RequestArrived,
    request_id=st.just("a"),
    prompt_length=st.integers(-1, 9),
    max_tokens=st.sampled_from([0, 1, 2, 3, 9, 1 << 70]),
    at=st.just(5),
    arrived_at=st.sampled_from([0, 5]),
    priority=st.sampled_from([0, 2**20, -(2**20), 2**20 + 1, -(2**20) - 1]),
    min_tokens=st.sampled_from([0, 0, 1, 2, 3, 10, -1]),
    stop_token_ids=st.sampled_from([(), (), (0,), (1, 0), (3, -1), (-1, 3)]),
    block_keys=key_arrays,
    remote_blocks=st.sampled_from([None, None, 0, 1, 2, 3, -1]),
)
configs = st.builds(
    replace,
    st.just(PLAIN),
    num_blocks=st.sampled_from([2, 3, 4]),
    max_model_len=st.sampled_from([6, 8, 40]),
    order=st.sampled_from(WaitingOrder),
    prefix_caching=st.booleans(),
)


def ints(*keys: int) -> Ints:
    """Return keys as an array."""
    return np.array(keys, dtype=np.int64)


#: For each field of a request, what is on and around its limits.
AROUND: dict[str, tuple[object, ...]] = {
    "prompt_length": (-1, 0, 1, 2, 5, 6, 7, 8, 9, 39, 40),
    "max_tokens": (0, 1, 2, 9, 1 << 70),
    "arrived_at": (0, 4, 5),
    "priority": (1, 2**20, -(2**20), 2**20 + 1, -(2**20) - 1),
    "min_tokens": (-1, 1, 2, 3),
    "ignore_eos": (True,),
    "stop_token_ids": ((0,), (1, 0), (0, -1), (-1,)),
    "block_keys": (
        *(ints(), ints(0), ints(4, 2), ints(2, 4), ints(3, 3), ints(3, 4, 3), ints(4, 2, 1)),
        *(ints(KEY_LIMIT - 1), ints(0, KEY_LIMIT), ints(0, -1), ints(1, 2, 3), ints(1, 2, 3, 4)),
        *(ints(1, 2).reshape(1, 2), np.array([1.0]), np.array([1], dtype=np.int32)),
    ),
    "remote_blocks": (-1, 0, 1),
}
CONFIGS = [
    PLAIN,
    replace(PLAIN, num_blocks=2),
    replace(PLAIN, max_model_len=6),
    replace(PLAIN, max_model_len=40, num_blocks=19),
    replace(PLAIN, prefix_caching=False, order=WaitingOrder.PRIORITY),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("field", AROUND)
def test_one_limit_at_a_time(field: str, config: KernelConfig) -> None:
    """On the limit one enters, beyond it one is refused."""
    base = replace(GOOD, prompt_length=6, max_tokens=2, at=5)
    for value in AROUND[field]:
        enters_or_not(replace(base, **{field: value}), config)  # type: ignore[arg-type] # as declared


@given(arrivals, configs)
def test_a_request_enters_unless_a_limit_speaks_against_it(
    event: RequestArrived, config: KernelConfig
) -> None:
    """The first reason in the order of the rules is the one that is told."""
    enters_or_not(event, config)


def enters_or_not(event: RequestArrived, config: KernelConfig) -> None:
    """Check the answer of an empty kernel; a refusal leaves no trace, who enters waits as asked."""
    kernel = Kernel(config)
    before = kernel.digest()
    (answer,) = kernel.step(event)
    reason = refused(event, config)
    if reason is not None:
        assert isinstance(answer, RefuseRequest)
        assert answer.reason is reason
        assert kernel.digest() == before
        assert (kernel.counters.refused, kernel.counters.admitted) == (1, 0)
        return
    assert answer == AdmitRequest(request_id="a", handle=1)
    assert (kernel.counters.refused, kernel.counters.admitted) == (0, 1)
    (view,) = kernel.requests()
    final = min(event.prompt_length + event.max_tokens, config.max_model_len)
    assert (view.prompt, view.final, view.known) == (event.prompt_length, final, view.prompt)
    assert kernel.waiting == 1


@given(
    st.lists(st.sampled_from([0, 1, -1, 2**20, -(2**20)]), min_size=1, max_size=12),
    st.sampled_from(WaitingOrder),
)
def test_the_line_is_in_order_of_priority_then_of_arrival(
    priorities: list[int], order: WaitingOrder
) -> None:
    """Whoever is first gets the only row; without priority order, priorities mean nothing."""
    config = replace(PLAIN, max_concurrency=1, max_waiting=20, order=order)
    kernel = Kernel(config)
    for number, priority in enumerate(priorities):
        event = replace(GOOD, request_id=str(number), priority=priority, max_tokens=1)
        assert isinstance(kernel.step(event)[0], AdmitRequest)
    expected = list(enumerate(priorities, start=1))
    if order is WaitingOrder.PRIORITY:
        expected.sort(key=lambda entry: entry[1])
    served: list[int] = []
    while kernel.waiting:
        (command,) = kernel.step(HostReady(at=0))
        assert isinstance(command, PrepareBatch)
        served += command.handles.tolist()
        kernel.step(BatchPrepared(batch_id=command.batch_id, at=0))
        tokens = np.zeros((1, 1), dtype=np.int64)
        kernel.step(BatchExecuted(batch_id=command.batch_id, tokens=tokens, at=0))
    assert served == [handle for handle, _ in expected]


def test_the_line_takes_as_many_as_its_limit() -> None:
    """One more is refused, and enters once somebody has left."""
    kernel = Kernel(PLAIN)
    for name in "abc":
        assert isinstance(kernel.step(replace(GOOD, request_id=name))[0], AdmitRequest)
    (answer,) = kernel.step(replace(GOOD, request_id="d"))
    assert isinstance(answer, RefuseRequest)
    assert answer.reason is RefusalReason.QUEUE_FULL


def test_the_host_may_write_its_keys_again() -> None:
    """What was handed in is copied; the hit of the second request is that of the first keys."""
    kernel = Kernel(replace(PLAIN, num_blocks=8))
    keys = np.array([1, 2])
    kernel.step(replace(GOOD, block_keys=keys, max_tokens=1))
    keys[:] = (8, 9)
    tokens = np.zeros((1, 1), dtype=np.int64)
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(BatchExecuted(batch_id=1, tokens=tokens, at=0))
    kernel.step(replace(GOOD, request_id="b", prompt_length=5, block_keys=np.array([1, 2])))
    (command,) = kernel.step(HostReady(at=0))
    assert isinstance(command, PrepareBatch)
    assert command.positions.tolist() == [4]
