"""What is compiled, and that a build says which one it is."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import FrozenInstanceError, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest.mock import patch

import pytest

from stepahead_models.build import is_compiled
from stepahead_tools import version
from stepahead_tools.testing import run

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def table() -> dict[str, Any]:
    """Return the table of the build hook in pyproject.toml."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    hook: dict[str, Any] = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return hook


def test_every_module_is_compiled_but_those_that_are_listed(table: dict[str, Any]) -> None:
    """A module that was renamed is not left in the list, nor is one compiled twice."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    from compiled_build import compiled_sources  # noqa: PLC0415 # it imports hatchling

    chosen = {f"{path.parent.name}.{path.stem}" for path in compiled_sources(PROJECT, table)}
    there = {
        f"{path.parent.name}.{path.stem}"
        for package in table["packages"]
        for path in (PROJECT / package).glob("*.py")
        if path.stem != "__init__"
    }
    assert {"stepahead.kernel", "stepahead_models.simulation"} <= chosen
    assert chosen == there - set(table["interpreted"])
    assert set(table["interpreted"]) <= there


def test_nothing_that_is_compiled_keeps_a_cached_property(table: dict[str, Any]) -> None:
    """Mypyc takes one for a plain property, and works its value out at each use."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    from compiled_build import compiled_sources  # noqa: PLC0415 # as above

    keeping = [
        path.name
        for path in compiled_sources(PROJECT, table)
        if "cached_property" in path.read_text(encoding="utf-8")
    ]
    assert not keeping, f"{keeping} use cached_property; make the value in __post_init__"


def test_the_compiled_build_is_off_unless_it_is_asked_for(table: dict[str, Any]) -> None:
    """Who installs stepahead needs no compiler."""
    assert table["enable-by-default"] is False


def test_a_compiled_build_cannot_be_editable(table: dict[str, Any]) -> None:
    """Its extension modules would hide every later edit."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")

    from compiled_build import CompiledBuild  # noqa: PLC0415 # as above

    nothing: Any = None  # of the builder, which is not asked
    hook = CompiledBuild(str(PROJECT), table, nothing, nothing, "", "wheel")
    with pytest.raises(RuntimeError) as told:
        hook.initialize("editable", {})
    assert str(told.value) == (
        "a compiled build does not follow its sources; install it without --editable, or unset "
        "HATCH_BUILD_HOOKS_ENABLE"
    )


def test_a_guided_build_names_the_compiler_that_it_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only GCC finds its counts again where it left them; that is said before it compiles."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    from compiled_build import demand_gcc  # noqa: PLC0415 # as above

    other = tmp_path / "cc"
    other.write_text("#!/bin/sh\necho clang version 14.0.6\n", encoding="utf-8")
    other.chmod(0o755)
    monkeypatch.setenv("CC", f"{other} -pthread")
    with pytest.raises(RuntimeError) as told:
        demand_gcc()
    assert str(told.value) == (
        f"STEPAHEAD_GUIDED=1 needs GCC, which {other} -pthread is not; set CC, or unset "
        "STEPAHEAD_GUIDED for a compiled build that is not guided"
    )


def test_a_build_is_guided_only_where_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variable that is set to nothing asks for nothing."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    from compiled_build import is_guided  # noqa: PLC0415 # as above

    monkeypatch.delenv("STEPAHEAD_GUIDED", raising=False)
    assert not is_guided()
    for said, guided in {"": False, "0": False, "1": True}.items():
        monkeypatch.setenv("STEPAHEAD_GUIDED", said)
        assert is_guided() is guided


def test_the_version_says_which_build_it_is() -> None:
    """Both have the same name and number."""
    done = run("--version")
    build = "compiled" if is_compiled() else "pure Python"
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("stepahead ")
    assert done.stdout.endswith(f" ({build})\n")


def test_a_source_tree_on_the_path_has_no_version() -> None:
    """It is told as what it is."""
    with patch.object(version, "version", side_effect=PackageNotFoundError):
        assert version.described().startswith("stepahead not installed (")


RECORDS = dedent(
    """\
    from dataclasses import dataclass, field

    @dataclass(slots=True, kw_only=True)
    class Plain:
        left: int
        right: tuple[int, ...] = (1, 2)
        listed: list[int] = field(default_factory=list[int])
        made: dict[int, int] = field(default_factory=lambda: {3: 4})


    @dataclass(frozen=True)
    class Frozen:
        left: int | None = None


    @dataclass(frozen=True, eq=False)
    class Itself:
        left: int


    @dataclass(frozen=True)
    class Special:
        left: int
        right: int = field(default=3, repr=False)


    """
)


@pytest.fixture
def records() -> list[dict[str, Any]]:
    """Return the names of a module of dataclasses, as it stands and as it is compiled."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    import compiled_records  # noqa: PLC0415 # beside compiled_build
    from compiled_build import spelled_out  # noqa: PLC0415 # as above

    found: list[dict[str, Any]] = []
    with patch.dict(sys.modules, {"stepahead__records": compiled_records}):
        for text in (RECORDS, spelled_out(RECORDS)):
            names: dict[str, Any] = {"__name__": __name__}
            exec(compile(text, "records", "exec"), names)  # noqa: S102 # what is compiled is run
            found.append(names)
    return found


