"""`stepahead check`: judge a history that any engine has written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stepahead_tools.errors import HistoryBroken, OptionError


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What `check` takes."""

    history: Annotated[
        Path, typer.Argument(metavar="HISTORY", help="One fact per line, in JSON; see the help.")
    ]
    waive: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE=REASON",
            help="Leave out a rule that the engine does not claim to keep; may be repeated.",
            show_default=False,
        ),
    ] = None


def check(options: CheckOptions) -> None:
    """Check a history and print the page of results.

    Raises:
        HistoryBroken: a line breaks a rule.
        HistoryError: the file is not a history.
        OptionError: a waiver names no rule, or has no reason.
    """
    from stepahead_specs.conformance.checker import check_history  # noqa: PLC0415 # for this alone

    checked = check_history(options.history, _waived(options.waive or []))
    typer.echo(checked.page(), nl=False)
    if checked.line is not None:
        keys = ", ".join(dict.fromkeys(violation.key for violation in checked.violations))
        raise HistoryBroken(f"{options.history}:{checked.line}: breaks {keys}")


def _waived(waivers: list[str]) -> dict[str, str]:
    from stepahead_specs.conformance.parts import unknown_rules  # noqa: PLC0415 # for this alone

    waived: dict[str, str] = {}
    for waiver in waivers:
        rule, _, reason = waiver.partition("=")
        name = rule.strip().replace(" ", "_")
        if not reason.strip():
            raise OptionError(f"--waive {waiver!r} gives no reason; write RULE=REASON")
        if unknown_rules([name]):
            raise OptionError(
                f"--waive {rule!r} is no rule; use a name from the page, without its INV number"
            )
        waived[name] = reason.strip()
    return waived
