"""What watches a run from outside: the journal that is written, the invariants that are checked."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from stepahead import Kernel
from stepahead.commands import Command
from stepahead.events import Event
from stepahead_models.simulation import Observer
from stepahead_tools.errors import RunBroken

#: Batches that have ended are forgotten beyond this many, so that long runs stay small.
_BATCHES_KEPT: Final = 64


class InvariantCheck:
    """Checks every invariant after each step of a kernel; see `stepahead_specs.invariants`.

    Args:
        kernel: the one whose events and commands come; it has seen none yet.
        journal: where they are written meanwhile, or None.
    """

    def __init__(self, kernel: Kernel, journal: Path | None = None) -> None:
        from stepahead_specs.observation import Observation  # noqa: PLC0415 # with --check only
        from stepahead_specs.observer import Observer as Watch  # noqa: PLC0415
        from stepahead_specs.observer import limits  # noqa: PLC0415

        self._kernel = kernel
        self._watch = Watch(Observation(limits(kernel.config)))
        self._journal = journal
        self._events = 0

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Check one step, and each of the single steps that a stretch stands for.

        Raises:
            RunBroken: something does not hold; it names the event, and how to keep the run.
        """
        from stepahead_specs.invariants import InvariantViolated  # noqa: PLC0415

        self._events += 1
        try:
            self._check(event, commands)
        except InvariantViolated as error:
            where = f"event {self._events}, {type(event).__name__} at {event.at} ns"
            raise self._broken(where, error) from error

    def _check(self, event: Event, commands: tuple[Command, ...]) -> None:
        from stepahead_specs.accounts import account  # noqa: PLC0415
        from stepahead_specs.invariants import check  # noqa: PLC0415

        *between, last = self._watch.apart(event, commands)
        for step in between:
            seen = self._watch.saw(*step)
            seen.accounted(None)  # the kernel makes all of them in one move
            check(seen)
        seen = self._watch.saw(*last)
        seen.accounted(account(self._kernel))
        check(seen)
        self._watch.foresee(self._kernel.repeat())
        if len(seen.batches) > _BATCHES_KEPT:
            seen.forget()

    def drained(self) -> None:
        """Check what must hold once nothing is left to do.

        Raises:
            RunBroken: something does not hold.
        """
        from stepahead_specs.counting import counted  # noqa: PLC0415
        from stepahead_specs.invariants import InvariantViolated, Kind, check  # noqa: PLC0415

        try:
            check(self._watch.seen, Kind.EVENTUALLY)
        except InvariantViolated as error:
            where = f"the end, after {counted(self._events, 'event')}"
            raise self._broken(where, error) from error

    def _broken(self, where: str, error: AssertionError) -> RunBroken:
        way_out = "add --journal FILE to keep the events up to there"
        if self._journal is not None:
            again = shlex.join(["stepahead", "replay", str(self._journal)])
            way_out = f"{self._journal} has the events up to there; {again}"
        return RunBroken(f"{where}, breaks a rule\n{error}\n{way_out}")


@contextmanager
def watchers(
    kernel: Kernel, journal: Path | None, *, check: bool
) -> Generator[Sequence[Observer], None, None]:
    """Give the observers of one run; closes the journal and checks what must hold at the end."""
    with ExitStack() as stack:
        observers: list[Observer] = []
        if journal is not None:
            from stepahead_models.journal import JournalWriter  # noqa: PLC0415 # with --journal

            observers.append(stack.enter_context(JournalWriter(journal, kernel)))
        invariants = InvariantCheck(kernel, journal) if check else None
        if invariants is not None:
            observers.append(invariants)
        yield observers
    if invariants is not None:
        invariants.drained()


def journal_path(journal: Path | None, loop: str, *, several: bool) -> Path | None:
    """Return the file of one loop's journal, with its name before the suffix if there are more."""
    if journal is None or not several:
        return journal
    return journal.with_name(f"{journal.stem}.{loop}{journal.suffix}")