def frozen(kind: type[Any], left: int) -> Any:  # noqa: ANN401 # a record of that kind
    """Return a frozen record, whose `__init__` as it is spelled out only works compiled."""
    record: Any = object.__new__(kind)
    object.__setattr__(record, "left", left)
    return record


def test_what_is_compiled_keeps_its_lines() -> None:
    """Of the lines of a source some that were blank say more, and what stands above a dataclass."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    from compiled_build import spelled_out  # noqa: PLC0415 # as above

    kept = zip(RECORDS.splitlines(), spelled_out(RECORDS).splitlines(), strict=True)
    changed = [number for number, (before, after) in enumerate(kept, 1) if before != after]
    assert changed == [3, 9, 10, 11, 14, 15, 16, 19, 20, 26]


def test_what_is_compiled_makes_its_records_as_dataclass_does(
    records: list[dict[str, Any]],
) -> None:
    """Each `__init__` that is spelled out takes and gives what the one of the sources does."""
    ours, theirs = (names["Plain"](left=5) for names in records)
    assert repr(ours) == repr(theirs) == "Plain(left=5, right=(1, 2), listed=[], made={3: 4})"
    assert records[1]["Plain"](left=5).listed is not theirs.listed
    kinds = {name: kind for name, kind in records[1].items() if hasattr(kind, "__annotations__")}
    assert kinds["Plain"].__annotations__["right"] == "tuple[int, ...]"
    assert kinds["Frozen"].__annotations__ == {"left": "int | None"}
    assert kinds["Special"].__annotations__ == {"left": "int", "right": "int"}
    for names in records:
        assert repr(frozen(names["Frozen"], 3)) == "Frozen(left=3)"
        assert repr(names["Special"](3)) == "Special(left=3)"
        assert replace(names["Plain"](left=3), right=()) == names["Plain"](left=3, right=())


def test_what_is_compiled_compares_as_dataclass_does(records: list[dict[str, Any]]) -> None:
    """By its fields and its class, where nothing else is said; what can change has no hash."""
    for names in records:
        plain = names["Plain"]
        assert plain(left=5) == plain(left=5) != plain(left=6)
        assert plain.__hash__ is None
        one, same, other = (frozen(names["Frozen"], left) for left in (5, 5, 6))
        assert one == same != other
        assert hash(one) == hash(same) == hash((5,))
        one, same = (frozen(names["Itself"], 5) for _ in range(2))
        assert one != same
        assert hash(one) != hash((5,))


def test_what_is_compiled_refuses_as_dataclass_does(records: list[dict[str, Any]]) -> None:
    """In the same words."""
    for names in records:
        for kind in (names["Frozen"], names["Itself"]):
            record = frozen(kind, 5)
            with pytest.raises(FrozenInstanceError, match=r"^cannot assign to field 'left'$"):
                record.left = 6
            with pytest.raises(FrozenInstanceError, match=r"^cannot delete field 'left'$"):
                del record.left


def test_a_record_without_room_behind_it_is_named() -> None:
    """The lines of what is compiled stay those of its source, by which errors are told."""
    pytest.importorskip("hatchling", reason="hatchling comes with the extra [dev]")
    from compiled_build import spelled_out  # noqa: PLC0415 # as above

    with pytest.raises(ValueError, match="two blank lines are missing behind the class Tight"):
        spelled_out("@dataclass()\nclass Tight:\n    x: int\ny = 1\n")
