"""What people read: aligned columns, colours on a terminal only, and log lines as structlog's."""

import io
import re
import sys

import pytest
import structlog

from stepahead_tools.logs import start_log
from stepahead_tools.screen import Cell, Screen

SECTIONS = [
    [[Cell("tokens/s"), Cell("1.5"), Cell("22.25"), Cell("+3.0 %", "green")]],
    [],
    [[Cell("gap"), Cell("12"), Cell("-"), Cell("")]],
]
HEADER = ["metric", "eager", "overlap", "change"]


def test_columns_are_aligned_and_sections_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Labels begin together, figures end together; a section without rows leaves no gap."""
    Screen().table(HEADER, SECTIONS)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "",
        " metric    eager  overlap  change",
        " ────────────────────────────────",
        " tokens/s    1.5    22.25  +3.0 %",
        "",
        " gap          12        -",
        "",
    ]


class Terminal(io.StringIO):
    """A terminal that knows ASCII only."""

    encoding = "ascii"

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


def test_a_terminal_gets_colours_and_only_what_it_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codes do not shift the columns, and who wants no colours gets none."""
    plain, coloured = Terminal(), Terminal()
    for target in (plain, coloured):
        monkeypatch.setattr(sys, "stdout", target)
        if target is plain:
            monkeypatch.setenv("NO_COLOR", "1")
        else:
            monkeypatch.delenv("NO_COLOR")
        Screen().table(HEADER, SECTIONS)
    assert "\x1b[32m+3.0 %\x1b[0m" in coloured.getvalue()
    assert coloured.getvalue().isascii()
    assert plain.getvalue() == re.sub(r"\x1b\[\d+m", "", coloured.getvalue())


def test_a_number_and_its_percent_sign_stay_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that begins with a percent sign is read twice."""
    monkeypatch.setenv("COLUMNS", "19")
    Screen().paragraph("mean TPOT by -12.1 % at p50")
    assert capsys.readouterr().out == "mean TPOT by\n-12.1 % at p50\n"


def test_a_quiet_screen_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    """The result goes there instead."""
    screen = Screen(quiet=True)
    screen.line("a")
    screen.paragraph("b")
    screen.table(HEADER, SECTIONS)
    assert not capsys.readouterr().out


def test_a_log_line_for_people_is_the_one_of_structlog(capsys: pytest.CaptureFixture[str]) -> None:
    """But for the time, which passes between the two."""
    theirs = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
    )
    for log in (theirs, start_log("console")):
        log.warning("bad lines skipped", count=3, among=7)
        log.info("Eager scheduler has started", lookahead=0)
    lines = [re.sub(r"\d", "0", line) for line in capsys.readouterr().err.splitlines()]
    assert lines[:2] == lines[2:]
