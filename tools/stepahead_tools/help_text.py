"""Help as plain text, options in their groups with whole names; and the sentence for wrong choices.

The panels that typer draws cut names such as `--experimental-kv-offload-write-back` off in a
terminal of 80 columns, and who cannot read a name cannot give the option.
"""

from __future__ import annotations

import re
from typing import Any, Final

import typer
from typer.core import TyperCommand

from stepahead_tools.names import hint

_UNGROUPED: Final = "Options"
_NO_CHOICE: Final = re.compile(r"'(?P<given>.*)' is not one of (?P<names>'.+')")


class GroupedHelp(TyperCommand):
    """A command whose help groups the options by their `rich_help_panel`."""

    # Some releases of typer bring a click of their own, so neither's types can be named.
    def make_context(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Read the arguments; a wrong choice is told in our own words."""
        try:
            return super().make_context(*arguments, **named)
        except Exception as error:
            told = wrong_choice(error)
            if told is None:
                raise
            typer.echo(f"stepahead: {told}", err=True)
            raise typer.Exit(2) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the arguments, then each group of options in the order of its first one."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            argument = parameter.param_type_name == "argument"
            panel = getattr(parameter, "rich_help_panel", None) or _UNGROUPED
            groups.setdefault("Arguments" if argument else panel, []).append(record)
        for title, records in sorted(groups.items(), key=lambda group: group[0] != "Arguments"):
            with formatter.section(title):
                formatter.write_dl(records)


def wrong_choice(error: Any) -> str | None:  # noqa: ANN401 # as above
    """Return one sentence for a value that is none of an option's choices; None for all else."""
    found = _NO_CHOICE.search(str(getattr(error, "message", "")))
    param = getattr(error, "param", None)
    if found is None or param is None:
        return None
    names = re.findall(r"'([^']*)'", found["names"])
    flag, given = max(param.opts, key=len), found["given"]
    return f"{flag} {given} is no choice; give one of {', '.join(names)}{hint(given, names)}"
