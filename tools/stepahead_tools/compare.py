"""`stepahead compare`: one trace under several loops, side by side."""

from __future__ import annotations

from stepahead_tools.agreement import disagreements
from stepahead_tools.errors import Disagreement
from stepahead_tools.loops import compared_loops
from stepahead_tools.options import CompareOptions
from stepahead_tools.session import figures, open_session, print_configuration, run, write_result
from stepahead_tools.tables import show_metrics, show_sentence
from stepahead_tools.verdict import verdict

_SHOWN_MAX = 5


def compare(options: CompareOptions) -> None:
    """Run every loop, show the table and the verdict, and check that all did the same work.

    Raises:
        Disagreement: a request got different tokens, or KV blocks leaked.
    """
    loops = compared_loops(options)
    if options.print_config:
        print_configuration(options, loops)
        return
    session = open_session(options, loops)
    records = {loop.name: run(session, loop) for loop in session.loops}
    metrics = {name: figures(session, record) for name, record in records.items()}
    show_metrics(session.console, metrics)
    write_result(session, metrics)
    found = list(disagreements(session.scene, records))
    if found:
        more = f" (and {len(found) - _SHOWN_MAX} more)" if len(found) > _SHOWN_MAX else ""
        raise Disagreement(f"the loops disagree: {'; '.join(found[:_SHOWN_MAX])}{more}")
    reference, *others = metrics.items()
    for other in others:
        show_sentence(session.console, verdict(reference, other))
    show_sentence(
        session.console,
        "Every request completed in more than one loop got the same tokens; no KV block leaked.",
        "dim",
    )
