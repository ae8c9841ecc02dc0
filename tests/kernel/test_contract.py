"""What the kernel says to a host that breaks the contract, and to whom it cannot serve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepahead import ConfigError, HostContractError, Kernel, KernelConfig, SelectionTiming
from stepahead.commands import (
    AdmitRequest,
    DispatchBatch,
    EmitTokens,
    FinishReason,
    FinishRequest,
    PrepareBatch,
    RefusalReason,
    RefuseRequest,
    ReportCacheReset,
    ReportPaused,
    WakeAt,
)
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    BatchPrepared,
    BatchRefused,
    CacheResetRequested,
    Event,
    FailureScope,
    HostReady,
    PauseRequested,
    RequestArrived,
    RequestCancelled,
    ResumeRequested,
    Woke,
)


def make(**options: object) -> Kernel:
    """Return a small kernel."""
    limits: dict[str, object] = {"num_blocks": 8, "block_size": 2, "max_model_len": 12}
    return Kernel(KernelConfig(**(limits | options)))  # type: ignore[arg-type]


def arrival(
    name: str = "a", *, prompt: int = 3, tokens: int = 4, **fields: object
) -> RequestArrived:
    """Return an arrival at time 0."""
    return RequestArrived(
        request_id=name,
        prompt_length=prompt,
        max_tokens=tokens,
        at=0,
        arrived_at=0,
        **fields,  # type: ignore[arg-type]
    )


def tokens(*values: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return what a device returns for one step."""
    return np.array([values], dtype=np.int64).reshape(1, -1)


def running(kernel: Kernel) -> Kernel:
    """Bring one request onto the device."""
    kernel.step(arrival())
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    return kernel


BROKEN = {
    "time": (
        HostReady(at=-1),
        "HostReady is reported at -1, before the last event at 0; report events in order of time",
    ),
    "late": (
        RequestArrived(request_id="b", prompt_length=1, max_tokens=1, at=0, arrived_at=1),
        "request b arrived at 1, after it was reported at 0; report arrived_at <= at",
    ),
    "prepared": (
        BatchPrepared(batch_id=1, at=0),
        "batch 1 is reported built or refused, but it is not being built",
    ),
    "refused": (
        BatchRefused(batch_id=2, at=0),
        "batch 2 is reported built or refused, but it is not being built",
    ),
    "other": (
        BatchExecuted(batch_id=2, tokens=tokens(1), at=0),
        "batch 2 is reported back, but batch 1 is dispatched",
    ),
    "shape": (
        BatchExecuted(batch_id=1, tokens=tokens(1, 2), at=0),
        (
            "batch 1 returned tokens of shape (1, 2); expected (steps, 1), one token per step and "
            "sampling row"
        ),
    ),
    "no step": (
        BatchExecuted(batch_id=1, tokens=np.ones((0, 1), dtype=np.int64), at=0),
        (
            "batch 1 returned tokens of shape (0, 1); expected (steps, 1), one token per step and "
            "sampling row"
        ),
    ),
    "flat": (
        BatchExecuted(batch_id=1, tokens=np.ones(1, dtype=np.int64), at=0),
        (
            "batch 1 returned tokens of shape (1,); expected (steps, 1), one token per step and "
            "sampling row"
        ),
    ),
    "placeholder": (
        BatchExecuted(batch_id=1, tokens=tokens(-1), at=0),
        (
            "batch 1 returned a negative token in a live row; a placeholder must never reach the "
            "kernel"
        ),
    ),
    "type": (
        BatchExecuted(batch_id=1, tokens=np.array([[9.0]]), at=0),
        "batch 1 returned tokens of type float64; give int64",
    ),
    "end": (
        BatchExecuted(batch_id=1, tokens=tokens(9), at=2, ended_at=3),
        (
            "batch 1 is reported at 2 to have ended at 3, dispatched at 0; report an end between "
            "the two, or -1"
        ),
    ),
    "stretch": (
        BatchExecuted(batch_id=1, tokens=np.ones((9, 1), dtype=np.int64), at=0),
        "batch 1 came back after 9 steps, 4 keep its rows; ask Kernel.repeat first",
    ),
    "failed": (
        BatchFailed(batch_id=7, scope=FailureScope.BATCH, at=0),
        "batch 7 is reported back, but batch 1 is dispatched",
    ),
}


