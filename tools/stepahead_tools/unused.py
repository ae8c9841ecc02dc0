"""Options that were given and would change nothing: refused by name, with the way out.

Whoever gives an option expects an effect. That is for options of this program's own; what the
product takes in silence is named in a warning instead (`stepahead_tools.engines`), since its
configurations are to run here as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields

from msgspec import Struct

from stepahead import SelectionTiming
from stepahead_tools.engines import Engine
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import Loop
from stepahead_tools.options import RunOptions
from stepahead_tools.settings import Settings


class Need(Struct, frozen=True, kw_only=True):
    """What some options need to have an effect.

    Args:
        options: their fields.
        met: whether it is there.
        where: where they have none, for example "without a cache".
        way_out: what else to do than to leave them out.
    """

    options: Sequence[str]
    met: bool
    where: str
    way_out: str


def needs_of_a_run(engine: Engine, loops: Iterable[Loop], settings: Settings) -> Iterator[Need]:
    """Iterate over what the options of every run need."""
    remote = any(checked.config.l3_enabled for checked in engine.checked.values())
    yield Need(
        options=("remote_gb_per_s", "remote_latency_us", "remote_miss", "remote_failure"),
        met=remote,
        where="where no loop has a remote KV cache (L3)",
        way_out="give --l3-enabled and a loop that has one",
    )
    yield Need(
        options=("draft_acceptance", "draft_step_us", "draft_token_us"),
        met=settings.speculation is not None,
        where="where nothing is drafted",
        way_out="give --experimental-speculative-config",
    )
    yield Need(
        options=("draft_acceptance", "draft_step_us", "draft_token_us"),
        met=min(settings.max_num_batched_tokens, settings.max_tokens_per_row) > 1,
        where="where a batch has no room for drafts",
        way_out="give batches 2 tokens or more",
    )
    yield Need(
        options=("late_joiners", "late_share"),
        met=any(loop.timing is SelectionTiming.JUST_IN_TIME for loop in loops),
        where="where no loop selects just in time",
        way_out="run the just-in-time loop",
    )
    objectives = settings.objectives
    yield Need(
        options=("goodput_single_token",),
        met=objectives is not None and objectives.tpot_ns is not None,
        where="without an objective for TPOT",
        way_out="give one, for example --goodput tpot:30",
    )


def given(options: RunOptions, names: Iterable[str] | None = None) -> list[str]:
    """Return the flags of the fields that differ from their default, of all or of some."""
    defaults = {
        field.name: field.default for field in fields(options) if field.default is not MISSING
    }
    wanted = defaults if names is None else names
    changed = [name for name in wanted if getattr(options, name) != defaults[name]]
    return ["--" + name.replace("_", "-") for name in changed]


def refuse_unused(options: RunOptions, needs: Iterable[Need]) -> None:
    """Refuse what would change nothing.

    Raises:
        OptionError: options are given that have an unmet need.
    """
    for need in needs:
        flags = [] if need.met else given(options, need.options)
        if flags:
            have, them = ("has", "it") if len(flags) == 1 else ("have", "them")
            raise OptionError(
                f"{' and '.join(flags)} {have} no effect {need.where}; leave {them} out, or "
                f"{need.way_out}"
            )
