"""What the installed `stepahead` starts: the command line, or what to install for it."""

from __future__ import annotations

import sys
from typing import Final

from stepahead_tools.extras import lacking

_NOT_USABLE: Final = 2


def main() -> None:
    """Run the command line; exits."""
    try:
        from stepahead_tools.__main__ import main as run  # noqa: PLC0415 # it may not be there

        run()
    except ModuleNotFoundError as error:
        told = lacking(error)
        if told is None:
            raise
        sys.stderr.write(f"stepahead: {told}\n")
        raise SystemExit(_NOT_USABLE) from error
