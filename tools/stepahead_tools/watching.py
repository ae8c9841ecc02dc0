"""What watches a run from outside: the journal that is written, the invariants that are checked."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from stepahead import Kernel
from stepahead.commands import Command
from stepahead.events import Event
from stepahead_models.simulation import Observer

#: Batches that have ended are forgotten beyond this many, so that long runs stay small.
_BATCHES_KEPT: Final = 64


class InvariantCheck:
    """Checks every invariant after each step of a kernel; see `stepahead_specs.invariants`."""

    def __init__(self, kernel: Kernel) -> None:
        from stepahead_specs.observation import Observation  # noqa: PLC0415 # with --check only
        from stepahead_specs.observer import Observer as Watch  # noqa: PLC0415
        from stepahead_specs.observer import limits  # noqa: PLC0415

        self._kernel = kernel
        self._watch = Watch(Observation(limits(kernel.config)))

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Check one step, and each of the single steps that a stretch stands for.

        Raises:
            InvariantViolated: something does not hold.
        """
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
            InvariantViolated: something does not hold.
        """
        from stepahead_specs.invariants import Kind, check  # noqa: PLC0415

        check(self._watch.seen, Kind.EVENTUALLY)


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
        invariants = InvariantCheck(kernel) if check else None
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
