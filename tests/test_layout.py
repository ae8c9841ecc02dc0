"""The packages keep their layout: imports point one way, the kernel stands on NumPy alone."""

import ast
import os
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

import stepahead
import tidy

PROJECT = Path(__file__).resolve().parent.parent
KERNEL = Path(str(stepahead.__file__)).parent
PACKAGES = ("stepahead", "stepahead_models", "stepahead_specs", "stepahead_tools")
PUBLIC_NAMES_MAX = 25


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of this project's pyproject.toml on the packages seen from ``folder``."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", PROJECT / "pyproject.toml"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_point_one_way() -> None:
    """Kernel <- models <- specs <- tools, and no package reaches back."""
    pytest.importorskip("importlinter", reason="import-linter comes with the extra [test]")
    done = lint_imports(PROJECT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("stepahead", "stepahead_models"),
        ("stepahead_models", "stepahead_specs"),
        ("stepahead_specs", "stepahead_tools"),
        ("stepahead", "transitions"),
    ],
)
def test_an_import_against_the_direction_is_caught(
    tmp_path: Path, importer: str, imported: str
) -> None:
    """The contracts fail on packages of the same names in which one reaches back."""
    pytest.importorskip("importlinter", reason="import-linter comes with the extra [test]")
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"import {imported}\n" * (name == importer))
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert f"{importer} -> {imported}" in done.stdout


def test_importing_the_kernel_loads_numpy_and_nothing_else() -> None:
    """A fresh Python that imports the kernel holds NumPy and the standard library only."""
    code = (
        "import sys; before = set(sys.modules); import stepahead; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(KERNEL.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "stepahead" in loaded
    assert loaded - sys.stdlib_module_names - {"stepahead", "numpy"} == set()


def test_the_kernel_imports_no_clock_random_source_log_or_thread() -> None:
    """No kernel module names one of the modules that the linter bans there."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"].keys()
    assert {"time", "random", "threading", "logging"} <= banned
    found = {
        f"{path.name} imports {name}"
        for path in sorted(KERNEL.rglob("*.py"))
        for name in imported_names(path)
        if name in banned
    }
    assert found == set()


def imported_names(path: Path) -> set[str]:
    """List the top-level modules that a file imports, wherever in the file it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def test_the_public_names_of_the_kernel_are_these() -> None:
    """What a user may rely on changes only where somebody changes this list too."""
    assert stepahead.__all__ == [
        "BatchPreference",
        "ConfigError",
        "HostContractError",
        "IllegalTransition",
        "Kernel",
        "KernelBug",
        "KernelConfig",
        "SelectionTiming",
        "StepaheadError",
        "TableError",
        "WaitingOrder",
        "commands",
        "events",
    ]
    assert len(stepahead.__all__) <= PUBLIC_NAMES_MAX


def test_every_public_name_of_the_kernel_is_listed_and_there() -> None:
    """A name in ``__all__`` resolves, and no class or function is exported without being listed."""
    exported = {
        name
        for name, value in vars(stepahead).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert exported <= set(stepahead.__all__)
    assert [name for name in stepahead.__all__ if not hasattr(stepahead, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_tells_type_checkers_that_it_is_typed(package: str) -> None:
    """The marker file lies beside each package's ``__init__``."""
    assert resources.files(package).joinpath("py.typed").is_file()


def test_nothing_in_the_project_has_outgrown_its_limits() -> None:
    """No module or function is twice its limit, and no marker, address or empty name is left."""
    problems = [str(finding) for finding in tidy.tidy(PROJECT) if finding.problem]
    assert problems == []
