"""A command line in this process, and what it printed: for tests."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from stepahead_tools.__main__ import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended."""

    exit_code: str | int | None
    stdout: str
    stderr: str


def run(*words: str, columns: int = 80) -> Result:
    """Run a command line as on a terminal of so many columns; return what came of it."""
    out, err = io.StringIO(), io.StringIO()
    code: str | int | None = 0
    with patch.dict(os.environ, COLUMNS=str(columns)), redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as left:
            code = left.code
    return Result(exit_code=code, stdout=out.getvalue(), stderr=err.getvalue())
