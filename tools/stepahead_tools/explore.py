"""`stepahead explore`: every interleaving of the real kernel within bounds."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console

from stepahead_specs.explorer import Bounds, Options, explore, report, write_journal
from stepahead_tools.errors import Incomplete, OptionError
from stepahead_tools.explore_options import ExploreOptions

#: What must be at least 1 for there to be anything to explore.
_AT_LEAST_ONE = ("requests", "blocks", "tokens", "block_size", "budget", "row_tokens", "states_max")


def explore_kernel(options: ExploreOptions) -> None:
    """Explore, print the result, and raise unless it is complete and sound.

    Raises:
        Incomplete: something does not hold, or not everything was seen.
        OptionError: there is nothing to explore within these bounds.
    """
    bounds = bounds_of(options)
    search = Options(
        states_max=options.states_max,
        seconds_max=float("inf") if options.seconds_max is None else options.seconds_max,
        probe=options.probe,
    )
    found = explore(bounds, search)
    Console().print(report(found), highlight=False, markup=False, soft_wrap=True)
    if found.violation is not None and options.journal is not None:
        write_journal(found.violation, bounds, options.journal)
    if found.violation is not None:
        raise Incomplete("the kernel violates what is printed above")
    if found.stopped is not None:
        raise Incomplete(
            "the search is not complete, which is no pass; lower the bounds, or raise "
            "--states-max or --seconds-max"
        )


def bounds_of(options: ExploreOptions) -> Bounds:
    """Return the bounds that the options name.

    Raises:
        OptionError: a number is too small, or a list holds something else than numbers.
    """
    for name in _AT_LEAST_ONE:
        if getattr(options, name) < 1:
            raise OptionError(
                f"--{name.replace('_', '-')} is {getattr(options, name)}; give at least 1"
            )
    named = {entry.name for entry in fields(Bounds)} & {entry.name for entry in fields(options)}
    values = {name: getattr(options, name) for name in named - {"prompts", "priorities"}}
    return Bounds(
        prompts=_numbers("--prompts", options.prompts),
        priorities=_numbers("--priorities", options.priorities),
        **values,
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise OptionError(
            f"{option} is {text!r}; give whole numbers, separated by commas"
        ) from None
