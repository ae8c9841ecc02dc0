"""An end to waiting for a kernel that no longer answers: a mutant may loop within one step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Hangs(Exception):
    """Something did not come to its end in time."""


@contextmanager
def patience(seconds: float) -> Generator[None]:
    """Raise where the program stands when the ``with`` block takes longer; needs Unix signals.

    Elsewhere, and in other threads than the main one, nobody is watched.

    Raises:
        Hangs: the time is over.
    """

    def over(_number: int, _frame: FrameType | None) -> None:
        raise Hangs(f"no answer within {seconds:g} s")

    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
