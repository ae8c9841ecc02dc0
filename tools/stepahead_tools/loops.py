"""The loops by name, and which of them run.

A loop is what differs between the runs of a comparison; everything else stands in the settings.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepahead import SelectionTiming
from stepahead_tools.errors import OptionError
from stepahead_tools.names import hint
from stepahead_tools.options import CompareOptions, RunOptions

_LOOKAHEAD_MAX: Final = 8


class Loop(Struct, frozen=True):
    """One way to schedule: how many batches are prepared ahead, and when they are selected."""

    name: str
    lookahead: int
    timing: SelectionTiming = SelectionTiming.EARLY


EAGER: Final = Loop("eager", 0)
OVERLAP: Final = Loop("overlap", 1)
JUST_IN_TIME: Final = Loop("just-in-time", 1, SelectionTiming.JUST_IN_TIME)
LOOPS: Final = {loop.name: loop for loop in (EAGER, OVERLAP, JUST_IN_TIME)}


def compared_loops(options: CompareOptions) -> tuple[Loop, ...]:
    """Return the loops to compare, in order.

    Raises:
        OptionError: a name is unknown or given twice, or contradicts another option.
    """
    names = [name.strip().lower() for name in options.loops.split(",")]
    for name in names:
        if name not in LOOPS:
            raise OptionError(
                f"--loops names {name!r}, which is no loop; give some of {', '.join(LOOPS)}, "
                f"separated by commas{hint(name, tuple(LOOPS))}"
            )
    if len(set(names)) < len(names):
        raise OptionError(f"--loops {options.loops} names a loop twice; give each one once")
    flag = options.enable_overlap_scheduling
    ahead = any(LOOPS[name].lookahead for name in names)
    if flag is False and ahead:
        raise OptionError(
            f"--no-enable-overlap-scheduling contradicts --loops {options.loops}; leave the flag "
            "out, or give --loops eager"
        )
    if flag and not ahead:
        raise OptionError(
            f"--enable-overlap-scheduling contradicts --loops {options.loops}; leave the flag out, "
            "or name overlap in --loops"
        )
    if options.lookahead is not None and not ahead:
        raise _nothing_ahead(options.lookahead)
    return tuple(_looking_ahead(LOOPS[name], options) for name in names)


def chosen_loop(name: str | None, options: RunOptions) -> Loop:
    """Return the one loop that ``--loop`` and the product's flag choose; eager by default.

    Raises:
        OptionError: they contradict each other or another option.
    """
    flag = options.enable_overlap_scheduling
    if name is None:
        name = (OVERLAP if flag else EAGER).name
    elif flag is not None and flag != bool(LOOPS[name].lookahead):
        spelled = "--enable-overlap-scheduling" if flag else "--no-enable-overlap-scheduling"
        raise OptionError(f"--loop {name} contradicts {spelled}; give one of the two")
    if options.lookahead and not LOOPS[name].lookahead:
        raise _nothing_ahead(options.lookahead)
    return _looking_ahead(LOOPS[name], options)


def _looking_ahead(loop: Loop, options: RunOptions) -> Loop:
    """Return a loop as it will run: with the lookahead asked for, where it looks ahead."""
    if loop.lookahead == 0:
        return loop
    if options.lookahead is None:
        return loop
    if not 1 <= options.lookahead <= _LOOKAHEAD_MAX:
        raise OptionError(
            f"--lookahead {options.lookahead} contradicts the {loop.name} loop; give 1 to "
            f"{_LOOKAHEAD_MAX}, or run the eager loop alone"
        )
    return replace(loop, lookahead=options.lookahead)


def _nothing_ahead(lookahead: int) -> OptionError:
    return OptionError(
        f"--lookahead {lookahead} contradicts the eager loop, which prepares nothing ahead; leave "
        "it out, or choose the overlap loop"
    )
