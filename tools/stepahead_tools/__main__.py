"""`stepahead` and `python -m stepahead_tools`: from words to a command and its exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import Final

from stepahead_tools.command_line import read
from stepahead_tools.commands import carry_out

#: New objects between two garbage collections; importing makes some hundred thousand.
_GARBAGE_OBJECTS: Final = 200_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits."""
    if arguments is None:
        # The process is ours. What is imported stays, so a collection of it would find nothing, the
        # last one neither; and NumPy would start a thread for every core, for products of matrices
        # that nobody asks for.
        gc.set_threshold(_GARBAGE_OBJECTS)
        atexit.register(gc.freeze)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    raise SystemExit(carry_out(*read(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    main()
