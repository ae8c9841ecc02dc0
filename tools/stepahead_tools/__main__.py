"""`stepahead` and `python -m stepahead_tools`: from words to a command and its exit code."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

from stepahead_tools.commands import COMMANDS, carry_out
from stepahead_tools.words import UnusualWords, read_words

#: New objects between two garbage collections; importing makes some hundred thousand.
_GARBAGE_OBJECTS: Final = 200_000
_SPREAD: Final = {
    "--goodput": re.compile(r"(?:ttft|tpot|e2el):"),
    "--slo": re.compile(r"(?:ttft|tpot|itl|e2el|queue)_\w+:"),
}


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
        # The process is ours. What is imported stays, so a collection of it would find nothing, the
        # last one neither; and NumPy would start a thread for every core, for products of matrices
        # that nobody asks for.
        gc.set_threshold(_GARBAGE_OBJECTS)
        atexit.register(gc.freeze)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = spread_objectives(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else ""
    if name in COMMANDS:
        command = COMMANDS[name]
        try:
            options = read_words(command.options(), words[1:])
        except UnusualWords:
            pass
        else:
            raise SystemExit(carry_out(command, options))
    from stepahead_tools.app import app  # noqa: PLC0415 # takes longer than most replays

    app(words)


if __name__ == "__main__":
    main()
