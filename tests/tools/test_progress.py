"""The progress bar: for people who wait, and for nobody else."""

import io

import pytest
from rich.console import Console

from stepahead_tools import progress
from stepahead_tools.progress import ProgressBar


def drawn(*, terminal: bool) -> str:
    """Return what a bar writes that is told of three requests out of ten."""
    target = io.StringIO()
    console = Console(file=target, force_terminal=terminal, width=80)
    with ProgressBar("eager", 10, console) as bar:
        bar(0)
        bar(3)
    return target.getvalue()


def test_a_bar_appears_on_a_terminal_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows what runs and how far it is."""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    text = drawn(terminal=True)
    assert "eager" in text
    assert "3/10" in text


def test_a_short_run_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has waited yet."""
    monkeypatch.setattr(progress, "PATIENCE_S", 3600.0)
    assert not drawn(terminal=True)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file must not fill with bars."""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    assert not drawn(terminal=False)
