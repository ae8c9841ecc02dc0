"""`stepahead replay`: one trace under one loop, or a journal once more."""

from __future__ import annotations

from stepahead_tools.agreement import disagreements
from stepahead_tools.errors import Disagreement
from stepahead_tools.options import ReplayOptions
from stepahead_tools.session import figures, open_session, run, write_result
from stepahead_tools.settings import chosen_loop
from stepahead_tools.tables import show_metrics


def replay(options: ReplayOptions) -> None:
    """Run one loop and show its figures.

    Raises:
        Disagreement: a cancelled request got wrong tokens, or KV blocks leaked.
    """
    loop = chosen_loop(None if options.loop is None else options.loop.value, options)
    session = open_session(options, (loop,))
    record = run(session, loop)
    metrics = {loop.name: figures(session, record)}
    show_metrics(session.console, metrics)
    write_result(session, metrics)
    found = list(disagreements(session.scene, {loop.name: record}))
    if found:
        raise Disagreement(f"the run is not sound: {'; '.join(found)}")
