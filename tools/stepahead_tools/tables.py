"""What a person sees: the configuration in a few lines, and a table with the change per metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepahead import SelectionTiming
from stepahead_specs.counting import counted
from stepahead_tools.distribution import Distribution
from stepahead_tools.loops import Loop
from stepahead_tools.metrics import RunMetrics, hit_tokens_by_tier
from stepahead_tools.runs import Scene
from stepahead_tools.settings import Settings

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_SMALL_CHANGE = 0.0005
_HUGE_CHANGE = 10

#: A figure of a run, or None where there is nothing to show.
Figure = Callable[[RunMetrics], float | None]


class Line(Struct, frozen=True):
    """One line of the table; ``better``: +1 where more is better, -1 where less is, else 0."""

    label: str
    figure: Figure
    decimals: int
    better: int


def configuration(
    scene: Scene, loops: Sequence[Loop], arrivals: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the effective configuration as label and words.

    Args:
        scene: what is set up.
        loops: what runs there.
        arrivals: how requests come, where that is not the pacing of the scene.
    """
    settings, trace = scene.settings, scene.trace
    yield (
        "trace",
        (
            f"{trace.name} ({trace.format_name}), {counted(len(trace), 'request')} over "
            f"{trace.span_ns / _NS_PER_S:.1f} s, ends by {settings.ends}"
        ),
    )
    capacity = scene.capacity_per_s
    measured = "" if capacity is None else f" of {float(capacity):.3f} requests/s, measured"
    warm = f", the first {settings.warmup} not in the statistics" if settings.warmup else ""
    yield "arrivals", (arrivals or settings.pacing.words() + measured) + warm
    if trace.bad_lines:
        yield (
            "skipped",
            f"{counted(len(trace.bad_lines), 'bad line')}; the first: {trace.bad_lines[0]}",
        )
    yield (
        "device",
        (
            f"{scene.profile.name}, CPU costs x {settings.cpu_scale:g}, "
            f"{'NPU' if settings.npu_sampling else 'host'} sampling"
            + (f", noise {settings.noise_ppm / 10_000:g} %" if settings.noise_ppm else "")
        ),
    )
    yield (
        "batches",
        (
            f"{counted(settings.max_num_batched_tokens, 'token')}, "
            f"{counted(settings.max_concurrency, 'row')}, "
            f"{settings.preference.value}, {settings.order.value}"
        ),
    )
    yield from _caches(settings)
    if settings.prune:
        dead = "dropped before the dispatch"
    elif scene.profile.changed_batch.allowed.value:
        dead = "masked"
    else:
        dead = "masked, since the device takes no changed batch"
    yield "dead rows", dead
    if any(loop.timing is SelectionTiming.JUST_IN_TIME for loop in loops):
        yield (
            "timing",
            (
                f"at most {settings.late_share_ppm / 10_000:g} % of preparations late, late "
                f"joiners {'on' if settings.late_joiners else 'off'}"
            ),
        )
    yield "loops", ", ".join(f"{loop.name} (lookahead {loop.lookahead})" for loop in loops)


def _caches(settings: Settings) -> Iterator[tuple[str, str]]:
    yield (
        "KV",
        (
            f"{counted(settings.num_blocks, 'block')} of {counted(settings.block_size, 'token')}, "
            "model length "
            f"{settings.max_model_len}, prefix caching {'on' if settings.prefix_caching else 'off'}"
        ),
    )
    if settings.host_pages:
        threshold = settings.write_through_threshold
        through = "never" if threshold is None else f"at {counted(threshold, 'hit')}"
        yield (
            "host KV",
            (
                f"{counted(settings.host_pages, 'block')}, written through {through}"
                f"{', written back' if settings.write_back else ''}, reloaded "
                f"{'layer by layer' if settings.layerwise_reload else 'before the request runs'}"
            ),
        )
    if settings.remote is not None:
        link = settings.remote.link
        yield (
            "remote KV",
            (
                f"{link.bytes_per_s / 1e9:g} GB/s, {link.latency_ns / 1_000:g} us per load, "
                f"{settings.remote.miss_ppm / 10_000:g} % of blocks lost, "
                f"{settings.remote.failure_ppm / 10_000:g} % of loads fail; eager only"
            ),
        )
    if settings.speculation is not None:
        drafts = settings.speculation
        yield (
            "drafts",
            (
                f"{drafts.num_speculative_tokens} per decode row ({drafts.method.value}), each "
                f"right with {drafts.acceptance_ppm / 1_000_000:g}, "
                f"{drafts.costs.step_ns / 1_000:g} us per pass and "
                f"{drafts.costs.token_ns / 1_000:g} us per token"
            ),
        )


