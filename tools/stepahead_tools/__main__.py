"""`stepahead` and `python -m stepahead_tools`: the commands and their exit codes.

0: done. 1: the run found something wrong. 2: what was asked for cannot be done. What a command
needs is imported when it runs, so that help comes at once.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from stepahead_tools.advise_options import FIXED, AdviseOptions
from stepahead_tools.calibrate_options import CalibrateOptions
from stepahead_tools.compatibility import CompatibilityOptions, compatibility
from stepahead_tools.explore_options import ExploreOptions
from stepahead_tools.histories import CheckOptions
from stepahead_tools.mutants_options import MutantsOptions
from stepahead_tools.options import CompareOptions, ReplayOptions, make_command

#: New objects between two garbage collections; importing makes some hundred thousand.
_GARBAGE_OBJECTS: Final = 200_000
_SPREAD = {
    "--goodput": re.compile(r"(?:ttft|tpot|e2el):"),
    "--slo": re.compile(r"(?:ttft|tpot|itl|e2el|queue)_\w+:"),
}


def _compare(options: CompareOptions) -> None:
    """Replay a trace under several loops and compare them.

    Prints one table with the change per metric and says whether overlap pays on this load and what
    it costs in TTFT. Exits with 1 when the loops did not give the same tokens.

    Arrival times in a trace are ms (Mooncake, ServeGen, our own format), s (Bailian, BurstGPT) or
    UTC (Azure). Results are in ms and s of simulated time, as labelled.
    """
    from stepahead_tools.compare import compare  # noqa: PLC0415 # imported when it runs

    compare(options)


def _replay(options: ReplayOptions) -> None:
    """Replay a trace under one loop, or a journal once more.

    A journal (see --journal) is told from a trace by its content; it is replayed on a fresh kernel,
    and the first line that differs is named.

    Arrival times in a trace are ms (Mooncake, ServeGen, our own format), s (Bailian, BurstGPT) or
    UTC (Azure). Results are in ms and s of simulated time, as labelled.
    """
    from stepahead_tools.replay import replay  # noqa: PLC0415 # imported when it runs

    replay(options)


def _explore(options: ExploreOptions) -> None:
    """Explore every interleaving of the kernel within bounds.

    Clients come and leave at any moment, the host is ready at any moment, the NPU ends any row with
    EOS or not: breadth first, with all invariants on every step. Prints the shortest run that
    violates one. Exits with 1 if anything does not hold, or if not everything was seen.
    """
    from stepahead_tools.explore import explore_kernel  # noqa: PLC0415 # imported when it runs

    explore_kernel(options)


def _advise(options: AdviseOptions) -> None:
    """Say which loop to use on a load, and why.

    Searches the load, or the number of clients, at which each loop gives the most requests/s that
    meet --goodput while --slo holds. Then compares the loops at the eager loop's best load: what
    overlap costs in TTFT, how long preparation must be before it pays, and how short outputs and
    cancels eat the gain. Takes about half a minute of CPU time for 300 requests.
    """
    from stepahead_tools.advise import advise  # noqa: PLC0415 # imported when it runs

    advise(options)


def _calibrate(options: CalibrateOptions) -> None:
    """Compare a device profile with its measurements.

    Simulates the closed loop of every measured row, says which rows the fit has seen, and prints
    the median and the worst error.
    """
    from stepahead_tools.calibrate import calibrate_profile  # noqa: PLC0415 # when it runs

    calibrate_profile(options)


def _check(options: CheckOptions) -> None:
    """Check a history that any engine has written.

    A history is a file of JSON lines. Prints what was checked, what was found and what could not be
    checked; where a rule is broken, that alone. The engine is not needed, nor is the kernel. The
    format is that of stepahead_specs.conformance.history; how to write one stands in
    specs/conformance.md.
    """
    from stepahead_tools.histories import check  # noqa: PLC0415 # imported when it runs

    check(options)


def _mutants(options: MutantsOptions) -> None:
    """Plant known defects into the kernel, and hunt them.

    They are defects of real schedulers, planted one at a time. Random walks and the bounded
    explorer, with all invariants, must notice each of them. Prints who noticed, after how much, and
    at the end which invariant catches what. Exits with 1 if a mutant survives.
    """
    from stepahead_tools.mutants import hunt_mutants  # noqa: PLC0415 # imported when it runs

    hunt_mutants(options)


COMMANDS: Final[dict[str, Callable[[], Any]]] = {
    "compare": lambda: make_command("compare", CompareOptions, _compare),
    "replay": lambda: make_command("replay", ReplayOptions, _replay),
    "advise": lambda: make_command("advise", AdviseOptions, _advise, unlisted=FIXED),
    "check": lambda: make_command("check", CheckOptions, _check),
    "explore": lambda: make_command("explore", ExploreOptions, _explore),
    "mutants": lambda: make_command("mutants", MutantsOptions, _mutants),
    "calibrate": lambda: make_command("calibrate", CalibrateOptions, _calibrate),
    "compatibility": lambda: make_command("compatibility", CompatibilityOptions, compatibility),
}


class _Commands(TyperGroup):
    """The commands, made when they are asked for: the options of one alone take a while."""

    # Some releases of typer bring a click of their own, so neither's types can be named.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return one of them; all are made when there is none, for the sentence that names them."""
        for name in (cmd_name,) if cmd_name in COMMANDS else tuple(COMMANDS):
            if name not in self.commands:
                self.commands[name] = COMMANDS[name]()
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help, see stepahead_tools.help_text
    help="Replay request traces under eager and overlap scheduling, in simulated time.",
)


@app.callback()
def _root() -> None:
    """Make typer build a group, although no command is there yet."""


def spread_objectives(arguments: Sequence[str]) -> list[str]:
    """Let one ``--goodput`` or ``--slo`` take several words, as serving benchmarks write them."""
    spread: list[str] = []
    inside = ""
    for argument in arguments:
        fits = inside != "" and _SPREAD[inside].match(argument) is not None
        if fits and spread[-1] != inside:
            spread.append(inside)
        inside = argument if argument in _SPREAD else inside if fits else ""
        spread.append(argument)
    return spread


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits."""
    if arguments is None:
        # The process is ours. What is imported stays, so a collection of it would find nothing.
        gc.set_threshold(_GARBAGE_OBJECTS)
    app(spread_objectives(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
