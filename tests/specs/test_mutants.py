"""The museum of known defects: planted from outside, and found by the general searches."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stepahead.requests import WaitingLine
from stepahead_specs.invariants import INVARIANTS, InvariantViolated
from stepahead_specs.machines import KernelMachine
from stepahead_specs.mutants import MUSEUM, NOT_PLANTED, Edit, StaleMutant, applied
from stepahead_specs.mutants.hunt import Hunted, hunt, matrix
from stepahead_specs.mutants.patching import find
from stepahead_specs.walk import draw, play

pytestmark = pytest.mark.interpreted  # mutants are edits of functions

#: Who may notice a defect beside the invariants.
OTHERS = {"kernel", "bench", "lockstep", "progress"}
#: One of each room of the museum, each found in the first scenarios.
SAMPLE = (
    "a-prefix-is-published-at-selection",
    "a-batch-is-dispatched-before-it-is-filled",
    "a-release-returns-early",
    "a-refusal-is-not-told",
    "the-last-batch-waits-for-another",
    "clients-are-served-before-the-device",
    "a-rejected-draft-counts-as-settled",
)
#: Found only where many things happen in an unlikely order, so by the explorer.
RARE = ("whoever-lets-go-last-does-not-wait",)


def test_the_museum_is_large_and_every_exhibit_is_labelled() -> None:
    """Each mutant has a claim, sources, and expects somebody who exists to notice it."""
    keys = {entry.key for entry in INVARIANTS} | OTHERS
    assert len(MUSEUM) >= 34
    for entry in MUSEUM.values():
        assert entry.claim.endswith("."), entry.name
        assert entry.sources, entry.name
        assert entry.expects, entry.name
        assert set(entry.expects) <= keys, entry.name


def test_every_mutant_of_the_catalogue_is_planted_or_has_a_reason() -> None:
    """The catalogue numbers the mutants to kill first; none is passed over in silence."""
    catalogue = (
        *(1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 14, 15, 16, 17, 18, 19, 21, 22, 23, 25, 26, 27, 28, 29),
        *(30, 31, 32, 34, 36, 37, 39, 41, 42, 43),
    )
    planted = {source for entry in MUSEUM.values() for source in entry.sources}
    numbered = {f"M{number:02}" for number in catalogue}
    assert numbered - planted == set(NOT_PLANTED)
    assert not planted & set(NOT_PLANTED)


@pytest.mark.parametrize("name", sorted(MUSEUM))
def test_a_mutant_fits_the_kernel_and_leaves_no_trace(name: str) -> None:
    """Every edit finds its text; afterwards each function has the code it had."""
    functions = [find(edit.place) for edit in MUSEUM[name].edits]
    before = [function.__code__ for function in functions]
    with MUSEUM[name].alive():
        assert all(f.__code__ is not code for f, code in zip(functions, before, strict=True))
    assert [function.__code__ for function in functions] == before


def test_an_edit_that_does_not_fit_says_what_to_do() -> None:
    """A mutant must follow the kernel, so each way of not fitting has a sentence of its own."""
    with pytest.raises(StaleMutant) as told, applied([Edit("State.fly", "a", "b")]):
        pass
    assert str(told.value) == "0 functions of the kernel are State.fly, not one; rename it"
    with pytest.raises(StaleMutant) as told, applied([Edit("State.vacate", "fly()", "b")]):
        pass
    assert str(told.value) == "'fly()' stands 0 times in State.vacate, not once; follow the kernel"


def test_a_mutant_lives_in_every_caller_and_dies_with_the_block() -> None:
    """The function object stays the same, so whoever holds it runs the changed code."""
    length = WaitingLine.__len__
    with applied([Edit("WaitingLine.__len__", "return len(self._stays)", "return 7")]):
        assert length(WaitingLine()) == 7
    assert length(WaitingLine()) == 0


def test_random_walks_find_nothing_in_the_sound_kernel() -> None:
    """What the hunt says about a mutant it must not say about the kernel."""
    failures = [play(draw(Random(seed))) for seed in range(10_000, 10_040)]  # noqa: S311
    assert [failure.story for failure in failures if failure is not None] == []


@pytest.mark.parametrize("name", [*SAMPLE, *RARE])
def test_the_hunt_finds_a_defect(name: str) -> None:
    """The expected invariant is among those that notice."""
    hunted = hunt(MUSEUM[name])
    assert set(hunted.keys) & set(MUSEUM[name].expects), hunted.sentence


def test_a_shrunk_scenario_is_short_and_told_in_words() -> None:
    """Six lines are enough to see a seat given away under a row in flight."""
    hunted = hunt(MUSEUM["a-seat-is-free-as-soon-as-its-request-ends"], shortest=True)
    assert hunted.keys == ("INV-3",)
    lines = hunted.story.splitlines()
    assert len(lines) <= 10
    assert "arrives" in lines[0]


def test_the_hypothesis_machine_kills_as_well() -> None:
    """The same defects are visible to the machine that searches for properties."""
    search = settings(
        max_examples=60, derandomize=True, database=None, deadline=None, phases=[Phase.generate]
    )
    with (
        MUSEUM["a-batch-is-dispatched-before-it-is-filled"].alive(),
        pytest.raises(InvariantViolated, match="INV-7"),
    ):
        run_state_machine_as_test(KernelMachine, settings=search)


def test_the_matrix_tells_alone_from_first() -> None:
    """Who spoke alone is counted twice, who spoke with others once, who never did not at all."""
    hunts = [_hunted("a", "INV-3"), _hunted("b", "INV-2", "INV-3"), _hunted("c")]
    lines = {key: (alone, first, example) for key, alone, first, example in matrix(hunts)}
    assert lines["INV-2"] == (0, 1, "b")
    assert lines["INV-3"] == (1, 2, "a")
    assert lines["INV-5"] == (0, 0, "")


def _hunted(name: str, *keys: str) -> Hunted:
    return Hunted(name=name, keys=keys, sentence="", story="", search="walk", tried=1, seconds=0.0)


@pytest.mark.campaign
def test_the_whole_museum_is_killed_and_every_invariant_has_a_catch() -> None:
    """Each defect is noticed as expected; each key catches one alone or first."""
    hunts = [hunt(entry) for entry in MUSEUM.values()]
    missed = [h.name for h in hunts if not set(h.keys) & set(MUSEUM[h.name].expects)]
    assert missed == []
    idle = [key for key, _, first, _ in matrix(hunts) if not first]
    assert idle == []
