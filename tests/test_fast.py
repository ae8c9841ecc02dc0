"""`stepahead._fast` does what NumPy does, on the same operands, to the last flag.

Where the module is built it is taken as it is; where not, it is built into a temporary folder.
"""

import copy
import importlib.util
import operator
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fast_build
import stepahead
import stepahead_models
import stepahead_specs
import stepahead_tools

NAME = "stepahead._fast"
SOURCES = [
    str(Path(str(package.__file__)).parent.parent)
    for package in (stepahead, stepahead_models, stepahead_specs, stepahead_tools)
]
TRACE = Path(str(stepahead_models.__file__)).parent / "data/mooncake_conversation_head.jsonl.zst"
#: Replays with the module at a path, or without one.
REPLAY = f"""
import importlib.util, sys
path = sys.argv.pop(1)
if path:
    spec = importlib.util.spec_from_file_location({NAME!r}, path)
    sys.modules[{NAME!r}] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[{NAME!r}])
else:
    sys.modules[{NAME!r}] = None
from stepahead.arrays import EMPTY
from stepahead_tools.entry import main
print(type(EMPTY).__name__, file=sys.stderr)
sys.exit(main())
"""

Array: TypeAlias = NDArray[Any]
Wrap: TypeAlias = Callable[[Array], Array]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the module."""
    built = importlib.util.find_spec(NAME)
    if built is not None and built.origin is not None:
        return Path(built.origin)
    try:
        return fast_build.build(tmp_path_factory.mktemp("fast"))
    except fast_build.CannotBuildError as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def fast(path: Path) -> ModuleType:
    """The module; where the kernel does not use it, nor does it from now on."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- operands ---------------------------------------------------------------------------------

DTYPES = ["int64"] * 6 + ["bool"] * 3 + ["int32", "uint64", ">i8", "float64", "complex128"]
NUMBERS = st.one_of(
    st.integers(-4, 9), st.integers(-(2**63), 2**63 - 1), st.sampled_from([63, 64, 2**63, -(2**70)])
)


@dataclass(frozen=True)
class Memory:
    """What two operands may share: numbers of a type, some times over, writable or not."""

    numbers: Sequence[int]
    dtype: str
    writable: bool
    times: int = 1

    def array(self, wrap: Wrap) -> Array:
        """Return an array of its own."""
        made = np.tile(np.array(self.numbers, dtype=np.int64).astype(self.dtype), self.times)
        made.flags.writeable = self.writable
        return wrap(made)


@dataclass(frozen=True)
class View:
    """An operand in one of the memories: some elements, as a row, a table or a single number."""

    memory: int
    start: int
    stop: int
    step: int
    shape: tuple[int, ...] | None
    turned: bool

    def of(self, memories: Sequence[Array]) -> Array:
        """Return it."""
        row = memories[self.memory][self.start : self.stop : self.step]
        if self.shape is not None:
            size = int(np.prod(self.shape))
            if len(row) >= size:
                row = row[:size].reshape(self.shape)
        return row.T if self.turned else row


@dataclass(frozen=True)
class Pair:
    """A key of two."""

    first: object
    second: object


Operand: TypeAlias = object

#: Loops over a row take up to 16 numbers at once and look for the best among 64.
LONG = 150
SHAPES = st.sampled_from(
    [None] * 7
    + [(), (1, 3), (3, 1), (2, 3), (3, 3), (2, 2, 2), (1, 1)]
    + [(5, 20), (3, 1), (20, 1), (1, 20)]
)


def views(memories: int) -> st.SearchStrategy[View]:
    """Any part of the memories."""
    edges = st.integers(-9, 9)
    return st.builds(
        View,
        st.integers(0, memories - 1),
        st.one_of(st.just(0), edges),
        st.one_of(st.just(LONG), st.integers(2, 5), edges, st.integers(60, 80)),
        st.sampled_from([1, 1, 1, 1, -1, 2, -2]),
        SHAPES,
        st.sampled_from([False, False, False, True]),
    )


