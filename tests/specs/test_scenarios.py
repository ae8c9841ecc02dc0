"""The recorded scenarios: the kernel still answers as the scripts say."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepahead_specs.scenarios import FOLDER, ScenarioError, replay

SCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_kernel_answers_as_recorded(script: Path) -> None:
    """A changed answer is a changed behaviour: read the diff before `--rewrite`."""
    text = script.read_text(encoding="utf-8")
    assert replay(text) == text
    assert "----\n" in text


def test_there_are_scenarios() -> None:
    """An empty folder would pass everything."""
    assert len(SCRIPTS) >= 7


def test_a_step_without_output_is_an_error() -> None:
    """A script that was never recorded must not pass."""
    with pytest.raises(ScenarioError) as caught:
        replay("limits num_blocks=1\nready\n")
    assert str(caught.value) == (
        "the step 'limits num_blocks=1' has no ---- line; add one, and --rewrite"
    )


def test_an_unknown_command_is_named() -> None:
    """A typing error is not a silent no-op."""
    with pytest.raises(ScenarioError) as caught:
        replay("limits num_blocks=1\nraedy\n----\n")
    assert str(caught.value) == "'raedy' is no command; see `stepahead_specs.scenarios`"
