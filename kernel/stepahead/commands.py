"""What the kernel asks of the host: one request each, in the imperative.

The host carries out the commands of one step in order. Arrays in a command are never written again
by the kernel, so a host may keep them (several commands may share one array; do not write them).
It keeps no command either; those that come with every request or batch are not frozen, which would
treble what it costs to make one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from stepahead.arrays import Ints, Mask
from stepahead.tables import Symbol


class FinishReason(Symbol):
    """Why a request ended, in the words of the serving API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RefusalReason(Enum):
    """Why an arrival was not admitted."""

    EMPTY_PROMPT = "empty_prompt"
    BAD_PARAMETERS = "bad_parameters"
    PROMPT_TOO_LONG = "prompt_too_long"
    NEVER_FITS = "never_fits"
    DUPLICATE_ID = "duplicate_id"
    QUEUE_FULL = "queue_full"
    DEVICE_FAILED = "device_failed"


@dataclass(slots=True, kw_only=True)
class AdmitRequest:
    """The request waits from now on; ``handle`` names this stay and is never used again."""

    request_id: str
    handle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRequest:
    """The request never enters; ``detail`` is one sentence for the client with the way out."""

    request_id: str
    reason: RefusalReason
    detail: str


@dataclass(slots=True, kw_only=True)
class PrepareBatch:
    """Build the input buffers. Answer with `BatchPrepared` or `BatchRefused`.

    Row arrays have shape ``(rows,)``. A row computes ``token_counts`` positions of one request from
    ``positions`` on, reading everything before through the block table of its seat.

    Args:
        batch_id: 1, 2, 3, ... in the order of selection.
        seats: place of the request in the block tables.
        handles, epochs: identity of the request and of its stretch between preemptions.
        positions: first KV position that the row computes.
        token_counts: how many positions, at least 1.
        samples: the row returns one sampled token.
        block_rows, block_slots, blocks: shape ``(new blocks,)``; write ``blocks`` into entry
            ``block_slots`` of the block table of the seat of row ``block_rows``. A seat's table is
            empty when its (handle, epoch) is new; blocks below its first position hold a cached
            prefix.
        history_rows, history_positions, history_tokens: shape ``(recomputed inputs,)``; input
            tokens that were sampled before a preemption. Prompt tokens are the host's own; the
            last input of a decode row comes with `DispatchBatch`.
        drafts: how many positions at the end of the row, of its ``token_counts``, are drafts: the
            host proposes their input tokens, and `BatchExecuted` says how many were right. Only
            decode rows have any. None: no row has one.
    """

    batch_id: int
    seats: Ints
    handles: Ints
    epochs: Ints
    positions: Ints
    token_counts: Ints
    samples: Mask
    block_rows: Ints
    block_slots: Ints
    blocks: Ints
    history_rows: Ints
    history_positions: Ints
    history_tokens: Ints
    drafts: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonBatch:
    """Forget a prepared batch; it is never dispatched."""

    batch_id: int


@dataclass(slots=True, kw_only=True)
class DispatchBatch:
    """Run the prepared batch on the NPU. Answer with `BatchExecuted` or `BatchFailed`.

    ``fill_tokens`` are the sampled tokens that the rows ``fill_rows`` waited for: the input at the
    row's last position before its drafts. ``live`` has shape ``(rows,)``; the output of a row that
    is not live is ignored, its input is a pad token (0), and it writes only to its own fenced
    positions.

    With ``pruned``, the rows that are not live are left out altogether: the NPU runs the others in
    their order, and `BatchExecuted` returns no token for them. ``fill_rows`` still counts the rows
    of `PrepareBatch`.
    """

    batch_id: int
    fill_rows: Ints
    fill_tokens: Ints
    live: Mask
    pruned: bool = False


@dataclass(slots=True, kw_only=True)
class EmitTokens:
    """Hand sampled tokens to the clients.

    ``tokens`` has shape ``(steps, requests)``; request ``handles[i]`` gets ``tokens[:, i]`` at
    output positions ``offsets[i]``, ``offsets[i] + 1``, ... (0 is its first output token).

    With ``counts``, shape ``(requests,)``, it gets the first ``counts[i]`` of them only, at least
    1, all of the same device step; what lies below in its column is nothing. None: it gets all, one
    per device step.
    """

    batch_id: int
    handles: Ints
    offsets: Ints
    tokens: Ints
    counts: Ints | None = None


@dataclass(slots=True, kw_only=True)
class FinishRequest:
    """The client gets its last word: ``reason`` after ``output_tokens`` tokens."""

    request_id: str
    handle: int
    reason: FinishReason
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBlocks:
    """Copy cached content into KV blocks. Answer with `TransferDone` or `TransferFailed`.

    Args:
        transfer_id: 1, 2, 3, ..., shared with `StoreBlocks`.
        blocks: KV blocks to write, shallowest first; shape ``(blocks,)``.
        pages: host pages to read, one per block; empty when the source is the remote store.
        keys: content identity of each block.
        handle: the request that it is for.
        layerwise: a batch of this request may be dispatched before this is complete: the device
            starts layer i when layer i is there, and the transfer is reported before that batch is.
    """

    transfer_id: int
    blocks: Ints
    pages: Ints
    keys: Ints
    handle: int
    layerwise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBlocks:
    """Copy KV blocks to host pages. Answer with `TransferDone` or `TransferFailed`.

    ``blocks``, ``pages`` and ``keys`` have shape ``(blocks,)``. The blocks keep their content until
    the answer, the pages are nobody else's.
    """

    transfer_id: int
    blocks: Ints
    pages: Ints
    keys: Ints


@dataclass(slots=True, kw_only=True)
class WakeAt:
    """Answer with `Woke(wake_id)` at time ``at`` (ns). A newer `WakeAt` replaces the older one."""

    wake_id: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPaused:
    """No batch and no transfer is outstanding; nothing is selected until `ResumeRequested`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCacheReset:
    """The content is forgotten (``done``), or something was in use and nothing was forgotten."""

    done: bool


Command: TypeAlias = (
    AdmitRequest
    | RefuseRequest
    | PrepareBatch
    | AbandonBatch
    | DispatchBatch
    | EmitTokens
    | FinishRequest
    | LoadBlocks
    | StoreBlocks
    | WakeAt
    | ReportPaused
    | ReportCacheReset
)
