"""The formal models and the real kernel say the same, each in its own words."""

from pathlib import Path

import pytest

from stepahead_specs.checkers import (
    CheckerError,
    spin_count,
    spin_ends,
    spin_missing,
    tlc_accepts,
    tlc_graph,
    tlc_missing,
)
from stepahead_specs.explorer import Bounds, summary
from stepahead_specs.refinement import kernel_graph, kernel_trace, modelled
from stepahead_specs.tla_values import Value, read_value, write_value

MODELS = Path(__file__).resolve().parents[2] / "specs" / "formal"
tlc = pytest.mark.skipif(tlc_missing() is not None, reason=str(tlc_missing()))
spin = pytest.mark.skipif(spin_missing() is not None, reason=str(spin_missing()))

SMALL = [Bounds(lookahead=0), Bounds(lookahead=1), Bounds(lookahead=2)]
LARGER = [
    Bounds(requests=3, blocks=5, tokens=4),
    Bounds(requests=3, blocks=5, tokens=4, lookahead=2),
]
SIZES = [*SMALL, *(pytest.param(bounds, marks=pytest.mark.campaign) for bounds in LARGER)]
LONG = Bounds(requests=4, blocks=8, tokens=4, lookahead=2)


# -- TLA+ -----------------------------------------------------------------------------------------


@tlc
@pytest.mark.parametrize("bounds", SIZES, ids=summary)
def test_tlc_and_the_explorer_see_the_same_graph(bounds: Bounds, tmp_path: Path) -> None:
    """Every state and every edge with its action, not their number alone."""
    kernel = kernel_graph(bounds)
    model = tlc_graph(MODELS, bounds, tmp_path)
    assert model.states == kernel.states
    assert model.edges == kernel.edges


@tlc
def test_the_model_accepts_runs_of_the_kernel(tmp_path: Path) -> None:
    """Random runs at bounds that are too large to be exhausted."""
    runs = [list(kernel_trace(LONG, seed, 50)) for seed in range(20)]
    preempted = any(request.marked for run in runs for _, state in run for request in state.req)
    assert preempted
    assert tlc_accepts(MODELS, LONG, runs, tmp_path) is None


@tlc
def test_the_model_rejects_a_run_with_one_wrong_step(tmp_path: Path) -> None:
    """A run in which one state was skipped is no run of the model."""
    run = list(kernel_trace(LONG, 0, 40))
    changes = [n for n in range(1, 39) if run[n][1] not in (run[n - 1][1], run[n + 1][1])]
    middle = changes[len(changes) // 2]
    said = tlc_accepts(MODELS, LONG, [run[:middle] + run[middle + 1 :]], tmp_path)
    assert said is not None
    assert f"line = {middle}" in said


# -- Spin -----------------------------------------------------------------------------------------


@spin
@pytest.mark.parametrize("bounds", SIZES, ids=summary)
def test_spin_and_the_explorer_count_alike(bounds: Bounds, tmp_path: Path) -> None:
    """States, and events that may happen in them."""
    kernel = kernel_graph(bounds)
    count = spin_count(MODELS, bounds, tmp_path)
    assert count.states == len(kernel.states)
    assert count.transitions == kernel.steps


@spin
@pytest.mark.parametrize("request_number", [0, 1])
def test_every_request_ends_though_no_client_helps(request_number: int, tmp_path: Path) -> None:
    """Under fairness of CPU and NPU; the client may leave the game at any moment."""
    assert spin_ends(MODELS, Bounds(), tmp_path, request_number, ("QUIT",))


@spin
@pytest.mark.parametrize("request_number", [0, 1, 2])
@pytest.mark.campaign
def test_every_request_of_three_ends(request_number: int, tmp_path: Path) -> None:
    """The same with three requests, five blocks and four tokens."""
    assert spin_ends(MODELS, LARGER[0], tmp_path, request_number, ("QUIT",))


@spin
def test_fairness_of_clients_would_hide_starvation(tmp_path: Path) -> None:
    """The trap: without preemption requests starve, unless the client is made to cancel.

    Spin's fairness is per process. A client that may not leave has to go on for ever, that is to
    cancel, and each cancel frees the blocks that the other request waits for.
    """
    assert spin_ends(MODELS, Bounds(), tmp_path, 0, ("STARVE",))
    assert not spin_ends(MODELS, Bounds(), tmp_path, 0, ("STARVE", "QUIT"))


# -- the border -----------------------------------------------------------------------------------


def test_bounds_beyond_the_models_are_refused() -> None:
    """What the models leave out cannot be compared."""
    for bounds in (Bounds(caching=True), Bounds(refusals=True), Bounds(prompts=(2,))):
        assert not modelled(bounds)
        with pytest.raises(ValueError, match=r"^the formal models do not cover Bounds\("):
            kernel_graph(bounds)


@tlc
def test_a_broken_model_is_told(tmp_path: Path) -> None:
    """An error of TLC is passed on, never taken for an empty graph."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("Overlap.tla", "OverlapTrace.tla"):
        text = (MODELS / name).read_text(encoding="utf-8")
        broken = text.replace("filled' = filled + 1", "filled' = filled + 2")
        (models / name).write_text(broken.replace("Conserved ==", "Kept =="), encoding="utf-8")
    with pytest.raises(CheckerError, match=r"^TLC does not confirm Bounds\("):
        tlc_graph(models, Bounds(), tmp_path)


def test_values_survive_being_written_and_read() -> None:
    """Every kind of value of TLA+ that the models use."""
    value: Value = (
        {"at": "new", "known": 3, "rows": frozenset({(1, 0, 2)}), "marked": False},
        (),
        -1,
    )
    text = write_value(value)
    assert (
        text
        == '<<[at |-> "new", known |-> 3, rows |-> {<<1, 0, 2>>}, marked |-> FALSE], <<>>, -1>>'
    )
    assert read_value(text) == value
