"""A number goes with its noun."""

import pytest

from stepahead_specs.counting import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 bad lines"), (1, "1 bad line"), (2, "2 bad lines")]
)
def test_only_one_is_singular(number: int, words: str) -> None:
    """Of a noun of several words, the last one changes."""
    assert counted(number, "bad line") == words