@pytest.mark.parametrize(("event", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_contract_raises_and_changes_nothing(event: Event, text: str) -> None:
    """The sentence says what was reported and what stands; the kernel can go on."""
    kernel = running(make())
    before = kernel.digest()
    with pytest.raises(HostContractError) as caught:
        kernel.step(event)
    assert str(caught.value) == text
    assert kernel.digest() == before
    assert isinstance(kernel.step(BatchExecuted(batch_id=1, tokens=tokens(9), at=0))[0], EmitTokens)


def test_a_token_may_be_0_and_whatever_it_likes_in_a_row_whose_request_has_ended() -> None:
    """Only a live row's negative token is a placeholder that went astray."""
    kernel = make()
    kernel.step(arrival("a"))
    kernel.step(arrival("b"))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(RequestCancelled(request_id="a", at=0))
    with pytest.raises(HostContractError):
        kernel.step(BatchExecuted(batch_id=1, tokens=tokens(0, -1), at=0))
    emitted, *_ = kernel.step(BatchExecuted(batch_id=1, tokens=tokens(-1, 0), at=0))
    assert isinstance(emitted, EmitTokens)
    assert emitted.tokens.tolist() == [[0]]


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("limits", [{}, {"max_tokens_per_row": 1}], ids=["whole", "in parts"])
def test_that_no_draft_was_accepted_is_the_same_as_saying_nothing(
    limits: dict[str, object], lookahead: int
) -> None:
    """Batches that stand behind one without drafts stay where they are, whatever its report says.

    Blocks of one token, so that a roll-back that finds something to give back would show.
    """
    options = limits | {"lookahead": lookahead, "block_size": 1, "num_blocks": 16}
    silent, talking = make(**options), make(**options)
    for kernel in (silent, talking):
        kernel.step(arrival("a", prompt=3, tokens=6))
        kernel.step(arrival("b", prompt=2, tokens=6))
    while not silent.idle():
        for kernel in (silent, talking):
            while kernel.step(HostReady(at=0)):
                kernel.step(BatchPrepared(batch_id=kernel.batches()[-1].batch_id, at=0))
        assert talking.digest() == silent.digest()
        batch = silent.batches()[0]
        sampling = [row.samples for row in batch.rows].count(True)
        back = BatchExecuted(batch_id=batch.batch_id, tokens=np.full((1, sampling), 11), at=0)
        said = replace(back, accepted=np.zeros(sampling, dtype=np.int64))
        assert repr(talking.step(said)) == repr(silent.step(back))
    assert silent.counters.values() == talking.counters.values()


def test_host_ready_while_a_batch_is_being_built_is_refused() -> None:
    """The host is not ready while it builds."""
    kernel = make()
    kernel.step(arrival())
    kernel.step(HostReady(at=0))
    with pytest.raises(HostContractError) as caught:
        kernel.step(HostReady(at=0))
    assert str(caught.value) == (
        "HostReady is reported while batch 1 is being built; report BatchPrepared or BatchRefused "
        "first"
    )


def test_nothing_comes_back_from_an_idle_device() -> None:
    """A result without a batch is the host's mistake."""
    with pytest.raises(HostContractError) as caught:
        make().step(BatchExecuted(batch_id=1, tokens=tokens(1), at=0))
    assert str(caught.value) == "batch 1 is reported back, but no batch is dispatched"


REFUSALS = {
    "empty": (
        arrival("b", prompt=0),
        RefusalReason.EMPTY_PROMPT,
        "the prompt has no token; send at least one",
    ),
    "no output": (
        arrival("b", tokens=0),
        RefusalReason.BAD_PARAMETERS,
        "max_tokens=0; give at least 1",
    ),
    "floor": (
        arrival("b", min_tokens=5),
        RefusalReason.BAD_PARAMETERS,
        "min_tokens=5; give 0 to max_tokens=4",
    ),
    "priority": (
        arrival("b", priority=1 << 30),
        RefusalReason.BAD_PARAMETERS,
        "priority=1073741824; give -1048576 to 1048576",
    ),
    "stop": (
        arrival("b", stop_token_ids=(-1,)),
        RefusalReason.BAD_PARAMETERS,
        "stop_token_ids=(-1,); give token ids >= 0",
    ),
    "many keys": (
        arrival("b", block_keys=np.arange(2)),
        RefusalReason.BAD_PARAMETERS,
        "block_keys is int64 of shape (2,); give at most 1 int64, one per full block of the prompt",
    ),
    "bad key": (
        arrival("b", block_keys=np.array([-3])),
        RefusalReason.BAD_PARAMETERS,
        "block_keys holds a negative key; give integers >= 0",
    ),
    "key beyond every index": (
        arrival("b", block_keys=np.array([1 << 60])),
        RefusalReason.BAD_PARAMETERS,
        (
            "block_keys holds 1152921504606846976, but keys index an array; number contents from 0 "
            "on"
        ),
    ),
    "key twice": (
        arrival("b", prompt=6, block_keys=np.array([3, 4, 3])),
        RefusalReason.BAD_PARAMETERS,
        (
            "block_keys holds a key twice, but a key stands for a block and all before it; give "
            "each block of a prompt its own"
        ),
    ),
    "more found than named": (
        arrival("b", prompt=6, block_keys=np.array([3, 4]), remote_blocks=3),
        RefusalReason.BAD_PARAMETERS,
        "remote_blocks=3; give None, or 0 to 2: block_keys names so many",
    ),
    "found without keys": (
        arrival("b", prompt=6, remote_blocks=1),
        RefusalReason.BAD_PARAMETERS,
        "remote_blocks=1; give None, or 0 to 0: block_keys names so many",
    ),
    "less than nothing found": (
        arrival("b", block_keys=np.array([3]), remote_blocks=-1),
        RefusalReason.BAD_PARAMETERS,
        "remote_blocks=-1; give None, or 0 to 1: block_keys names so many",
    ),
    "live id": (
        arrival("a"),
        RefusalReason.DUPLICATE_ID,
        "request id a is live; wait for its end or use another id",
    ),
    "long": (
        arrival("b", prompt=12),
        RefusalReason.PROMPT_TOO_LONG,
        (
            "the prompt has 12 tokens, max_model_len=12 leaves room for 11; shorten it or raise "
            "max_model_len"
        ),
    ),
}


@pytest.mark.parametrize(("event", "reason", "detail"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_request_that_cannot_be_served_is_told_why(
    event: RequestArrived, reason: RefusalReason, detail: str
) -> None:
    """A refusal has a named reason and one sentence with the way out, and leaves no trace."""
    kernel = make()
    kernel.step(arrival("a"))
    before = kernel.digest()
    assert kernel.step(event) == (
        RefuseRequest(request_id=event.request_id, reason=reason, detail=detail),
    )
    assert kernel.digest() == before


def test_a_request_that_can_never_fit_is_refused_in_both_loops() -> None:
    """The last token needs no KV, so 5 + 4 tokens fit into 8 positions, and 5 + 5 do not."""
    for lookahead in (0, 1):
        kernel = make(num_blocks=4, lookahead=lookahead)
        assert isinstance(kernel.step(arrival(prompt=5, tokens=4))[0], AdmitRequest)
        assert kernel.step(arrival("b", prompt=5, tokens=5)) == (
            RefuseRequest(
                request_id="b",
                reason=RefusalReason.NEVER_FITS,
                detail="prompt and output need 5 KV blocks, num_blocks=4; lower max_tokens, "
                "shorten the prompt or raise num_blocks",
            ),
        )


def test_a_full_line_refuses() -> None:
    """The waiting line is bounded."""
    kernel = make(max_waiting=1)
    kernel.step(arrival())
    (answer,) = kernel.step(arrival("b"))
    assert answer == RefuseRequest(
        request_id="b",
        reason=RefusalReason.QUEUE_FULL,
        detail="1 requests wait, max_waiting=1; try later",
    )


def test_a_bad_limit_names_the_option_and_the_range() -> None:
    """Configuration errors are found before anything runs."""
    with pytest.raises(ConfigError) as caught:
        make(num_blocks=0)
    assert str(caught.value) == ("num_blocks=0 is not usable; give an integer from 1 to 1073741824")
    with pytest.raises(ConfigError) as caught:
        make(eos_token_id=-1)
    assert str(caught.value) == "eos_token_id=-1 is not usable; give None or an integer >= 0"
    with pytest.raises(ConfigError) as caught:
        make(eos_token_id=1 << 63)
    assert str(caught.value) == (
        "eos_token_id=9223372036854775808 is not usable; give None or an integer below 2**63"
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("order", "priority", "a WaitingOrder"),
        ("num_speculative_tokens", 65, "an integer from 0 to 64"),
        ("prune", "no", "a bool"),
        ("write_through_threshold", 1.5, "None or an integer >= 1"),
    ],
)
def test_a_limit_of_the_wrong_type_is_not_taken_for_another(
    option: str, value: object, expected: str
) -> None:
    """A word that is no member of the enum must not mean its default."""
    with pytest.raises(ConfigError) as caught:
        make(**{option: value})
    assert str(caught.value) == f"{option}={value!r} is not usable; give {expected}"


def test_limits_beyond_any_column_are_only_as_large_as_the_request() -> None:
    """A client's numbers may be anything; EOS below min_tokens does not end the request."""
    kernel = make(eos_token_id=9)
    assert isinstance(kernel.step(arrival(tokens=1 << 70, min_tokens=1 << 70))[0], AdmitRequest)
    finished: list[FinishRequest] = []
    for batch in range(1, 10):
        kernel.step(HostReady(at=0))
        kernel.step(BatchPrepared(batch_id=batch, at=0))
        _, *finished = kernel.step(BatchExecuted(batch_id=batch, tokens=tokens(9), at=0))  # type: ignore[assignment]
    assert [(end.reason, end.output_tokens) for end in finished] == [(FinishReason.LENGTH, 9)]


@pytest.mark.parametrize(
    ("eos", "stops", "step"), [(9, (), 2), (None, (9,), 2), (None, (1 << 70, 9), 2)]
)
def test_a_stretch_that_runs_past_an_ending_token_is_refused(
    eos: int | None, stops: tuple[int, ...], step: int
) -> None:
    """The host must stop where a request ends; nothing has changed, and it may report that."""
    kernel = make(num_blocks=32, max_model_len=40, eos_token_id=eos)
    kernel.step(arrival(tokens=20, min_tokens=3, stop_token_ids=stops))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(BatchExecuted(batch_id=1, tokens=tokens(9), at=0))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=2, at=0))
    before = kernel.digest()
    past = np.array([[9], [9], [5]], dtype=np.int64)  # the second of them is the third output token
    with pytest.raises(HostContractError) as caught:
        kernel.step(BatchExecuted(batch_id=2, tokens=past, at=0))
    assert str(caught.value) == (
        f"batch 2 came back after 3 steps, but request 1 ended with step {step}; stop at the first "
        "token that ends a request"
    )
    assert kernel.digest() == before
    *_, last = kernel.step(BatchExecuted(batch_id=2, tokens=past[:2], at=0))
    assert isinstance(last, FinishRequest)
    assert (last.reason, last.output_tokens) == (FinishReason.STOP, 3)


def told(kernel: Kernel, at: int) -> int:
    """Report the device done, select and build when it is time; return when that was done."""
    (running, *_) = kernel.batches()
    kernel.step(BatchExecuted(batch_id=running.batch_id, tokens=tokens(5), at=at))
    for command in kernel.step(HostReady(at=at)):
        if isinstance(command, WakeAt):
            kernel.step(Woke(wake_id=command.wake_id, at=command.at))
    kernel.step(BatchPrepared(batch_id=running.batch_id + 2, at=kernel.now))
    return kernel.now


FORM = (
    "batch 2 came back after {steps} steps with turn_times of shape {shape} and type {kind}, but "
    "the kernel learns from {due} of the turns between them; give int64 of shape ({due}, 4), or "
    "report the steps one by one"
)
NONE_DUE = (
    "batch 2 came back after 1 step with turn_times of shape {shape} and type int64, but the "
    "kernel learns from 0 of the turns between them; give None, or report the steps one by one"
)
ORDER = (
    "batch 2 was dispatched at 100 and came back with turn_times {rows}, its last step ended at "
    "400; report of each turn when the device was done, when the host said so, and when it was "
    "ready, in order of time, and how long it then prepared a batch"
)
IN_ORDER = np.array([[200, 200, 210, 7], [300, 300, 310, 0]])


@pytest.mark.parametrize(
    ("turn_times", "steps", "text"),
    [
        (None, 3, FORM.format(steps=3, shape="(0, 4)", kind="int64", due=2)),
        (IN_ORDER, 2, FORM.format(steps=2, shape="(2, 4)", kind="int64", due=1)),
        (IN_ORDER[:1], 4, FORM.format(steps=4, shape="(1, 4)", kind="int64", due=2)),
        (IN_ORDER[:1], 1, NONE_DUE.format(shape="(1, 4)")),
        (IN_ORDER[:0], 1, NONE_DUE.format(shape="(0, 4)")),
        (IN_ORDER / 1, 3, FORM.format(steps=3, shape="(2, 4)", kind="float64", due=2)),
        (IN_ORDER[:1] - (101, 101, 101, 0), 2, ORDER.format(rows=[[99, 99, 109, 7]])),
        (IN_ORDER[::-1], 3, ORDER.format(rows=[[300, 300, 310, 0], [200, 200, 210, 7]])),
        (IN_ORDER[1:] - (0, 0, -91, 0), 2, ORDER.format(rows=[[300, 300, 401, 0]])),
        (IN_ORDER[1:] - (0, 0, 0, 1), 2, ORDER.format(rows=[[300, 300, 310, -1]])),
    ],
)
def test_times_of_turns_that_are_learnt_from_must_be_there_and_in_order(
    turn_times: np.ndarray | None, steps: int, text: str
) -> None:
    """What just-in-time selection learns from a stretch is what single steps would have told."""
    kernel = make(num_blocks=32, max_model_len=40, lookahead=1, timing=SelectionTiming.JUST_IN_TIME)
    kernel.step(arrival(tokens=20))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=2, at=0))
    assert told(kernel, 100) < 200
    before = kernel.digest()
    tokens = np.full((steps, 1), 5)
    back = BatchExecuted(batch_id=2, tokens=tokens, at=500, ended_at=400, turn_times=turn_times)
    with pytest.raises(HostContractError) as caught:
        kernel.step(back)
    assert str(caught.value) == text
    assert kernel.digest() == before
    asked = kernel.repeat()
    assert asked is not None
    assert asked.pace is not None
    assert asked.pace.learns == 2
    assert kernel.step(replace(back, turn_times=IN_ORDER[: steps - 1] if steps > 1 else None))