def show_configuration(
    console: Console, scene: Scene, loops: Sequence[Loop], arrivals: str | None = None
) -> None:
    """Print the effective configuration, with the arguments of `configuration`."""
    indent = 10
    for label, words in configuration(scene, loops, arrivals):
        for place, line in enumerate(wrap(words, max(console.width - indent, 20))):
            text = f"{'' if place else label:<{indent}}{line}"
            console.print(text, highlight=False, markup=False)


def show_sentence(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence in lines that fit; a number keeps its percent sign."""
    for line in wrap(sentence.replace(" %", "\0%"), console.width):
        console.print(line.replace("\0", " "), style=style, highlight=False, markup=False)


def show_metrics(console: Console, metrics: Mapping[str, RunMetrics]) -> None:
    """Print a column per loop, and behind all but the first the change against the first."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("metric", no_wrap=True)
    for place, name in enumerate(metrics):
        table.add_column(name, justify="right", no_wrap=True)
        if place:
            table.add_column("change", justify="right", no_wrap=True)
    runs = list(metrics.values())
    if any(run.overloaded for run in runs):
        words = ["yes" if run.overloaded else "no" for run in runs]
        table.add_row("overloaded", words[0], *(cell for word in words[1:] for cell in (word, "")))
    for section in _sections():
        for line in section:
            figures = [line.figure(run) for run in runs]
            if any(figure is not None for figure in figures):
                table.add_row(line.label, *_cells(line, figures))
        table.add_section()
    console.print(table)


def _cells(line: Line, figures: Sequence[float | None]) -> Iterator[Text]:
    for place, figure in enumerate(figures):
        yield Text("-" if figure is None else f"{figure:,.{line.decimals}f}")
        if place:
            yield _change(figures[0], figure, line.better)


def _change(before: float | None, after: float | None, better: int) -> Text:
    if before is None or after is None or (not before and after):
        return Text("")
    change = after / before - 1 if before else 0.0
    if abs(change) < _SMALL_CHANGE:
        return Text("=", "dim")
    text = f"{100 * change:+.1f} %" if change < _HUGE_CHANGE else f"x {1 + change:,.0f}"
    return Text(text, "" if not better else "green" if change * better > 0 else "red")


def _sections() -> Iterator[list[Line]]:
    yield [
        Line("requests completed", lambda run: run.completed, 0, 0),
        Line("  cancelled", lambda run: run.cancelled or None, 0, 0),
        Line("  refused", lambda run: run.refused or None, 0, 0),
        Line("  errored", lambda run: run.errored or None, 0, 0),
        Line("duration, s", lambda run: run.duration_ns / _NS_PER_S, 2, 0),
        Line("output tokens/s", lambda run: _float(run.output_tokens_per_s), 1, 1),
        Line("requests/s", lambda run: _float(run.requests_per_s), 3, 1),
        Line("goodput, requests/s", lambda run: _float(run.goodput_per_s), 3, 1),
    ]
    yield list(_latency("TTFT, ms", lambda run: run.ttft, 1))
    yield list(_latency("TPOT, ms", lambda run: run.tpot, 3))
    yield list(_latency("ITL, ms", lambda run: run.itl, 3))
    yield list(_latency("E2EL, ms", lambda run: run.e2el, 0))
    yield list(_latency("queue, ms", lambda run: run.queue, 1))
    yield [
        Line("NPU busy, %", lambda run: _float(run.npu_busy_share, 100), 2, 0),
        Line("host gap, ms mean", lambda run: _milliseconds(run.host_gap, None), 3, -1),
        Line("  total, s", lambda run: run.host_gap_total_ns / _NS_PER_S, 2, -1),
        Line("CPU busy, s", lambda run: run.record.cpu_busy_ns / _NS_PER_S, 2, 0),
        Line("  hidden, s", lambda run: run.record.cpu_hidden_ns / _NS_PER_S, 2, 0),
        Line("exposed preparations, %", _exposed_share, 2, -1),
        Line("  total, s", lambda run: run.record.exposed_ns / _NS_PER_S, 2, -1),
        Line("  margin at the end, %", _margin, 2, 0),
        Line("device steps", lambda run: run.record.steps, 0, 0),
        Line("wasted rows, EOS", lambda run: run.record.wasted_eos.rows, 0, 0),
        Line("  NPU time, ms", lambda run: run.record.wasted_eos.npu_ns / _NS_PER_MS, 1, 0),
        Line("wasted rows, cancel", lambda run: run.record.wasted_cancel.rows, 0, 0),
        Line("  NPU time, ms", lambda run: run.record.wasted_cancel.npu_ns / _NS_PER_MS, 1, 0),
        Line("discarded rows", lambda run: run.record.discarded.rows, 0, 0),
        Line("preemptions", lambda run: run.record.counters["preemptions"], 0, 0),
        Line("  recomputed tokens", lambda run: run.record.counters["recomputed_tokens"], 0, 0),
        Line("prefix hit tokens", lambda run: run.record.counters["hit_tokens"], 0, 1),
        Line("  on the NPU (L1)", lambda run: _hits(run, "npu"), 0, 0),
        Line("  on the host (L2)", lambda run: _hits(run, "host"), 0, 0),
        Line("  remote (L3)", lambda run: _hits(run, "remote") or None, 0, 0),
        Line("draft tokens", lambda run: run.record.counters["drafted_tokens"] or None, 0, 0),
        Line("  accepted, %", lambda run: _float(run.draft_acceptance, 100), 2, 0),
        Line("  tokens per row and step", _tokens_per_row_step, 3, 0),
        Line("stored blocks", lambda run: run.record.counters["stored_blocks"] or None, 0, 0),
        Line("pending block-seconds", lambda run: run.record.pending_block_ns / _NS_PER_S, 2, 0),
        Line("KV blocks, peak", lambda run: run.record.kv_blocks_max, 0, 0),
    ]


def _latency(
    label: str, figures: Callable[[RunMetrics], Distribution | None], decimals: int
) -> Iterator[Line]:
    def figure(percent: int | None) -> Figure:
        return lambda run: _milliseconds(figures(run), percent)

    yield Line(f"{label} mean", figure(None), decimals, -1)
    for percent in (50, 90, 99):
        yield Line(f"{'p' + str(percent):>{len(label) + 4}}", figure(percent), decimals, -1)


def _hits(run: RunMetrics, tier: str) -> int | None:
    """Return the hit tokens of one tier, where there are others than the NPU's."""
    hits = hit_tokens_by_tier(run.record.counters)
    return hits[tier] if hits["host"] or hits["remote"] else None


def _milliseconds(figures: Distribution | None, percent: int | None) -> float | None:
    if figures is None:
        return None
    return (figures.mean_ns if percent is None else figures.at(percent)) / _NS_PER_MS


def _exposed_share(run: RunMetrics) -> float | None:
    record = run.record
    return 100 * record.exposed_preparations / record.preparations if record.preparations else None


def _tokens_per_row_step(run: RunMetrics) -> float | None:
    """Return it where there are drafts; it is 1 elsewhere."""
    return None if run.draft_acceptance is None else _float(run.tokens_per_row_step)


def _margin(run: RunMetrics) -> float | None:
    margin = run.record.margin_ppm
    return None if margin is None else margin / 10_000


def _float(value: object, factor: int = 1) -> float | None:
    return None if value is None else float(value) * factor  # type: ignore[arg-type]
