"""Loops and versions by name."""

import pytest

from stepahead_models.product import ProductVersion, SchedulingLoop, UnknownLoop


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        ("eager", SchedulingLoop.EAGER),
        ("EAGER", SchedulingLoop.EAGER),
        ("Overlap", SchedulingLoop.OVERLAP),
        ("just-in-time", SchedulingLoop.JUST_IN_TIME),
        ("JUST_IN_TIME", SchedulingLoop.JUST_IN_TIME),
    ],
)
def test_a_loop_is_found_by_its_name_in_any_case(name: str, loop: SchedulingLoop) -> None:
    """The look-up by name and the call of the enumeration agree."""
    assert SchedulingLoop.named(name) is loop
    assert SchedulingLoop(name) is loop


def test_an_unknown_loop_is_a_key_error_that_lists_the_loops() -> None:
    """2026.2 had a loop of this name; it is gone."""
    with pytest.raises(KeyError) as caught:
        SchedulingLoop.named("step-based")
    assert str(caught.value) == (
        "scheduling loop 'step-based' is not known; give one of eager, overlap, just-in-time"
    )
    assert isinstance(caught.value, UnknownLoop)
    assert caught.value.known == ("eager", "overlap", "just-in-time")


def test_a_number_is_no_loop() -> None:
    """Only text names a loop."""
    with pytest.raises(ValueError, match="1 is not a valid SchedulingLoop"):
        SchedulingLoop(1)


def test_a_later_beta_includes_the_changes_of_the_earlier_ones_only() -> None:
    """The order is that of the releases."""
    beta = ProductVersion("2026.5.0b1")
    included = [version.value for version in ProductVersion if beta.includes(version)]
    assert included == ["2026.4", "2026.5.0b0", "2026.5.0b1"]


def test_an_unknown_version_lists_the_known_ones() -> None:
    """The sentence names them all."""
    with pytest.raises(ValueError, match="not known") as caught:
        ProductVersion("2025.1")
    assert str(caught.value) == (
        "product version '2025.1' is not known; "
        "give one of 2026.4, 2026.5.0b0, 2026.5.0b1, 2026.5.0b2, 2026.5.0b3"
    )