def test_who_learns_from_no_turn_is_told_no_times() -> None:
    """They would go into a journal and mean nothing."""
    kernel = running(make(num_blocks=32, max_model_len=40))
    before, back = kernel.digest(), BatchExecuted(batch_id=1, tokens=tokens(5), at=9)
    with pytest.raises(HostContractError, match="learns from 0 of the turns"):
        kernel.step(replace(back, turn_times=IN_ORDER))
    assert kernel.digest() == before
    assert kernel.step(back)


def test_an_id_may_come_again_while_the_old_one_drains() -> None:
    """The client's label is free at the end; the old rows still run and are ignored."""
    kernel = running(make(lookahead=1))
    kernel.step(HostReady(at=0))
    assert kernel.step(RequestCancelled(request_id="a", at=0)) == (
        FinishRequest(request_id="a", handle=1, reason=FinishReason.ABORT, output_tokens=0),
    )
    assert kernel.step(arrival("a")) == (AdmitRequest(request_id="a", handle=2),)
    assert kernel.step(RequestCancelled(request_id="a", handle=1, at=0)) == ()
    assert kernel.counters.ignored_cancels == 1
    kernel.step(BatchPrepared(batch_id=2, at=0))
    (dispatch,) = kernel.step(BatchExecuted(batch_id=1, tokens=tokens(5), at=0))
    assert isinstance(dispatch, DispatchBatch)
    assert dispatch.live.tolist() == [False]
    assert dispatch.fill_tokens.tolist() == [0]
    assert kernel.counters.wasted_rows_abort == 1
    assert kernel.counters.discarded_rows == 1
    (prepare,) = kernel.step(HostReady(at=0))
    assert isinstance(prepare, PrepareBatch)
    assert prepare.handles.tolist() == [2]
    assert prepare.seats.tolist() != [0]


