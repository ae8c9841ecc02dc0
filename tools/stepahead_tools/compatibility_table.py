"""The product's compatibility table as a person sees it."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepahead_models.product import Feature, ProductVersion, Verdict
from stepahead_models.product.compatibility import combination_for, row_for

_STYLES: Final = {Verdict.SUPPORTED: "green", Verdict.REFUSED: "red", Verdict.DISABLED: "yellow"}


def show_compatibility(version_name: str) -> None:
    """Print what each loop does about each feature, and which features exclude each other."""
    version = ProductVersion(version_name)
    console = Console()
    table = Table(
        title=f"Furiosa-LLM {version.value}; just-in-time has the column of overlap",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
    )
    for head in ("feature", "eager", "overlap", "reason"):
        table.add_column(head)
    for feature in Feature:
        row = row_for(feature, version)
        table.add_row(feature.value, _verdict(row.eager), _verdict(row.overlap), row.reason)
    console.print(table)
    for feature in Feature:
        for beside in Feature:
            verdict = combination_for(feature, beside, version)
            if verdict is not Verdict.SUPPORTED:
                console.print(
                    f"{feature.value} beside {beside.value}: {verdict.value}",
                    highlight=False,
                    markup=False,
                )


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict.value, style=_STYLES[verdict])
