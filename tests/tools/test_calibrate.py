"""`stepahead calibrate`: what a profile is worth, as a user reads it."""

import re

from stepahead_tools.testing import run


def test_calibrate_shows_every_row_and_the_errors_within_the_aim() -> None:
    """All eight rows, which of them the fit saw; median error under 10 %, worst under 20 %."""
    done = run("calibrate")
    assert done.exit_code == 0, done.stdout
    assert (done.stdout.count("fitted"), done.stdout.count("held out")) == (3, 6)
    told = re.search(r"all rows: median error ([\d.]+) %, worst ([\d.]+) %", done.stdout)
    assert told is not None
    median, worst = told.groups()
    assert float(median) < 10
    assert float(worst) < 20


def test_an_unknown_profile_is_named_with_those_there_are() -> None:
    """The way out is in the sentence."""
    done = run("calibrate", "nothing")
    assert done.exit_code == 2
    assert "nothing" in done.stderr
    assert "rngd-llama-3.1-8b" in done.stderr
