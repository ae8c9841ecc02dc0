"""The commands: what each is for, and where its options and its work are.

What a command needs is imported when it runs, so that help comes at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from stepahead_tools.advise_options import AdviseOptions
    from stepahead_tools.calibrate_options import CalibrateOptions
    from stepahead_tools.compatibility_options import CompatibilityOptions
    from stepahead_tools.explore_options import ExploreOptions
    from stepahead_tools.histories import CheckOptions
    from stepahead_tools.mutants_options import MutantsOptions
    from stepahead_tools.options import CompareOptions, ReplayOptions


class Command(NamedTuple):
    """One command.

    Args:
        run: carries it out; its docstring is the help.
        module: where its options are declared, in this package.
        name: that of their dataclass.
        unlisted: name of those that are not in its help, since ``run`` refuses them in a sentence
            that says more than that there is no such option.
    """

    run: Callable[[Any], None]
    module: str
    name: str
    unlisted: str | None = None

    def options(self) -> type[Any]:
        """Import its options."""
        found: type[Any] = getattr(self._declaring(), self.name)
        return found

    def unlisted_fields(self) -> tuple[str, ...]:
        """Import the names of the fields that the help leaves out."""
        return getattr(self._declaring(), self.unlisted) if self.unlisted else ()

    def _declaring(self) -> Any:  # noqa: ANN401 # a module, with names of its own
        return import_module(f"stepahead_tools.{self.module}")


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


def _compatibility(options: CompatibilityOptions) -> None:
    """Print the compatibility table of a product version.

    After it come the pairs of features that do not simply work together.
    """
    from stepahead_tools.compatibility_table import show_compatibility  # noqa: PLC0415 # for this

    show_compatibility(options.product_version.value)


COMMANDS: Final = {
    "compare": Command(_compare, "options", "CompareOptions"),
    "replay": Command(_replay, "options", "ReplayOptions"),
    "advise": Command(_advise, "advise_options", "AdviseOptions", unlisted="FIXED"),
    "check": Command(_check, "histories", "CheckOptions"),
    "explore": Command(_explore, "explore_options", "ExploreOptions"),
    "mutants": Command(_mutants, "mutants_options", "MutantsOptions"),
    "calibrate": Command(_calibrate, "calibrate_options", "CalibrateOptions"),
    "compatibility": Command(_compatibility, "compatibility_options", "CompatibilityOptions"),
}


def carry_out(command: Command, options: Any) -> int:  # noqa: ANN401 # those of the command
    """Run a command; return its exit code, after one sentence about what was foreseen to go wrong.

    0: done. 1: the run found something wrong. 2: what was asked for cannot be done.
    """
    try:
        command.run(options)
    except Exception as error:
        from stepahead_tools.failures import failure  # noqa: PLC0415 # only now

        told = failure(error)
        if told is None:
            raise
        sentence, code = told
        sys.stderr.write(f"{sentence}\n")
        return code
    return 0
