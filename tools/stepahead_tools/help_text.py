"""Help as plain text: options in their groups, long names on a line of their own.

The panels that typer draws cut names such as `--experimental-kv-offload-write-back` off in a
terminal of 80 columns, and who cannot read a name cannot give the option.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_UNGROUPED = "Options"


class GroupedHelp(TyperCommand):
    """A command whose help groups the options by their `rich_help_panel`."""

    # Some releases of typer bring a click of their own, so neither's types can be named.
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
