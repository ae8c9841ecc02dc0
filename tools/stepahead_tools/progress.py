"""A progress bar for people who wait: on a terminal only, after a second, gone when done."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S: Final = 1.0


class ProgressBar:
    """Call it with the number of units that are done; close it with ``with``.

    Args:
        label: what is going on.
        total: units in all.
        console: where to draw; standard error when None.
        unit: what is counted, in the plural.
    """

    def __init__(
        self, label: str, total: int, console: Console | None = None, *, unit: str = "requests"
    ) -> None:
        self._label: Final = label
        self._total: Final = total
        self._unit: Final = unit
        self._console: Final = console or Console(file=sys.stderr)
        self._seen: Final = self._console.is_terminal
        self._begun: Final = time.monotonic()
        self._bar: Progress | None = None
        self._task: Final[list[int]] = []

    def __enter__(self) -> Self:
        """Return the bar, not drawn yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, ended: int) -> None:
        """Show that ``ended`` units are done."""
        if self._bar is None:
            if not self._seen or time.monotonic() - self._begun < PATIENCE_S:
                return
            self._bar = self._drawn()
            self._bar.start()
            self._task.append(self._bar.add_task(self._label, total=self._total))
        self._bar.update(self._task[0], completed=ended)  # type: ignore[arg-type]

    def _drawn(self) -> Progress:
        from rich.progress import (  # noqa: PLC0415 # only where somebody waits
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self._unit),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
