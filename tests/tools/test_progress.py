"""The progress bar: for people who wait, and for nobody else."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from stepahead_tools import progress
from stepahead_tools.progress import ProgressBar


def drawn(*, terminal: bool, unit: str = "requests") -> str:
    """Return what a bar writes that is told of three requests out of ten."""
    target = io.StringIO()
    console = Console(file=target, force_terminal=terminal, width=80)
    with ProgressBar("eager", 10, console, unit=unit) as bar:
        bar(0)
        bar(3)
    return target.getvalue()


def test_a_bar_appears_on_a_terminal_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows what runs and how far it is."""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    text = drawn(terminal=True)
    assert "eager" in text
    assert "3/10 requests" in Text.from_ansi(text).plain


@pytest.mark.parametrize("unit", ["runs", "closed loops"])
def test_a_bar_says_what_it_counts(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    """Runs that are counted must not be called requests."""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    text = Text.from_ansi(drawn(terminal=True, unit=unit)).plain
    assert f"3/10 {unit}" in text
    assert "requests" not in text


def test_a_short_run_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has waited yet."""
    monkeypatch.setattr(progress, "PATIENCE_S", 3600.0)
    assert not drawn(terminal=True)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file must not fill with bars."""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    assert not drawn(terminal=False)
