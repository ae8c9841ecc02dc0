"""The adapter of vLLM's own scheduler: `Scheduler` for lookahead 0, `AsyncScheduler` for 1.

Written against vLLM 0.33.0, whose classes run unchanged and without a GPU; the model runner is
replaced by the kit's device. It needs ``VLLM_TARGET_DEVICE=cpu`` and ``VLLM_USE_V2_MODEL_RUNNER=1``
in the environment, which are set where they are missing. Block 0 is vLLM's null block; the kit's
block n is vLLM's n + 1.

vLLM is imported by name, so that this module can be read and type-checked where it is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from stepahead_specs.conformance.adapter import Adapter, Answer, Selected, Submission
from stepahead_specs.conformance.bounds import Bounds
from stepahead_specs.conformance.history import Share, State
from stepahead_specs.conformance.vllm_setup import hasher, make_scheduler
from stepahead_specs.records import Limits

_FREED_AT_ONCE: Final = (
    "without a KV connector vLLM frees the blocks of an ended request at once and relies on the "
    "order of one device queue"
)
_SHARED_WITHIN_A_BATCH: Final = (
    "with prefix caching vLLM publishes a block when it is scheduled, so that another row of the "
    "same batch may read it; each layer writes the KV of all rows before any of them reads it"
)


@dataclass(slots=True)
class _Step:
    """One output of the scheduler with what the worker must remember of it."""

    output: Any
    rows: list[Share]


class VllmAdapter(Adapter):
    """Drives one vLLM scheduler in the place of the engine core and the worker."""

    bounds: Final = Bounds(
        lookaheads=(0, 1),
        block_sizes=(1, 2, 4),
        prefix_caching=(False, True),
        by_priority=(False, True),
        # vLLM's sampler, not its scheduler, holds stop tokens back before min_tokens.
        min_tokens=False,
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._scheduler: Any = make_scheduler(limits)
        self._last = 0
        #: Steps that are out, and empty ones that must go back behind them, in order.
        self._out: deque[tuple[int | None, _Step]] = deque()
        #: What the worker keeps: block table and tokens of each request and epoch.
        self._tables: dict[str, list[int]] = {}
        self._tokens: dict[tuple[str, int], list[int]] = {}
        self._prompts: dict[str, tuple[int, ...]] = {}

    @property
    def name(self) -> str:
        """Return the class and version of vLLM."""
        return f"{type(self._scheduler).__name__} of vLLM {import_module('vllm').__version__}"

    @property
    def waived(self) -> Mapping[str, str]:
        """Return what vLLM does otherwise, on purpose."""
        waived = {"what_a_batch_may_touch_has_no_other_owner": _FREED_AT_ONCE}
        if self._limits.prefix_caching:
            waived["a_block_has_one_writer"] = _SHARED_WITHIN_A_BATCH
            waived["a_live_row_reads_its_own_history"] = _SHARED_WITHIN_A_BATCH
        return waived

    def submit(self, submission: Submission) -> str | None:
        """Add a request."""
        sampling = import_module("vllm.sampling_params").SamplingParams(
            max_tokens=submission.max_tokens,
            min_tokens=submission.min_tokens,
            ignore_eos=submission.ignore_eos,
            stop_token_ids=list(submission.stop_token_ids),
        )
        sampling.update_from_generation_config({}, self._limits.eos_token_id)
        name = str(submission.request)
        self._prompts[name] = submission.prompt
        self._scheduler.add_request(
            import_module("vllm.v1.request").Request(
                request_id=name,
                prompt_token_ids=list(submission.prompt),
                sampling_params=sampling,
                pooling_params=None,
                priority=submission.priority,
                arrival_time=float(submission.request),
                block_hasher=hasher(self._limits.block_size)
                if self._limits.prefix_caching
                else None,
            )
        )
        return None

    def cancel(self, request: int) -> Answer:
        """Abort a request."""
        status = import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
        ended = self._scheduler.finish_requests([str(request)], status)
        return Answer(finished=[(request, "abort")] if ended else [])

    def prepare(self) -> Selected | None:
        """Schedule; an output without rows goes back to the scheduler behind those before it."""
        if not self._scheduler.has_requests():
            return None
        output = self._scheduler.schedule()
        rows = self._take(output)
        step = _Step(output, rows)
        if not rows:
            self._out.append((None, step))
            self._return_empty()
            return None
        self._last += 1
        self._out.append((self._last, step))
        return Selected(batch=self._last, rows=rows)

    def dispatch(self, batch: int) -> Sequence[Sequence[int] | None]:
        """Return the inputs out of the worker's own token lists."""
        step = next(step for ident, step in self._out if ident == batch)
        inputs: list[list[int] | None] = []
        for row in step.rows:
            known = self._tokens[str(row.request), row.epoch]
            live = str(row.request) in self._scheduler.requests
            given = known[row.position : row.position + row.count]
            inputs.append(given if live else None)
        return inputs

    def complete(self, batch: int, tokens: Sequence[int | None]) -> Answer:
        """Let the worker keep what it sampled, then update the scheduler."""
        ident, step = self._out.popleft()
        if ident != batch:
            raise AssertionError(f"batch {batch} comes back before batch {ident}")
        for row, token in zip(step.rows, tokens, strict=True):
            known = self._tokens[str(row.request), row.epoch]
            if token is not None:
                known[row.position + row.count :] = [token]
        sampled = [[] if token is None else [token] for token in tokens]
        answer = self._update(step, sampled)
        self._return_empty()
        return answer

    def observe(self) -> State:
        """Read the block pool."""
        manager = self._scheduler.kv_cache_manager
        pool = manager.block_pool
        tables = manager.coordinator.single_type_managers[0].req_to_blocks
        free = pool.free_block_queue.get_all_free_blocks()
        return State(
            free=tuple(block.block_id - 1 for block in free),
            held={
                int(name): tuple(block.block_id - 1 for block in tables.get(name, ()))
                for name in self._scheduler.requests
            },
            references=tuple(block.ref_cnt for block in pool.blocks[1:]),
        )

    # -- worker -------------------------------------------------------------------------------

    def _take(self, output: Any) -> list[Share]:  # noqa: ANN401 # vLLM's own
        """Do what the worker does with an output; return its rows."""
        positions: dict[str, int] = {}
        requests = self._scheduler.requests
        for new in output.scheduled_new_reqs:
            epoch = requests[new.req_id].num_preemptions
            self._tables[new.req_id] = list(new.block_ids[0])
            prefill = new.prefill_token_ids
            # The scheduler goes on writing to its list.
            self._tokens[new.req_id, epoch] = list(
                self._prompts[new.req_id] if prefill is None else prefill
            )
            positions[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            fresh = cached.new_block_ids[index]
            if fresh is not None:
                self._tables[name].extend(fresh[0])
            positions[name] = cached.num_computed_tokens[index]
        return [
            Share(
                request=int(name),
                position=positions[name],
                count=count,
                samples=not requests[name].is_prefill_chunk,
                epoch=requests[name].num_preemptions,
                blocks=tuple(block - 1 for block in self._tables[name]),
            )
            for name, count in output.num_scheduled_tokens.items()
        ]

    def _return_empty(self) -> None:
        while self._out and self._out[0][0] is None:
            _, step = self._out.popleft()
            self._update(step, [])

    def _update(self, step: _Step, sampled: list[list[int]]) -> Answer:
        names = [str(row.request) for row in step.rows]
        result = import_module("vllm.v1.outputs").ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        emitted: list[tuple[int, int]] = []
        finished: list[tuple[int, str]] = []
        for outputs in self._scheduler.update_from_output(step.output, result).values():
            for output in outputs.outputs:
                request = int(output.request_id)
                emitted += [(request, token) for token in output.new_token_ids]
                if output.finish_reason is not None:
                    finished.append((request, str(output.finish_reason)))
        return Answer(emitted=emitted, finished=finished)
