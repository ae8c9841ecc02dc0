"""`stepahead mutants` as a user meets it."""

import pytest

from stepahead_specs.mutants import MUSEUM, Edit, Mutant
from stepahead_specs.mutants import hunt as hunting
from stepahead_tools.testing import run


def test_the_list_names_each_mutant_with_its_change() -> None:
    """Name, sources, who should notice, the claim, and the change as a diff."""
    done = run("mutants", "--list", "a-seat")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a-seat-is-free-as-soon-as-its-request-ends (M05, B03; for INV-2, INV-3)",
        "  A newcomer may get the seat, and with it the block table, of a row in flight.",
        "    in State.vacate",
        "    -     if fence:",
        "    +     if False:",
        "",
    ]


def test_a_hunt_says_who_noticed_and_can_tell_the_run() -> None:
    """One line per mutant, with --shrink the run in words, the matrix, and the count."""
    done = run("mutants", "a-refusal-is-not-told", "--shrink")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("a-refusal-is-not-told  INV-11")
    assert "arrivals get 0 answers" in lines[1]
    assert "1 of 1 mutants killed" in lines[-1]


def test_a_name_that_nobody_has_is_refused() -> None:
    """Exit code 2, and where the names are."""
    done = run("mutants", "flying")
    assert done.exit_code == 2
    assert done.stderr == (
        "stepahead: no mutant is named 'flying'; stepahead mutants --list names them\n"
    )


def test_a_survivor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that changes nothing is noticed by nobody: exit code 1."""
    edit = Edit("State.vacate", "    if fence:\n", "    if fence > 0:\n")
    same = Mutant("same", "Nothing changes.", ("ours",), ("INV-1",), (edit,))
    monkeypatch.setitem(MUSEUM, "same", same)
    monkeypatch.setattr(hunting, "SCENARIOS", (2, 2))
    monkeypatch.setattr(hunting, "BOUNDS", ())
    done = run("mutants", "same")
    assert done.exit_code == 1
    assert "same  SURVIVES" in done.stdout
    assert done.stderr == (
        "stepahead: nobody noticed same; strengthen an invariant or a generator\n"
    )
