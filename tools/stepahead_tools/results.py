"""The result of a command as JSON: one schema, the same bytes wherever it is computed.

`result-schema.md` beside this file documents it. Every number comes from integers: a time in ms is
whole nanoseconds divided by a million, a rate or share is an exact fraction rounded half to even to
six decimals. Keys stand in a fixed order. There is no path, version or wall time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from stepahead_models.record import Waste
from stepahead_models.traces import Trace
from stepahead_tools.distribution import PERCENTILES, Distribution
from stepahead_tools.loops import Loop
from stepahead_tools.metrics import Objectives, RunMetrics, hit_tokens_by_tier
from stepahead_tools.runs import Scene
from stepahead_tools.speculation import Speculation
from stepahead_tools.tiers import RemoteSettings

SCHEMA: Final = 1
DECIMALS: Final = 6
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]

#: What is compared: figures that are numbers, and for distributions their mean and percentiles.
COMPARED: Final = (
    "output_tokens", "duration_s", "output_tokens_per_s", "requests_per_s", "goodput",
    "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "queue_ms",
    "npu_busy_share", "host_gap_ms", "host_gap_s", "hidden_cpu_s",
)  # fmt: skip


def result(
    scene: Scene, loops: Sequence[Loop], metrics: Mapping[str, RunMetrics]
) -> dict[str, Json]:
    """Return the whole document; ``metrics`` by name of the loop, the first is the reference."""
    runs = {name: run_figures(figures) for name, figures in metrics.items()}
    reference, *others = runs
    return {
        "schema": SCHEMA,
        "trace": trace_facts(scene.trace),
        "config": config(scene, loops),
        "runs": runs,
        "delta": {name: delta(runs[reference], runs[name]) for name in others},
    }


def encode(document: Mapping[str, Json]) -> str:
    """Return the document as text, with a newline at its end."""
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def trace_facts(trace: Trace) -> dict[str, Json]:
    """Return what identifies the requests that ran, arrivals included."""
    return {
        "name": trace.name,
        "format": trace.format_name,
        "requests": len(trace),
        "skipped_lines": len(trace.bad_lines),
        "span_s": seconds(trace.span_ns),
        "digest": trace.digest,
    }


def config(scene: Scene, loops: Sequence[Loop]) -> dict[str, Json]:
    """Return everything that decided the result, defaults filled in."""
    settings = scene.settings
    pacing = settings.pacing
    return {
        "ends": settings.ends,
        "limit": settings.limit,
        "arrivals": {
            "kind": pacing.kind,
            "value": None if pacing.kind == "recorded" else pacing.value,
            "capacity_per_s": rounded(scene.capacity_per_s),
        },
        "seed": settings.seed,
        "warmup": settings.warmup,
        "goodput": _objectives(settings.objectives),
        "loops": {
            loop.name: {"lookahead": loop.lookahead, "timing": loop.timing.value} for loop in loops
        },
        "npu_queue_limit": settings.npu_queue_limit,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_concurrency": settings.max_concurrency,
        "max_model_len": settings.max_model_len,
        "max_tokens_per_row": settings.max_tokens_per_row,
        "block_size": settings.block_size,
        "num_blocks": settings.num_blocks,
        "enable_prefix_caching": settings.prefix_caching,
        "host_pages": settings.host_pages,
        "write_through_threshold": settings.write_through_threshold,
        "write_back": settings.write_back,
        "overlap_l2_reload": settings.layerwise_reload,
        "remote": _remote(settings.remote),
        "speculation": _speculation(settings.speculation),
        "order": settings.order.value,
        "prefer": settings.preference.value,
        "device": scene.profile.name,
        "cpu_scale": settings.cpu_scale,
        "npu_sampling": settings.npu_sampling,
        "noise_ppm": settings.noise_ppm,
        "prune": settings.prune,
        "late_joiners": settings.late_joiners,
        "late_share_ppm": settings.late_share_ppm,
        "token_model": "closed form" if settings.unchecked else "history hash",
    }


def run_figures(metrics: RunMetrics) -> dict[str, Json]:
    """Return the figures of one run."""
    record = metrics.record
    return {
        "requests": {
            "completed": metrics.completed,
            "cancelled": metrics.cancelled,
            "refused": metrics.refused,
            "errored": metrics.errored,
            "measured": metrics.measured,
            "single_token": metrics.single_token,
        },
        "overloaded": metrics.overloaded,
        "output_tokens": metrics.output_tokens,
        "duration_s": seconds(metrics.duration_ns),
        "output_tokens_per_s": rounded(metrics.output_tokens_per_s),
        "requests_per_s": rounded(metrics.requests_per_s),
        "goodput": rounded(metrics.goodput_per_s),
        "goodput_share": rounded(metrics.goodput_share),
        "ttft_ms": _distribution(metrics.ttft),
        "tpot_ms": _distribution(metrics.tpot),
        "itl_ms": _distribution(metrics.itl),
        "e2el_ms": _distribution(metrics.e2el),
        "queue_ms": _distribution(metrics.queue),
        "npu_busy_share": rounded(metrics.npu_busy_share),
        "host_gap_ms": _distribution(metrics.host_gap),
        "host_gap_s": seconds(metrics.host_gap_total_ns),
        "cpu_busy_s": seconds(record.cpu_busy_ns),
        "hidden_cpu_s": seconds(record.cpu_hidden_ns),
        "preparations": record.preparations,
        "exposed_preparations": record.exposed_preparations,
        "exposed_preparation_s": seconds(record.exposed_ns),
        "margin_ppm": record.margin_ppm,
        "device_steps": record.steps,
        **_waste({"eos": record.wasted_eos, "cancel": record.wasted_cancel}),
        "discarded_rows": record.discarded.rows,
        "discarded_tokens": record.discarded.tokens,
        "discarded_npu_ms": milliseconds(record.discarded.npu_ns),
        "preemptions": record.counters["preemptions"],
        "recomputed_tokens": record.counters["recomputed_tokens"],
        **_cache(record.counters),
        "drafted_tokens": record.counters["drafted_tokens"],
        "accepted_tokens": record.counters["accepted_tokens"],
        "draft_acceptance_rate": rounded(metrics.draft_acceptance),
        "tokens_per_row_step": rounded(metrics.tokens_per_row_step),
        "pending_block_s": seconds(record.pending_block_ns),
        "kv_peak_blocks": record.kv_blocks_max,
        "leaked_blocks": record.leaked_blocks,
        "tokens_digest": record.tokens_digest,
        "journal_digest": record.journal_digest,
    }


def delta(reference: Mapping[str, Json], other: Mapping[str, Json]) -> dict[str, Json]:
    """Return the relative change of every compared figure, None where there is none to tell.

    Distributions appear as one figure per statistic, ``ttft_ms.p50``. The change is that of the
    printed numbers.
    """
    changes: dict[str, Json] = {}
    for name in COMPARED:
        before, after = reference[name], other[name]
        if isinstance(before, Mapping) or isinstance(after, Mapping):
            for part in _STATISTICS:
                changes[f"{name}.{part}"] = _change(_part(before, part), _part(after, part))
        else:
            changes[name] = _change(before, after)
    return changes


_STATISTICS: Final = ("mean", *(f"p{percent}" for percent in PERCENTILES))


def _part(figures: Json, name: str) -> Json:
    return figures[name] if isinstance(figures, Mapping) else None


def _change(before: Json, after: Json) -> float | None:
    if not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return None
    exact = Fraction(str(after)) / Fraction(str(before)) - 1
    return rounded(exact)


def rounded(value: Fraction | None) -> float | None:
    """Return a fraction rounded half to even to `DECIMALS` decimals."""
    return None if value is None else float(round(value, DECIMALS))


def seconds(duration_ns: int) -> float:
    """Return whole nanoseconds as seconds."""
    return duration_ns / _NS_PER_S


def milliseconds(duration_ns: int) -> float:
    """Return whole nanoseconds as milliseconds."""
    return duration_ns / _NS_PER_MS


def _distribution(figures: Distribution | None) -> dict[str, Json] | None:
    if figures is None:
        return None
    numbers = (figures.mean_ns, *figures.percentiles_ns)
    return {name: milliseconds(number) for name, number in zip(_STATISTICS, numbers, strict=True)}


def _waste(reasons: Mapping[str, Waste]) -> dict[str, Json]:
    return {
        "wasted_rows": {reason: waste.rows for reason, waste in reasons.items()},
        "wasted_tokens": {reason: waste.tokens for reason, waste in reasons.items()},
        "wasted_npu_ms": {reason: milliseconds(waste.npu_ns) for reason, waste in reasons.items()},
    }


def _objectives(objectives: Objectives | None) -> dict[str, Json] | None:
    if objectives is None:
        return None
    given = {
        "ttft_ms": objectives.ttft_ns,
        "tpot_ms": objectives.tpot_ns,
        "e2el_ms": objectives.e2el_ns,
    }
    return {
        **{name: None if limit is None else milliseconds(limit) for name, limit in given.items()},
        "single_token": objectives.lone_token,
    }


def _remote(remote: RemoteSettings | None) -> dict[str, Json] | None:
    if remote is None:
        return None
    return {
        "bytes_per_s": remote.link.bytes_per_s,
        "latency_ns": remote.link.latency_ns,
        "miss_ppm": remote.miss_ppm,
        "failure_ppm": remote.failure_ppm,
    }


def _speculation(speculation: Speculation | None) -> dict[str, Json] | None:
    if speculation is None:
        return None
    return {
        "method": speculation.method.value,
        "num_speculative_tokens": speculation.num_speculative_tokens,
        "acceptance_ppm": speculation.acceptance_ppm,
        "draft_step_ns": speculation.costs.step_ns,
        "draft_token_ns": speculation.costs.token_ns,
    }


def _cache(counters: Mapping[str, int]) -> dict[str, Json]:
    return {
        "prefix_queried_tokens": counters["queried_tokens"],
        "prefix_hit_tokens": counters["hit_tokens"],
        "prefix_hit_tokens_by_tier": hit_tokens_by_tier(counters),
        "stored_blocks": counters["stored_blocks"],
        "refused_stores": counters["refused_stores"],
        "failed_transfers": counters["failed_transfers"],
    }
