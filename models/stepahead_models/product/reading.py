"""Reads a configuration from TOML and from keyword options, the second over the first.

Owns the translation of options into fields. Opens no file and reads no environment.
"""

import tomllib
from collections.abc import Mapping
from typing import Final, cast

from stepahead_models.product.compatibility import CHANGED_DEFAULTS
from stepahead_models.product.engine import EngineConfig, KVTransferConfig
from stepahead_models.product.loops import SchedulingLoop
from stepahead_models.product.offload import MemoryOptions
from stepahead_models.product.options import (
    KV_OFFLOAD,
    KV_TRANSFER,
    OPTIONS,
    SCHEDULER,
    SPECULATIVE,
)
from stepahead_models.product.rules import InvalidOption, UnknownOption, build
from stepahead_models.product.speculation import read_speculative, read_table
from stepahead_models.product.versions import DEFAULT_VERSION, ProductVersion

Plain = dict[str, object]

_LOOP: Final = f"{SCHEDULER}.scheduling_loop_type"


class UnreadableConfiguration(ValueError):
    """The text is no TOML.

    Attributes:
        where: name of the text, as the caller gave it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where} is not TOML: {problem}; correct it, or start without it")
        self.where = where


def read_engine_config(
    toml: str = "",
    options: Mapping[str, object] | None = None,
    *,
    where: str = "the configuration",
    version: ProductVersion = DEFAULT_VERSION,
) -> EngineConfig:
    """Return the configuration that a TOML text and keyword options describe.

    Args:
        toml: tables and keys named as the fields of `EngineConfig`; may be empty.
        options: values by keyword of `OPTIONS`; they win over the text. None is "not given".
        where: what to call the text in a message, for example its path.
        version: whose defaults count where nothing is given.

    Raises:
        UnreadableConfiguration: the text is no TOML.
        UnknownOption: a key or keyword does not exist.
        InvalidOption: a value breaks a rule, or two options contradict each other.
    """
    try:
        plain: Plain = tomllib.loads(toml)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnreadableConfiguration(where, str(error)) from error
    _apply_options(plain, options or {})
    _derive_enabled(plain)
    for field, (since, value) in CHANGED_DEFAULTS.items():
        table, _, key = field.rpartition(".")
        if version.includes(since):
            _table(plain, table).setdefault(key, value)
    return build(EngineConfig, plain, "")


def _apply_options(plain: Plain, options: Mapping[str, object]) -> None:
    """Lay keyword options over the plain values of a text."""
    known = {option.keyword: option for option in OPTIONS}
    for keyword in options:
        if keyword not in known:
            raise UnknownOption(option=keyword, key=keyword, known=known)
    given = {name: value for name, value in options.items() if value is not None}
    _apply_loop(plain, given)
    for keyword, value in given.items():
        table, _, key = known[keyword].field.rpartition(".")
        if key and known[keyword].field != _LOOP:
            _table(plain, table)[key] = value
    _apply_memory(plain, given)
    speculative = read_speculative(given)
    if speculative is not None:
        plain[SPECULATIVE] = speculative
    transfer = given.get(KV_TRANSFER)
    if isinstance(transfer, KVTransferConfig):
        plain[KV_TRANSFER] = transfer
    elif transfer is not None:
        plain[KV_TRANSFER] = read_table(KV_TRANSFER, transfer)


def _apply_loop(plain: Plain, given: Plain) -> None:
    """Settle the two options for the loop, of which the product has the yes or no."""
    named = given.get("scheduling_loop_type")
    overlap = given.get("enable_overlap_scheduling")
    if overlap is not None and not isinstance(overlap, bool):
        raise InvalidOption(
            option="enable_overlap_scheduling",
            value=overlap,
            expected="true or false",
            way_out="name a loop with scheduling_loop_type instead",
        )
    loop = SchedulingLoop.named(named) if isinstance(named, str) else named
    if loop is None and overlap is not None:
        loop = SchedulingLoop.OVERLAP if overlap else SchedulingLoop.EAGER
    if overlap is not None and overlap == (loop is SchedulingLoop.EAGER):
        raise InvalidOption(
            option="enable_overlap_scheduling",
            value=overlap,
            expected="nothing that contradicts scheduling_loop_type",
            way_out="leave out one of the two",
        )
    if loop is not None:
        _table(plain, SCHEDULER)["scheduling_loop_type"] = loop


def _apply_memory(plain: Plain, given: Plain) -> None:
    """Turn budgets in GiB into bytes."""
    names = MemoryOptions.__struct_fields__
    budgets = build(MemoryOptions, {name: given[name] for name in names if name in given}, "")
    fields = budgets.fields()
    table = _table(plain, KV_OFFLOAD)
    if "host_memory_bytes" in fields or "host_memory_ratio" in fields:
        # A budget on the command line replaces the one in the text, and what was said of it.
        for name in ("enabled", "host_memory_bytes", "host_memory_ratio"):
            table.pop(name, None)
    table.update(fields)


def _derive_enabled(plain: Plain) -> None:
    """Switch the host cache on where a budget is given and nothing is said.

    Source:
        furiosa-llm 2026.4.0 package, serve command.
    """
    table = _table(plain, KV_OFFLOAD)
    ratio = table.get("host_memory_ratio", 0)
    has_ratio = isinstance(ratio, int | float) and ratio > 0
    if "enabled" not in table and ("host_memory_bytes" in table or has_ratio):
        table["enabled"] = True


def _table(plain: Plain, section: str) -> Plain:
    """Return the inner table of a dotted name, made where it is missing."""
    table, place = plain, ""
    for name in filter(None, section.split(".")):
        place = f"{place}.{name}".lstrip(".")
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidOption(
                option=place,
                value=inner,
                expected="a table of options",
                way_out=f"write [{place}] and its keys below",
            )
        table = cast("Plain", inner)
    return table
