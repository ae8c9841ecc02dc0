"""What the host reports to the kernel: one fact each, in the past tense.

Every event carries ``at``, the integer nanosecond at which it is delivered; ``at`` never decreases
from one event to the next. The answer of `stepahead.Kernel.step` is named in each docstring. What
can happen in a correct program is data (a cancel for a request that has ended, an arrival that can
never fit); only a broken host contract raises, and then nothing has changed.

The kernel writes no event and keeps none. Those that come with every request or batch are not
frozen, which would treble what it costs to make one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from stepahead.arrays import Ints


class CancelReason(Enum):
    """Why a request was cancelled; the finish reason is `abort` in every case."""

    CLIENT = "client"
    STOP_STRING = "stop_string"
    DEADLINE = "deadline"


class CacheTarget(Enum):
    """Which cached content a reset forgets: on the NPU, on the host, or both."""

    NPU = "npu"
    HOST = "host"
    ALL = "all"


class FailureScope(Enum):
    """What a `BatchFailed` takes with it: the one batch, or the device."""

    BATCH = "batch"
    DEVICE = "device"


@dataclass(slots=True, kw_only=True)
class RequestArrived:
    """A client asked for tokens. Answered by `AdmitRequest` or `RefuseRequest`.

    Args:
        request_id: the client's label; it may come again once the earlier request has ended.
        prompt_length: prompt tokens, at least 1.
        max_tokens: output tokens at most, at least 1.
        arrived_at: when the request reached the host, ns; TTFT counts from here. At most ``at``.
        priority: smaller is more urgent; used by priority order only.
        min_tokens: an EOS or stop token before this many output tokens does not end the request.
        ignore_eos: the EOS token never ends the request.
        stop_token_ids: further token ids that end the request.
        block_keys: content identities of the full blocks of the prompt, dense integers >= 0, shape
            ``(prompt_length // block_size,)`` or shorter; None when unknown. Equal keys mean equal
            content *and* equal prefix.
        remote_blocks: how many of ``block_keys``, from the first on, the host's lookup found in the
            remote store; no load asks it for a block behind them. It is a hint: a load may still
            bring fewer. None: not looked up, and a load asks for all. Without ``remote`` in the
            configuration nothing reads it.
    """

    request_id: str
    prompt_length: int
    max_tokens: int
    at: int
    arrived_at: int
    priority: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    block_keys: Ints | None = None
    remote_blocks: int | None = None


@dataclass(slots=True, kw_only=True)
class RequestCancelled:
    """A client left. Answered by `FinishRequest`, or by nothing if the request has ended.

    ``handle`` names one stay in the engine; None means the newest live request with that id.
    """

    request_id: str
    at: int
    handle: int | None = None
    reason: CancelReason = CancelReason.CLIENT


@dataclass(slots=True, kw_only=True)
class HostReady:
    """The host has no work and no event of this instant. Answered by `PrepareBatch`, if any."""

    at: int


@dataclass(slots=True, kw_only=True)
class BatchPrepared:
    """The host built the batch's inputs. Answered by `DispatchBatch` if its turn has come."""

    batch_id: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRefused:
    """The host could not build the batch. Its selection is undone without a trace."""

    batch_id: int
    at: int


@dataclass(slots=True, kw_only=True)
class BatchExecuted:
    """The NPU finished the batch. Answered by `DispatchBatch`, `EmitTokens`, `FinishRequest`.

    ``tokens`` holds one sampled token per sampling row and device step, shape
    ``(steps, sampling rows)``, the rows in the order of the batch. A device answers one step; a
    simulator may answer up to `Kernel.repeat` of them at once, and must stop at the first step
    that ends a request. Values in rows whose request has ended are ignored, in every step.

    If a row of the batch had drafts, ``accepted`` says how many of each sampling row's were right,
    the first of them and without a gap, shape ``(sampling rows,)``; ``tokens`` then has shape
    ``(1 + most drafts of a row, sampling rows)`` and belongs to one device step: from the top of
    column ``i`` the accepted drafts and the token sampled behind them, ``accepted[i] + 1`` in all.
    What lies below is ignored. Tokens behind one that ends the request may be among them.

    ``ended_at`` is when the device finished, before the host sampled or synchronised (ns; -1: not
    known, then ``at`` counts). Only just-in-time selection reads it.

    ``turn_times`` are the times of the turns that just-in-time selection learns from, where several
    steps come back at once: the first `Repeat.pace` of them, without the last step. Shape
    ``(turns, 4)``, of each turn in order: when the device finished the step that it begins with,
    when that would have been reported, when the host was ready to select, and how long it then
    prepared the batch (ns). None: no turn.
    """

    batch_id: int
    tokens: Ints
    at: int
    ended_at: int = -1
    accepted: Ints | None = None
    turn_times: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """The device failed. The batch's requests, or all, are answered by `FinishRequest`."""

    batch_id: int
    scope: FailureScope
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDone:
    """A `LoadBlocks` or `StoreBlocks` is complete; its blocks and pages are let go.

    ``blocks`` is how many blocks a load filled, shallowest first; only a load from the remote store
    may fill fewer than it was asked for (-1: all). A transfer that is not open any more, or a load
    whose deadline has passed, makes this a counted no-op for content. Answered by `DispatchBatch`
    where a batch waited for it.
    """

    transfer_id: int
    at: int
    blocks: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFailed:
    """A transfer came to nothing. What it was to copy counts as not copied."""

    transfer_id: int
    at: int


@dataclass(slots=True, kw_only=True)
class Woke:
    """The time of a `WakeAt` came. A stale or early wake is a no-op."""

    wake_id: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested:
    """Select nothing more. Answered by `ReportPaused` once no batch is outstanding."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """Select again."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheResetRequested:
    """Forget cached content. Answered by `ReportCacheReset`, not done while in use.

    A remote store is not this kernel's to reset.
    """

    at: int
    target: CacheTarget = CacheTarget.ALL


Event: TypeAlias = (
    RequestArrived
    | RequestCancelled
    | HostReady
    | BatchPrepared
    | BatchRefused
    | BatchExecuted
    | BatchFailed
    | TransferDone
    | TransferFailed
    | Woke
    | PauseRequested
    | ResumeRequested
    | CacheResetRequested
)
