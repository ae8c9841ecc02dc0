"""What the scripts of this folder share: numbers that are checked when read, and how they end."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

from stepahead_models.traces import bundled_trace
from stepahead_tools.failures import failure


def count(text: str) -> int:
    """Read a number of requests or runs.

    Raises:
        ArgumentTypeError: it is below 1.
        ValueError: it is no whole number.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give 1 or more")
    return number


def share(text: str) -> float:
    """Read a share of a capacity.

    Raises:
        ArgumentTypeError: it is no number above 0.
        ValueError: it is no number.
    """
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give a number above 0")
    return number


def finish(main: Callable[[], None]) -> None:
    """Run a script; an error that was foreseen ends it in one sentence, as in `stepahead`.

    Raises:
        SystemExit: there was one.
    """
    try:
        main()
    except Exception as error:
        told = failure(error)
        if told is None:
            raise
        sentence, status = told
        if isinstance(error, FileNotFoundError):
            sentence += f", or take one of the traces in {bundled_trace().parent}"
        sys.stderr.write(f"{sentence}\n")
        raise SystemExit(status) from error
