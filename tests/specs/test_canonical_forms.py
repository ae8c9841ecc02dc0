"""What the canonical form of a state leaves out: nothing that matters."""

import pytest

from stepahead.events import (
    BatchPrepared,
    HostReady,
    RequestArrived,
    RequestCancelled,
)
from stepahead.kernel import Kernel
from stepahead.state import Snapshot
from stepahead_specs.explorer import (
    Bounds,
    Graph,
    Options,
    explore,
    summary,
)
from stepahead_specs.explorer.bounds import executions, moves
from stepahead_specs.explorer.canonical import Form, Kept, canonical


@pytest.mark.parametrize("tokens", [3, pytest.param(4, marks=pytest.mark.campaign)])
def test_the_remembered_row_set_changes_nothing(tokens: int) -> None:
    """States that differ in it alone go to the same states: kept or left out, the rest is equal."""
    bounds = Bounds(blocks=tokens + 1, tokens=tokens)
    without = explore(bounds).graph
    kept = explore(bounds, Options(steady=True)).graph
    assert len(kept.forms) > len(without.forms)
    assert {form[:-1] for form in kept.forms} == {form[:-1] for form in without.forms}
    assert _edges(kept) == _edges(without)


def _edges(graph: Graph) -> set[tuple[object, object]]:
    forms = graph.forms
    return {(forms[edge.source][:-1], forms[edge.target][:-1]) for edge in graph.edges}


def test_several_steps_at_once_lead_where_single_steps_lead() -> None:
    """Where the kernel offers a stretch, taking it reaches no state that single steps do not."""
    options = Options(steady=True, invariants=False)
    single = explore(Bounds(blocks=6, tokens=4), options)
    leaping = explore(Bounds(blocks=6, tokens=4, leaps=True), options)
    assert leaping.passed
    assert leaping.steps > single.steps
    assert set(leaping.graph.forms) == set(single.graph.forms)


def test_the_order_of_free_blocks_counts_only_with_a_cache() -> None:
    """After two cancels in either order the kernels differ; without a cache by names alone."""
    one, other = (_both_cancelled(order) for order in ((1, 2), (2, 1)))
    assert one.digest() != other.digest()
    renamed, ordered = Kept(), Kept(ordered=True)
    assert canonical(one.snapshot(), 2, renamed) == canonical(other.snapshot(), 2, renamed)
    assert canonical(one.snapshot(), 2, ordered) != canonical(other.snapshot(), 2, ordered)


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(refusals=True, failures=True),
        pytest.param(Bounds(prune=True, lookahead=2), marks=pytest.mark.campaign),
        Bounds(prompts=(3, 2), blocks=4, tokens=2, caching=True, refusals=True, failures=True),
        pytest.param(
            Bounds(prompts=(2, 3), blocks=3, tokens=3, block_size=2, caching=True, refusals=True),
            marks=pytest.mark.campaign,
        ),
    ],
    ids=summary,
)
def test_equal_forms_have_equal_futures(bounds: Bounds) -> None:
    """What a form leaves out influences nothing: up to four states of each form go on alike."""
    kernel = Kernel(bounds.config())
    kept = Kept(ordered=bounds.caching)
    line: list[tuple[Snapshot, int]] = [(kernel.snapshot(), 0)]
    futures: dict[Form, frozenset[tuple[str, Form]]] = {}
    met: dict[Form, set[str]] = {canonical(kernel.snapshot(), 0, kept): {kernel.digest()}}
    differing = 0
    for saved, arrived in line:
        kernel.restore(saved)
        future: set[tuple[str, Form]] = set()
        for move in moves(kernel, saved, bounds, arrived):
            kernel.restore(saved)
            kernel.step(move.event)
            after, count = kernel.snapshot(), arrived + isinstance(move.event, RequestArrived)
            form, digest = canonical(after, count, kept), kernel.digest()
            future.add((type(move.event).__name__, form))
            known = met.setdefault(form, set())
            if digest not in known and len(known) < 4:
                differing += bool(known)
                known.add(digest)
                line.append((after, count))
        before = futures.setdefault(canonical(saved, arrived, kept), frozenset(future))
        assert before == future
    assert differing > 100


def _both_cancelled(order: tuple[int, int]) -> Kernel:
    """Return a kernel after one batch of two equal prompts, whose clients leave in this order."""
    bounds = Bounds(blocks=6, prompts=(2,), caching=True, lookahead=0)
    kernel = Kernel(bounds.config())
    for number in range(2):
        kernel.step(bounds.arrival(number))
    kernel.step(HostReady(at=0))
    kernel.step(BatchPrepared(batch_id=1, at=0))
    kernel.step(next(executions(kernel.snapshot().batches[0])))
    for handle in order:
        name = bounds.arrival(handle - 1).request_id
        kernel.step(RequestCancelled(request_id=name, handle=handle, at=0))
    return kernel


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(refusals=True),
        Bounds(prompts=(3, 2), blocks=4, tokens=2, caching=True, refusals=True),
        pytest.param(
            Bounds(
                requests=3,
                blocks=3,
                block_size=2,
                prompts=(2, 3),
                caching=True,
                refusals=True,
            ),
            marks=pytest.mark.campaign,
        ),
    ],
    ids=summary,
)
def test_a_refused_selection_leaves_no_trace(bounds: Bounds) -> None:
    """Selected and refused, the kernel stands where it stood, but for victims that were preempted.

    With prefix caching that includes the order in which blocks are used again.
    """
    graph = explore(bounds, Options(invariants=False)).graph
    forms = graph.forms
    selected: dict[int, list[int]] = {}
    for edge in graph.edges:
        if edge.kind == "HostReady":
            selected.setdefault(edge.target, []).append(edge.source)
    undone = [
        (before, edge.target)
        for edge in graph.edges
        if edge.kind == "BatchRefused"
        for before in selected.get(edge.source, [])
    ]
    assert len(undone) > 20
    for before, after in undone:
        # Being ready also retires what came back: the third entry.
        expected = (*forms[before][:3], 0, *forms[before][4:])
        assert forms[after] == expected or _waiting(forms[after]) > _waiting(forms[before])


def _waiting(form: Form) -> int:
    """Count the waiting requests of a form."""
    return repr(form[1]).count("'queued'")
