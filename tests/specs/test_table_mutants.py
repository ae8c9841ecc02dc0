"""Wrong state tables die by behaviour: a wrong edge by search, a new one by force."""

from __future__ import annotations

from enum import Enum

import pytest

from stepahead.tables import BATCH_ROWS, REQUEST_ROWS
from stepahead_specs.mutants.tables import EQUIVALENT, Cell, asked, cells, hunt_cell

CELLS = cells()
CHANGED = [cell for cell in CELLS if cell.before is not None]
NEW = [cell for cell in CELLS if cell.before is None]


def _declared() -> list[tuple[Enum, Enum, Enum]]:
    requests = [(s, t, after) for s, row in REQUEST_ROWS.items() for t, after in row.items()]
    batches = [(s, t, after) for s, row in BATCH_ROWS.items() for t, after in row.items()]
    return [*requests, *batches]


def test_every_cell_of_both_tables_is_mutated_in_every_way() -> None:
    """Six states and refusal are seven values of a cell; each but its own is a mutant."""
    assert len(CELLS) == 6 * (6 * 9 + 6 * 7)
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_a_mutant_of_a_cell_leaves_no_trace() -> None:
    """The declaration and its integers are as they were, whatever the cell held."""
    before = _declared()
    for cell in CELLS:
        with cell.alive():
            pass
    assert _declared() == before


@pytest.mark.interpreted  # its kernel is a subclass
def test_the_sound_kernel_asks_for_every_declared_edge_and_for_no_other() -> None:
    """So a new edge changes no run, and only force can find it."""
    assert asked() == {(state, trigger) for state, trigger, _ in _declared()}


def test_every_new_edge_dies_by_force() -> None:
    """What no rule asks for is refused by the sound table, and by no mutant that has the edge."""
    assert [cell.name for cell in NEW if not hunt_cell(cell).killed] == []


def test_force_finds_nothing_in_the_sound_table() -> None:
    """A forced trigger that is refused leaves the state as it was."""
    sound = [Cell(c.machine, c.state, c.trigger, None, None) for c in NEW]
    assert [cell.name for cell in sound if hunt_cell(cell).killed] == []


@pytest.mark.parametrize("cell", CHANGED[::12], ids=lambda cell: cell.name)
@pytest.mark.interpreted  # its kernel is a subclass
def test_a_changed_edge_dies_by_search(cell: Cell) -> None:
    """Every twelfth of them; all are in the campaign."""
    assert hunt_cell(cell).killed or cell.name in EQUIVALENT


@pytest.mark.campaign
def test_every_changed_edge_dies_by_search() -> None:
    """All of them but those that are signed, which really do survive."""
    alive = {cell.name for cell in CHANGED if not hunt_cell(cell).killed}
    assert alive == set(EQUIVALENT)