def test_a_dead_row_reads_a_pad_token() -> None:
    """Its request has ended with the token that it waited for; nobody must see that again."""
    kernel = running(make(lookahead=1, eos_token_id=9))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=2, at=0))
    dispatch, emit, finish = kernel.step(BatchExecuted(batch_id=1, tokens=tokens(9), at=0))
    assert isinstance(dispatch, DispatchBatch)
    assert isinstance(emit, EmitTokens)
    assert emit.tokens.tolist() == [[9]]
    assert finish == FinishRequest(
        request_id="a", handle=1, reason=FinishReason.STOP, output_tokens=1
    )
    assert (dispatch.live.tolist(), dispatch.fill_tokens.tolist()) == ([False], [0])


def test_a_pause_is_reported_when_nothing_is_outstanding() -> None:
    """The device may still work when nothing is selected any more; that is no pause yet."""
    kernel = running(make())
    assert kernel.step(PauseRequested(at=0)) == ()
    assert kernel.step(HostReady(at=0)) == ()
    *_, last = kernel.step(BatchExecuted(batch_id=1, tokens=tokens(5), at=0))
    assert last == ReportPaused()
    assert kernel.step(HostReady(at=0)) == ()
    kernel.step(ResumeRequested(at=0))
    assert isinstance(kernel.step(HostReady(at=0))[0], PrepareBatch)


