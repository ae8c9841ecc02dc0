"""`stepahead replay`: one trace under one loop, or a journal once more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stepahead_specs.counting import counted
from stepahead_tools.agreement import disagreements
from stepahead_tools.engines import replayed_loop
from stepahead_tools.errors import Disagreement, Incomplete, OptionError
from stepahead_tools.options import ReplayOptions
from stepahead_tools.session import figures, open_session, print_configuration, run, write_result
from stepahead_tools.settings import DEMO
from stepahead_tools.tables import show_metrics
from stepahead_tools.unused import given

_HEADER_BYTES_MAX = 1 << 16


def replay(options: ReplayOptions) -> None:
    """Run one loop and show its figures, or replay a journal and say that it agrees.

    Raises:
        Disagreement: a cancelled request got wrong tokens, or KV blocks leaked.
        TraceMismatch: the journal differs from what the kernel does.
        Incomplete: the journal has no end mark.
    """
    if options.trace != DEMO and is_journal(Path(options.trace)):
        _replay_journal(options)
        return
    loop = replayed_loop(options)
    if options.print_config:
        print_configuration(options, (loop,))
        return
    session = open_session(options, (loop,))
    record = run(session, loop)
    metrics = {loop.name: figures(session, record)}
    show_metrics(session.console, metrics)
    write_result(session, metrics)
    found = list(disagreements(session.scene, {loop.name: record}))
    if found:
        raise Disagreement(f"the run is not sound: {'; '.join(found)}")


def is_journal(path: Path) -> bool:
    """Tell whether a file begins like a journal, whatever its name."""
    with path.open("rb") as file:
        head = file.readline(_HEADER_BYTES_MAX)
    try:
        header: object = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and "journal" in header


def _replay_journal(options: ReplayOptions) -> None:
    if flags := given(options):
        raise OptionError(
            f"{options.trace} is a journal, which carries its own configuration; leave out "
            f"{', '.join(flags)}"
        )
    from stepahead_models.journal import replay_journal  # noqa: PLC0415 # for a journal only

    path = Path(options.trace)
    replayed = replay_journal(path)
    said = [f"{counted(replayed.lines, 'event')} replayed: same commands, same digests."]
    if replayed.torn:
        said.append("The file ends in the middle of a line, which was left out.")
    if not replayed.ended and not replayed.incomplete:
        said.append(
            f"Journals of schema {replayed.schema} have no end mark, so nothing tells whether "
            "there were more."
        )
    sys.stdout.write(
        f"{' '.join(said)}\nchained digest  {replayed.digest}\nkernel's state  {replayed.state}\n"
    )
    if replayed.incomplete:
        raise Incomplete(
            f"{path.name} is incomplete: it holds {counted(replayed.lines, 'event')} and no end "
            "mark; the run broke there, or the file was cut"
        )
