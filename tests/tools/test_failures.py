"""What becomes of an error: one sentence and an exit code, or a traceback of ours."""

from __future__ import annotations

from stepahead_tools.failures import NOT_USABLE, failure


def test_numbers_beyond_the_clock_are_no_bug_of_ours() -> None:
    """Each number may be in range and their product is not."""
    assert failure(OverflowError("int too big to convert")) == (
        (
            "stepahead: a time or a size went beyond 64 bits; lower what was asked for (int too "
            "big to convert)"
        ),
        NOT_USABLE,
    )


def test_an_error_that_nobody_foresaw_keeps_its_traceback() -> None:
    """It is a bug of ours, and the traceback is what helps."""
    assert failure(ZeroDivisionError()) is None