def test_the_cache_is_reset_only_when_nobody_uses_it() -> None:
    """A reset while a request has KV is refused; afterwards nothing is hit any more."""
    kernel = make()
    kernel.step(arrival(prompt=3, tokens=1, block_keys=np.array([4])))
    kernel.step(HostReady(at=0))
    assert kernel.step(CacheResetRequested(at=0)) == (ReportCacheReset(done=False),)
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(BatchExecuted(batch_id=1, tokens=tokens(5), at=0))
    assert kernel.audit().cached == 1
    assert kernel.step(CacheResetRequested(at=0)) == (ReportCacheReset(done=True),)
    assert kernel.audit().cached == 0
    kernel.step(arrival("b", prompt=3, tokens=1, block_keys=np.array([4])))
    (prepare,) = kernel.step(HostReady(at=0))
    assert isinstance(prepare, PrepareBatch)
    assert prepare.positions.tolist() == [0]


def test_a_failed_device_ends_everything_and_takes_nothing_more() -> None:
    """Every live request ends with an error, seated or waiting, and arrivals are refused."""
    kernel = running(make(max_concurrency=1))
    kernel.step(arrival("b"))
    ended = kernel.step(BatchFailed(batch_id=1, scope=FailureScope.DEVICE, at=0))
    assert [(c.request_id, c.reason) for c in ended if isinstance(c, FinishRequest)] == [
        ("a", FinishReason.ERROR),
        ("b", FinishReason.ERROR),
    ]
    (answer,) = kernel.step(arrival("c"))
    assert isinstance(answer, RefuseRequest)
    assert answer.detail == "the device has failed; restart the server"
    assert kernel.audit().free == kernel.config.num_blocks


def test_a_wake_that_nobody_asked_for_is_a_no_op() -> None:
    """Stale, early and doubled wakes are harmless."""
    kernel = running(make())
    before = kernel.digest()
    assert kernel.step(Woke(wake_id=3, at=0)) == ()
    assert kernel.digest() == before


def test_a_refused_batch_leaves_no_trace() -> None:
    """The same selection is made again, block by block, as if nothing had happened."""
    kernel = make(lookahead=1)
    kernel.step(arrival(prompt=3, block_keys=np.array([4])))
    before = kernel.blocks()
    (first,) = kernel.step(HostReady(at=0))
    assert kernel.step(BatchRefused(batch_id=1, at=0)) == ()
    assert kernel.blocks() == before
    (again,) = kernel.step(HostReady(at=0))
    assert isinstance(first, PrepareBatch)
    assert isinstance(again, PrepareBatch)
    assert (again.batch_id, again.blocks.tolist()) == (2, first.blocks.tolist())
