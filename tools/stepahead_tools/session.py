"""The steps that `replay` and `compare` share: read, set up, run each loop, write the result."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from rich.console import Console
from structlog.typing import FilteringBoundLogger

from stepahead import Kernel
from stepahead_models.product import to_toml
from stepahead_models.profiles import load_profile
from stepahead_models.record import RunRecord
from stepahead_models.traces import demo_trace, read_trace
from stepahead_tools.engines import Engine, open_engine
from stepahead_tools.errors import OptionError
from stepahead_tools.logs import start_log
from stepahead_tools.loops import Loop
from stepahead_tools.machine_options import LogFormatChoice
from stepahead_tools.metrics import RunMetrics, measure
from stepahead_tools.options import RunOptions
from stepahead_tools.progress import ProgressBar
from stepahead_tools.results import config, encode, result
from stepahead_tools.runs import Scene, run_loop, set_up
from stepahead_tools.settings import DEMO, resolve
from stepahead_tools.tables import show_configuration
from stepahead_tools.unused import Need, needs_of_a_run, refuse_unused
from stepahead_tools.watching import journal_path, watchers

#: Where the result goes instead of a file.
STANDARD_OUTPUT: Final = Path("-")
_PRINTED: Final = Need(
    options=("json", "journal", "check"),
    met=False,
    where="beside --print-config, which runs nothing",
    way_out="run without --print-config",
)


class Session(Struct, frozen=True, kw_only=True):
    """One command under way.

    Args:
        options: as given.
        scene: what runs.
        engine: the configuration that it runs by.
        loops: how, in order.
        log: for what happens meanwhile.
        console: for people; silent when the result goes to standard output.
    """

    options: RunOptions
    scene: Scene
    engine: Engine
    loops: Sequence[Loop]
    log: FilteringBoundLogger
    console: Console


def open_session(options: RunOptions, loops: Sequence[Loop]) -> Session:
    """Read the trace, resolve the options, measure the capacity if needed, and show what will run.

    Raises:
        OptionError, InvalidOption, UnsupportedConfiguration, UnreadableConfiguration, ConfigError,
        TraceError, DeviceModelError, OSError: what was asked for cannot run.
    """
    check_targets(options, loops)
    log = start_log(options.log_format.value)
    profile = load_profile(options.device)
    engine = open_engine(options, loops, profile)
    settings = resolve(options, profile, engine.config)
    refuse_unused(options, needs_of_a_run(engine, loops, settings))
    for loop in loops:
        # Refuses what the kernel does not take, before anything is read or measured.
        settings.kernel_config(loop)
    path = demo_trace() if options.trace == DEMO else Path(options.trace)
    trace = read_trace(path, skip_bad_lines=options.skip_bad_lines)
    count = len(trace) if settings.limit is None else min(len(trace), settings.limit)
    with ProgressBar("capacity", count) as progress:
        scene = set_up(trace, settings, profile, progress)
    console = Console(quiet=options.json == STANDARD_OUTPUT)
    show_configuration(console, scene, loops)
    if trace.bad_lines:
        log.warning("bad lines skipped", count=len(trace.bad_lines))
    if settings.npu_queue_limit > 1:
        log.warning(
            "the kernel keeps one batch dispatched; --npu-queue-limit changes nothing here",
            npu_queue_limit=settings.npu_queue_limit,
        )
    if options.log_format is LogFormatChoice.JSON:
        log.info(
            "Effective configuration",
            product_version=engine.version.value,
            **config(scene, loops),
        )
    return Session(
        options=options, scene=scene, engine=engine, loops=loops, log=log, console=console
    )


def print_configuration(options: RunOptions, loops: Sequence[Loop]) -> None:
    """Print the effective configuration of the engine under one loop, and its warnings.

    Raises:
        OptionError: there are several loops.
        InvalidOption, UnsupportedConfiguration, UnreadableConfiguration, DeviceModelError, OSError:
            it could not start.
    """
    if len(loops) > 1:
        raise OptionError(
            f"--print-config prints the configuration of one loop, and here run {len(loops)}; name "
            "one with --loops, or use replay"
        )
    refuse_unused(options, (_PRINTED,))
    engine = open_engine(options, loops, load_profile(options.device))
    log = start_log(options.log_format.value)
    for sentences in engine.warnings.values():
        for sentence in sentences:
            log.warning(sentence)
    sys.stdout.write(to_toml(engine.config))


def run(session: Session, loop: Loop) -> RunRecord:
    """Run one loop of a session, with its journal, its checks and a progress bar."""
    started = f"{loop.name.capitalize()} scheduler has started"
    session.log.info(started, lookahead=loop.lookahead)
    for sentence in session.engine.warnings[loop.name]:
        session.log.warning(sentence)
    kernel = Kernel(session.scene.settings.kernel_config(loop))
    several = len(session.loops) > 1
    journal = journal_path(session.options.journal, loop.name, several=several)
    with (
        watchers(kernel, journal, check=session.options.check) as observers,
        ProgressBar(loop.name, len(session.scene.trace)) as progress,
    ):
        return run_loop(
            session.scene,
            loop,
            observers=observers,
            kernel=kernel,
            progress=progress,
        )


def figures(session: Session, record: RunRecord) -> RunMetrics:
    """Return the figures of a run of the session."""
    settings = session.scene.settings
    return measure(
        record,
        warmup=settings.warmup,
        objectives=settings.objectives,
        closed_loop=session.scene.closed_loop is not None,
    )


def check_targets(options: RunOptions, loops: Sequence[Loop]) -> None:
    """Refuse, before anything has run, to write where nothing can or should be written.

    Raises:
        OptionError: there is no such folder, or it would be written over something in use.
    """
    for flag, target in (("--json", options.json), ("--journal", options.journal)):
        if target is not None and (target.is_dir() or not target.parent.is_dir()):
            raise OptionError(
                f"{flag} {target} cannot be written: there is no folder {target.parent}, or it is "
                "a folder itself; give a file in a folder that exists"
            )
    _check_overwriting(options, loops)


def _check_overwriting(options: RunOptions, loops: Sequence[Loop]) -> None:
    """Refuse, before anything has run, to write over what is read or was written just before."""
    taken: dict[Path, str] = {}
    for what, path in (
        ("the trace", None if options.trace == DEMO else options.trace),
        ("--config", options.config),
        ("--device", options.device),
    ):
        if path is not None:
            taken[Path(path).resolve()] = what
    several = len(loops) > 1
    targets = [("--json", None if options.json == STANDARD_OUTPUT else options.json)]
    targets += [
        ("--journal", journal_path(options.journal, loop.name, several=several)) for loop in loops
    ]
    for flag, target in targets:
        if target is None:
            continue
        other = taken.setdefault(target.resolve(), flag)
        if other != flag:
            raise OptionError(f"{flag} {target} would be written over {other}; give another file")


def write_result(session: Session, metrics: Mapping[str, RunMetrics]) -> None:
    """Write the JSON result where it was asked for."""
    target = session.options.json
    if target is None:
        return
    text = encode(result(session.scene, session.loops, metrics))
    if target == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        target.write_text(text, encoding="utf-8", newline="\n")
