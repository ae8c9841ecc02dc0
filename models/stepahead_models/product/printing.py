"""Writes the effective configuration as TOML, and the compatibility table as Markdown.

Owns the two forms. The same values give the same bytes.
"""

import json
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import groupby

from msgspec import Struct

from stepahead_models.product.compatibility import (
    COMBINATIONS,
    COMPATIBILITY,
    Combination,
    Row,
)
from stepahead_models.product.engine import EngineConfig
from stepahead_models.product.versions import DEFAULT_VERSION


def to_toml(config: EngineConfig) -> str:
    """Write every field, defaults included, in the order of the fields.

    TOML has no null, so a field without a value stands in a comment. Reading the text gives a
    configuration that is equal to this one.
    """
    return "\n".join(_table("", config)) + "\n"


def render_compatibility_markdown() -> str:
    """Write the compatibility table, what later versions changed, and the pairs, as Markdown."""
    base = [row for row in COMPATIBILITY if row.since is DEFAULT_VERSION]
    later = [row for row in COMPATIBILITY if row.since is not DEFAULT_VERSION]
    return "\n".join(
        [
            f"Version {DEFAULT_VERSION.value}, the default; just-in-time has the rows of overlap.",
            "",
            *_markdown(
                ("feature", "eager", "overlap", "reason", "source"),
                (_cells(row) for row in base),
            ),
            "",
            "Changed since:",
            "",
            *_markdown(
                ("feature", "since", "eager", "overlap", "reason", "source"),
                ((row.feature.value, row.since.value, *_cells(row)[1:]) for row in later),
            ),
            "",
            "Features beside each other; a pair that is not listed works.",
            "",
            *_markdown(("feature", "beside", "since", "verdict", "source"), _pairs()),
            "",
        ]
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (row.feature.value, row.eager.value, row.overlap.value, row.reason, row.source)


def _pairs() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the pairs, those that differ in the second feature alone as one."""

    def all_but_beside(pair: Combination) -> tuple[str, str, str, str]:
        return pair.feature.value, pair.since.value, pair.verdict.value, pair.source

    for (feature, *rest), pairs in groupby(COMBINATIONS, key=all_but_beside):
        yield (feature, "; ".join(pair.beside.value for pair in pairs), *rest)


def _markdown(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _table(name: str, table: Struct) -> Iterator[str]:
    """Yield the lines of one table, its own keys first, as TOML demands."""
    if name:
        yield f"\n[{name}]"
    inner: list[tuple[str, Struct]] = []
    for key in table.__struct_fields__:
        value: object = getattr(table, key)
        if isinstance(value, Struct):
            inner.append((f"{name}.{key}".lstrip("."), value))
        elif value is None and key == "write_through_threshold":
            yield f"{key} = 0"  # left out it would be the default 2
        elif value is None:
            yield f"# {key} is not set"
        else:
            yield f"{key} = {_literal(value)}"
    for inner_name, inner_table in inner:
        yield from _table(inner_name, inner_table)


def _literal(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A JSON text is a TOML text but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
