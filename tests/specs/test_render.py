"""The generated reference page."""

import pytest

from stepahead_specs.render import main, render


@pytest.mark.interpreted  # compiled classes have no docstring
def test_the_reference_page_is_current() -> None:
    """What it says is what the code declares; `python -m stepahead_specs.render` renews it."""
    assert main(["--check"]) == 0


def test_the_page_shows_both_machines_and_every_invariant() -> None:
    """A table that is declared is a table that a reader finds."""
    page = render()
    assert page.count("stateDiagram-v2") == 2
    assert "FILLED --> QUEUED: Preempt" in page
    assert "| INV-1 |" in page