def memories() -> st.SearchStrategy[Memory]:
    """Short ones mostly, whose numbers are places in each other as well; some repeat them."""
    small = st.lists(st.integers(-3, 4), min_size=0, max_size=12)
    long = st.lists(NUMBERS.filter(lambda n: abs(n) < 2**63), min_size=0, max_size=48)
    return st.builds(
        Memory,
        st.one_of(small, small, long),
        st.sampled_from(DTYPES),
        st.sampled_from([True, True, True, True, False]),
        st.sampled_from([1, 1, 1, 1, 3, LONG // 4]),
    )


BOUNDS = st.one_of(
    st.none(),
    st.integers(-9, 9),
    st.integers(-9, 9).map(np.int64),
    st.sampled_from([2**63, -(2**70), True, 1.5, np.array(1)]),
)
SLICES = st.builds(
    slice, BOUNDS, BOUNDS, st.one_of(st.sampled_from([None, None, 1, 2, -1, -3, 2**62]), BOUNDS)
)
SCALARS: st.SearchStrategy[object] = st.one_of(
    NUMBERS,
    st.integers(-3, 4),
    st.integers(-3, 70).map(np.int64),
    st.integers(-3, 4).map(np.int32),
    st.integers(-3, 4).map(np.array),
    st.sampled_from([True, False, np.True_, None, 1.5, "x", ..., [], [1, 0], (2, -1, 0), [True]]),
    st.lists(st.integers(-3, 4), max_size=4),
)
MEMORIES = 3
OPERANDS: st.SearchStrategy[object] = st.one_of(views(MEMORIES), views(MEMORIES), SCALARS)
KEYS: st.SearchStrategy[object] = st.one_of(
    views(MEMORIES),
    st.integers(-4, 5),
    SLICES,
    SCALARS,
    st.builds(
        Pair,
        st.one_of(st.integers(-4, 5), SLICES, views(MEMORIES), SCALARS),
        st.one_of(st.integers(-4, 5), SLICES, views(MEMORIES), SCALARS),
    ),
)


def resolved(operand: object, arrays: Sequence[Array]) -> Any:  # noqa: ANN401 - any operand
    """Return what an operand stands for."""
    if isinstance(operand, View):
        return operand.of(arrays)
    if isinstance(operand, Pair):
        return resolved(operand.first, arrays), resolved(operand.second, arrays)
    return copy.deepcopy(operand)  # it may be written to


# -- comparison -------------------------------------------------------------------------------


def facts(value: Any, arrays: Sequence[Array]) -> object:  # noqa: ANN401 - any result
    """Return everything that can be told of a value but its class and who owns its memory."""
    kind = type(value).__name__
    if kind in {"tuple", "list"}:
        return kind, [facts(item, arrays) for item in value]
    if not isinstance(value, np.ndarray):
        return kind, repr(value)
    array: Array = value  # pyright: ignore[reportUnknownVariableType] - it may hold anything
    axes = zip(array.strides, array.shape, strict=True)
    return (
        array.dtype.str,
        array.shape,
        repr(array.tolist()),
        [step for step, count in axes if count > 1] if array.size else None,
        [array.flags[name] for name in ("W", "C", "F", "A")],
        [np.shares_memory(array, other) for other in arrays],
    )


def outcome(operation: Callable[..., object], arrays: Sequence[Array], operands: Any) -> object:  # noqa: ANN401
    """Return what an operation comes to, and what it leaves behind."""
    try:
        with np.errstate(all="ignore"):
            result = facts(operation(*(resolved(one, arrays) for one in operands)), arrays)
    except Exception as error:  # noqa: BLE001 - whatever NumPy raises
        result = type(error)
    return result, [facts(array, arrays) for array in arrays]


def check(
    fast: ModuleType,
    memories: Sequence[Memory],
    operation: Callable[..., object],
    *operands: object,
    plain: Callable[..., object] | None = None,
) -> None:
    """Do the same twice, and compare."""
    done = outcome(operation, [memory.array(fast.quick) for memory in memories], operands)
    due = outcome(plain or operation, [memory.array(lambda a: a) for memory in memories], operands)
    assert done == due


MEMORY_LISTS = st.lists(memories(), min_size=MEMORIES, max_size=MEMORIES)
ROW = View(0, 0, LONG, 1, None, False)  # noqa: FBT003
OTHER = View(1, 0, LONG, 1, None, False)  # noqa: FBT003
TABLE = View(0, 0, LONG, 1, (3, 3), False)  # noqa: FBT003
INTS = Memory([3, 1, 4, 1, 5, 9, 2, 6, 5], "int64", writable=True)
FEW = Memory([2, 0, -1], "int64", writable=True)
MASK = Memory([1, 0, 1, 1, 0, 0, 1, 0, 1], "bool", writable=True)

#: As the module `operator` calls them.
OPERATORS = [
    "add", "and_", "eq", "floordiv", "ge", "gt", "iadd", "iand", "imul", "ior", "irshift", "isub",
    "le", "lshift", "lt", "mod", "mul", "ne", "or_", "rshift", "sub", "xor",
]  # fmt: skip


@given(MEMORY_LISTS, st.sampled_from(OPERATORS), OPERANDS, OPERANDS)
@example([INTS, INTS, MASK], "add", 1, View(0, 0, LONG, 1, (2, 3), True))  # noqa: FBT003
@example([INTS, INTS, MASK], "isub", View(0, 1, LONG, 1, None, False), ROW)  # noqa: FBT003
def test_operators_do_what_numpy_does(
    fast: ModuleType,
    memories: list[Memory],
    name: str,
    left: Operand,
    right: Operand,
) -> None:
    """Any two operands, also in one another's memory, in any order."""
    check(fast, memories, getattr(operator, name), left, right)


@given(MEMORY_LISTS, st.sampled_from(OPERATORS), st.booleans())
def test_operators_on_whole_rows_do_what_numpy_does(
    fast: ModuleType,
    memories: list[Memory],
    name: str,
    alike: bool,  # noqa: FBT001
) -> None:
    """Operands of one length are met more often than chance would have it."""
    first, second, _ = memories
    if alike:
        count = min(len(first.numbers), len(second.numbers))
        memories[0] = replace(first, numbers=first.numbers[:count])
        memories[1] = replace(
            second, numbers=second.numbers[:count], dtype=first.dtype, times=first.times
        )
    check(fast, memories, getattr(operator, name), ROW, OTHER)


@given(MEMORY_LISTS, views(MEMORIES), KEYS)
@example([INTS, FEW, MASK], ROW, OTHER)
@example([INTS, FEW, MASK], TABLE, Pair(OTHER, OTHER))
def test_reading_by_index_does_what_numpy_does(
    fast: ModuleType, memories: list[Memory], array: View, key: Operand
) -> None:
    """Views are views of the same memory, with the same flags; bad keys raise the same."""
    check(fast, memories, operator.getitem, array, key)


@given(MEMORY_LISTS, views(MEMORIES), KEYS, OPERANDS)
@example([INTS, FEW, MASK], ROW, OTHER, [7, 8, 9])
@example([INTS, FEW, MASK], TABLE, Pair(OTHER, OTHER), OTHER)
@example([INTS, FEW, MASK], TABLE, Pair(slice(None), 1), (7, 8, 9))
@example([INTS, FEW, MASK], ROW, View(2, 0, LONG, 1, None, False), 7)  # noqa: FBT003
@example([INTS, FEW, MASK], ROW, View(0, 0, 3, 1, None, False), OTHER)  # noqa: FBT003
def test_writing_by_index_does_what_numpy_does(
    fast: ModuleType, memories: list[Memory], array: View, key: Operand, value: Operand
) -> None:
    """The same elements change, or none does and the same error is raised."""
    check(fast, memories, operator.setitem, array, key, value)


METHODS: dict[str, Callable[..., object]] = {
    **{
        name: operator.methodcaller(name)
        for name in (
            "all", "any", "argmax", "argmin", "copy", "cumsum", "item", "max", "min", "nonzero",
            "ravel", "sum", "tobytes", "tolist", "flatten", "view",
        )
    },
    "argsort, stable": operator.methodcaller("argsort", kind="stable"),
    "argsort, axis": operator.methodcaller("argsort", 0),
    "argmin, axis": operator.methodcaller("argmin", axis=0),
    "copy, order": operator.methodcaller("copy", "F"),
    "sum, axis": operator.methodcaller("sum", axis=0),
    "sum, type": operator.methodcaller("sum", dtype=np.int32),
    "tobytes, order": operator.methodcaller("tobytes", order="F"),
    "unknown": operator.methodcaller("argmin", nothing=0),
    "negative": operator.neg,
    "invert": operator.invert,
    "length": len,
    "list": list,
    "truth": bool,
    "float": np.sqrt,
}  # fmt: skip


@given(MEMORY_LISTS, st.sampled_from(sorted(METHODS)), views(MEMORIES))
@example([INTS, FEW, MASK], "nonzero", View(2, 0, LONG, 1, None, False))  # noqa: FBT003
def test_methods_without_operands_do_what_numpy_does(
    fast: ModuleType, memories: list[Memory], name: str, array: View
) -> None:
    """With options as well, which have no fast path."""
    check(fast, memories, METHODS[name], array)


def sorted_and_searched(array: Array, value: object) -> object:
    """Search where it makes sense."""
    array = array.copy()
    array.sort()
    return array.searchsorted(value)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]


@given(
    MEMORY_LISTS,
    st.sampled_from(["fill", "item", "repeat", "take", "searchsorted", "argsort"]),
    views(MEMORIES),
    OPERANDS,
)
@example([INTS, FEW, MASK], "repeat", ROW, [1, 0, 2, 1, 0, 0, 3, 1, 1])
def test_methods_with_an_operand_do_what_numpy_does(
    fast: ModuleType, memories: list[Memory], name: str, array: View, operand: Operand
) -> None:
    """Whatever the operand is."""

    def operation(one: Array, other: object) -> object:
        if name == "searchsorted":
            return sorted_and_searched(one, other)
        if name == "argsort" and len(set(one.ravel().tolist())) < one.size:
            return None  # equals come in any order
        if name == "repeat" and isinstance(other, int) and abs(other) > 100:
            return None  # more memory than there is
        result: object = getattr(one, name)(*[] if name == "argsort" else [other])
        return one.copy() if name == "fill" else result

    check(fast, memories, operation, array, operand)


@given(MEMORY_LISTS, st.sampled_from(["maximum", "minimum"]), OPERANDS, OPERANDS)
def test_the_larger_and_the_smaller_are_those_of_numpy(
    fast: ModuleType, memories: list[Memory], name: str, left: Operand, right: Operand
) -> None:
    """Of any two operands."""
    check(fast, memories, getattr(fast, name), left, right, plain=getattr(np, name))


@given(MEMORY_LISTS, st.lists(views(MEMORIES), max_size=4), st.booleans())
def test_joined_arrays_are_those_of_numpy(
    fast: ModuleType,
    memories: list[Memory],
    parts: list[View],
    in_list: bool,  # noqa: FBT001
) -> None:
    """As a list or a tuple, of one type or several."""

    def joined(concatenate: Callable[..., object]) -> Callable[..., object]:
        return lambda *arrays: concatenate(list(arrays) if in_list else arrays)

    check(fast, memories, joined(fast.concatenate), *parts, plain=joined(np.concatenate))


@given(MEMORY_LISTS, OPERANDS)
def test_what_is_not_zero_is_counted_as_by_numpy(
    fast: ModuleType, memories: list[Memory], operand: Operand
) -> None:
    """Of arrays and of anything else."""
    check(fast, memories, fast.count_nonzero, operand, plain=np.count_nonzero)


@given(st.lists(st.one_of(st.integers(-9, 40), st.just(1.5)), max_size=4))
def test_ranges_are_those_of_numpy(fast: ModuleType, bounds: list[float]) -> None:
    """With up to three bounds, or too many."""
    check(fast, [], fast.arange, *bounds, plain=np.arange)


@pytest.mark.parametrize("count", [0, 1, 32, 33, 4000])
def test_new_arrays_are_int64_and_writable(fast: ModuleType, count: int) -> None:
    """Inside the object of an array or outside."""
    made = fast.ints(count)
    made.fill(7)
    assert made.dtype.str == np.dtype(np.int64).str
    assert made.tolist() == [7] * count


@pytest.mark.parametrize(
    ("count", "error"), [(-1, ValueError), (2**70, OverflowError), ("x", TypeError)]
)
def test_an_array_of_no_length_is_refused(
    fast: ModuleType, count: object, error: type[Exception]
) -> None:
    """As by `numpy.empty`."""
    with pytest.raises(error):
        fast.ints(count)


def test_what_is_no_array_cannot_be_quick(fast: ModuleType) -> None:
    """It is a mistake, and nothing is converted."""
    with pytest.raises(TypeError, match=r"quick\(\) takes an array, not list"):
        fast.quick([1, 2])


def test_results_stay_fast(fast: ModuleType) -> None:
    """Otherwise the next operation would be slow again."""
    row, mask = fast.ints(3), fast.ints(3) == 1
    row.fill(1)
    table = fast.quick(np.ones((3, 3), dtype=np.int64))
    made = [row[:2], row[row], row[mask], table[0], table[:, 1], row + 1, 1 + row, -row, ~mask]
    made += [np.ones(3, dtype=np.int64) + row, table + row, table == row, mask & mask, row.copy()]
    made += [row.nonzero()[0], row.cumsum(), row.repeat(2), row.argsort(), np.maximum(row, 2)]
    made += [fast.quick(np.ones(3)), fast.arange(3), fast.maximum(row, 2), fast.concatenate([row])]
    assert {type(array) for array in made} == {fast.FastArray}


def test_memory_lives_as_long_as_a_view_of_it(fast: ModuleType) -> None:
    """Also where it is inside the object of an array that nobody knows any more."""
    made = fast.arange(8) + 1
    views = [made[2:5], memoryview(made), np.asarray(made)[1:]]
    del made
    noise = [fast.arange(8) * 0 for _ in range(1000)]
    assert views[0].tolist() == [3, 4, 5]
    assert views[1].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert views[2].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert not np.concatenate(noise).any()


def test_an_array_may_change_its_shape_and_type_in_place(fast: ModuleType) -> None:
    """What is left of it is not used for the next result as if it were a row of int64."""
    for _ in range(600):
        one, two = fast.arange(8) + 1, fast.arange(8) + 1
        one.shape = (2, 4)
        two.dtype = np.int32
        assert one.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
        assert len(two) == 16
        del one, two
        assert (fast.arange(3) + 1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("count", [33, 1000, 8193])
def test_a_long_row_owns_its_memory(fast: ModuleType, count: int) -> None:
    """As one of NumPy's does, and when it dies it leaves none of it to the next result."""
    for size in (2 * count, count - 1, 3, 0):
        made = fast.arange(count) + 1
        assert made.flags.owndata
        assert made.base is None
        made.resize(size, refcheck=False)
        assert made.tolist() == ([*range(1, count + 1)] + [0] * count)[:size]
        again = pickle.loads(pickle.dumps(made))  # noqa: S301
        assert type(again) is fast.FastArray
        assert again.tolist() == made.tolist()
        del made, again
        assert not fast.ints(1).flags.owndata


def test_memory_of_a_long_row_is_traced_as_that_of_numpy(fast: ModuleType) -> None:
    """In the same domain, until the row dies, whoever made it and however it was made longer."""
    domain = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)

    def traced() -> int:
        traces = tracemalloc.take_snapshot().filter_traces([domain]).traces
        return sum(trace.size for trace in traces)

    tracemalloc.start()
    try:
        before = traced()
        made = [fast.ints(1000), fast.ints(100_000), fast.arange(33)]
        made[2].resize(50, refcheck=False)
        assert traced() - before == 8 * (1000 + 100_000 + 50)
        made.clear()
        assert traced() == before
    finally:
        tracemalloc.stop()


def test_arrays_die_without_a_trace(fast: ModuleType) -> None:
    """Everything that a result holds is let go of with it."""
    owner = np.arange(50)

    def use() -> tuple[int, int]:
        for _ in range(300):
            view = fast.quick(owner)[3:9]
            _ = view[view > 5] + view.argmin()
            del view
        return sys.getrefcount(owner), sys.getrefcount(owner.dtype)

    before = use()  # some dead arrays are kept, each with its type
    assert use() == before


# -- the kernel -------------------------------------------------------------------------------


def replayed(path: str, loop: str, folder: Path) -> tuple[str, list[bytes]]:
    """Replay the trace that ships; return the class of the kernel's arrays, and what came out."""
    pytest.importorskip("zstandard", reason="the command line needs the extra [cli]")
    folder.mkdir()
    files = [folder / "result.json", folder / "run.jsonl"]
    options = ["--limit", "60", "--speed", "0.5", "--device", "fast", "--num-blocks", "4000"]
    options += ["--loop", loop, "--json", str(files[0]), "--journal", str(files[1])]
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, path, "replay", str(TRACE), *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = [file.read_bytes() for file in files]
    return done.stderr.split()[0], [*written, done.stdout.encode()]


@pytest.mark.parametrize("loop", ["eager", "overlap", "just-in-time"])
def test_a_replay_is_the_same_with_and_without(path: Path, loop: str, tmp_path: Path) -> None:
    """Results, every event and every command, whatever arrays they are made of."""
    kind, with_it = replayed(str(path), loop, tmp_path / "with")
    assert kind == "FastArray"
    kind, without_it = replayed("", loop, tmp_path / "without")
    assert kind == "ndarray"
    assert with_it == without_it
