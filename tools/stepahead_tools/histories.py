"""`stepahead check`: judge a history that any engine has written."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from stepahead_tools.declared import Argument, Option
from stepahead_tools.errors import HistoryBroken, OptionError


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What `check` takes."""

    history: Annotated[
        Path, Argument(metavar="HISTORY", help="One fact per line, in JSON; see the help.")
    ]
    waive: Annotated[
        list[str] | None,
        Option(
            metavar="RULE=REASON",
            help="Leave out a rule that the engine does not claim to keep; may be repeated.",
            show_default=False,
        ),
    ] = None
    page: Annotated[
        bool,
        Option("--page", help="Print the whole page of results also where a rule is broken."),
    ] = False


def check(options: CheckOptions) -> None:
    """Check a history; print the page of results, or what is broken and how to see it again.

    Raises:
        HistoryBroken: a line breaks a rule.
        HistoryError: the file is not a history.
        OptionError: a waiver names no rule, or has no reason.
    """
    from stepahead_specs.conformance.checker import check_history  # noqa: PLC0415 # for this alone

    checked = check_history(options.history, _waived(options.waive or []))
    if checked.line is None or options.page:
        sys.stdout.write(checked.page())
    else:
        sys.stdout.write(f"{checked.verdict()}\n\n{_again(options, checked.line)}\n")
    if checked.line is not None:
        keys = ", ".join(dict.fromkeys(violation.key for violation in checked.violations))
        raise HistoryBroken(f"{options.history}:{checked.line}: breaks {keys}")


def _again(options: CheckOptions, line: int) -> str:
    """Return the commands that show the same once more: from less, and with everything."""
    waivers = [word for waiver in options.waive or [] for word in ("--waive", waiver)]
    start = shlex.join(["head", "-n", str(line), str(options.history)])
    short = shlex.join(["stepahead", "check", "short.jsonl", *waivers])
    whole = shlex.join(["stepahead", "check", str(options.history), *waivers, "--page"])
    return (
        f"The lines up to there are enough: {start} > short.jsonl; {short}\n"
        f"What was checked, and what was not: {whole}"
    )


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
