"""The compiled build: kernel and simulators through mypyc, and modules in C. Off by default.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .        # or: make compiled

A build hook of hatchling, declared in pyproject.toml with what it needs and with the modules that
stay as they are. Python comes from the same sources; a module in C has a twin in Python, which is
its oracle. The wheel holds the sources too, beside the extension modules that Python prefers
to them. Nothing is written into the source tree, where extension modules would hide the sources.

    STEPAHEAD_GUIDED=1 HATCH_BUILD_HOOKS_ENABLE=1 pip install .        # or: make compiled GUIDED=1

compiles it twice, with GCC: first so that it counts where it goes while it replays a trace that
ships, then by these counts.

What is compiled is a copy in which dataclasses have what `dataclass` would make for them when they
are imported, which takes long and would be interpreted; see `spelled_out`.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: At -O3 compiling takes half as long again, and a replay as long as before.
_LEVEL: Final = "2"
#: What `compiled_records` is called where it is installed, beside what mypyc puts there.
_RECORDS: Final = "stepahead__records"
#: What a plain dataclass leaves to it.
_GIVEN: Final = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"}
#: What it may say in `dataclass(...)`, and what counts where it does not; slots it has anyway.
_SETTINGS: Final = {"kw_only": "False", "frozen": "False", "eq": "True", "slots": ""}
_SUFFIX: Final = ".pyd" if sys.platform == "win32" else ".so"
#: GCC writes the counts beside an object file, and finds them there when it compiles that again.
#: What no replay came to is compiled as without counts, and not for size.
_COUNTING: Final = ["-fprofile-generate"]
_COUNTED: Final = ["-fprofile-use", "-fprofile-partial-training", "-Wno-missing-profile"]
#: A replay needs these as well; they are not compiled.
_INTERPRETED: Final = ["specs/stepahead_specs", "tools/stepahead_tools"]
_REPLAYS: Final = [
    *(f"--unchecked --device fast --loop {loop}" for loop in ("eager", "overlap", "just-in-time")),
    "--limit 100",
]


class CompiledBuild(BuildHookInterface[Any]):
    """Compiles the modules of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the builder which files to add.

        Raises:
            RuntimeError: the install is to be editable, or guided without GCC.
        """
        if version == "editable":
            raise RuntimeError(
                "a compiled build does not follow its sources; install it without --editable, or "
                "unset HATCH_BUILD_HOOKS_ENABLE"
            )
        if is_guided():
            demand_gcc()
        self._folder = tempfile.TemporaryDirectory(prefix="stepahead-build-")
        work = Path(self._folder.name)
        for built in _built(Path(self.root), self.config, work):
            build_data["force_include"][str(built)] = str(built.relative_to(work / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what the wheel has taken in."""
        del version, build_data, artifact_path
        self._folder.cleanup()


def compiled_sources(root: Path, config: dict[str, Any]) -> list[Path]:
    """Return the files below ``root`` that are compiled, by the hook's table in pyproject.toml.

    Args:
        root: the project.
        config: ``packages`` are folders whose modules are compiled, those below them not;
            ``interpreted`` are modules that are not.
    """
    interpreted = set(config["interpreted"])
    return [
        path
        for package in config["packages"]
        for path in sorted((root / package).glob("*.py"))
        if f"{path.parent.name}.{path.stem}" not in interpreted and path.stem != "__init__"
    ]


def spelled_out(source: str) -> str:
    """Return a module whose dataclasses say more of themselves, each line at its old place.

    To the first of the two blank lines behind a plain one, which has no base class and fields with
    nothing special, goes its `__init__`; to the second what `compiled_records` gives it. Of others
    goes there what their fields are annotated with, of which mypyc keeps the outermost class only.
    """
    lines = source.split("\n")
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or (said := _settings(node)) is None:
            continue
        here = node.end_lineno or 0
        lines += [""] * (here + 2 - len(lines))
        if lines[here].strip() or lines[here + 1].strip():
            raise ValueError(f"two blank lines are missing behind the class {node.name}")
        annotations = {name: ast.unparse(kind) for name, kind, _ in _fields(node)}
        if not _is_plain(node):
            lines[here + 1] = f'setattr({node.name}, "__annotations__", {annotations})'
            continue
        named, frozen, eq, _ = (said.get(name, default) for name, default in _SETTINGS.items())
        lines[node.decorator_list[0].lineno - 1] = (
            f"@dataclass(init=False, repr=False, eq=False, kw_only={named})"
        )
        lines[here] = _init(node)
        lines[here + 1] = (
            f"from {_RECORDS} import complete_dataclass; "
            f"complete_dataclass({node.name}, {annotations}, frozen={frozen}, eq={eq})"
        )
    return "\n".join(lines)


_Field: TypeAlias = tuple[str, ast.expr, ast.expr | None]


def _fields(node: ast.ClassDef) -> list[_Field]:
    """Return name, annotation and default of each."""
    return [
        (entry.target.id, entry.annotation, entry.value)
        for entry in node.body
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
    ]


def _settings(node: ast.ClassDef) -> dict[str, str] | None:
    """Return what stands in a class's `dataclass(...)`; None if it is none."""
    for entry in node.decorator_list:
        if isinstance(entry, ast.Call) and ast.unparse(entry.func) == "dataclass":
            return {str(word.arg): ast.unparse(word.value) for word in entry.keywords}
    return None


def _is_plain(node: ast.ClassDef) -> bool:
    own = {entry.name for entry in node.body if isinstance(entry, ast.FunctionDef)}
    others = set(_settings(node) or ()) - _SETTINGS.keys()
    if node.bases or own & _GIVEN or others or not _fields(node):
        return False
    return not any(
        ast.unparse(kind).startswith(("ClassVar", "InitVar"))
        or (_is_field(value) and _factory(value) is None)
        for _, kind, value in _fields(node)
    )


def _is_field(value: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "field"


def _factory(value: ast.expr | None) -> str | None:
    """Return what a `default_factory` gives, where a field has that and nothing else."""
    if not _is_field(value) or [word.arg for word in value.keywords] != ["default_factory"]:
        return None
    factory = value.keywords[0].value
    if isinstance(factory, ast.Lambda):
        return ast.unparse(factory.body)
    return f"{ast.unparse(factory.value if isinstance(factory, ast.Subscript) else factory)}()"


def _init(node: ast.ClassDef) -> str:
    """Return an `__init__` in one line; None as an argument stands for what a factory makes."""
    parameters = ["self", "*"] if "kw_only" in (_settings(node) or {}) else ["self"]
    body: list[str] = []
    for name, kind, value in _fields(node):
        factory, given = _factory(value), ast.unparse(kind)
        if factory is not None:
            parameters.append(f"{name}: {given} | None = None")
            body.append(f"self.{name} = {factory} if {name} is None else {name}")
        else:
            parameters.append(f"{name}: {given}" + (f" = {ast.unparse(value)}" if value else ""))
            body.append(f"self.{name} = {name}")
    if any(
        isinstance(entry, ast.FunctionDef) and entry.name == "__post_init__" for entry in node.body
    ):
        body.append("self.__post_init__()")
    return f"    def __init__({', '.join(parameters)}) -> None: {'; '.join(body)}"


def _copied(root: Path, config: dict[str, Any], work: Path) -> list[str]:
    """Copy the packages to ``work``, spelled out; return what to compile, as seen from there."""
    for package in config["packages"]:
        shutil.copytree(
            root / package, work / package, ignore=shutil.ignore_patterns("data", f"*{_SUFFIX}")
        )
    names = [str(path.relative_to(root)) for path in compiled_sources(root, config)]
    for name in names:
        source = (root / name).read_text(encoding="utf-8")
        (work / name).write_text(spelled_out(source), encoding="utf-8")
    return names


def _built(root: Path, config: dict[str, Any], work: Path) -> list[Path]:
    """Compile in ``work``; return what was built, in ``lib`` there."""
    # They are there where the hook is enabled, and of setuptools mypy knows no types.
    setuptools: Any = import_module("setuptools")
    mypyc: Any = import_module("mypyc.build")
    records = work / "lib" / f"{_RECORDS}.py"
    records.parent.mkdir()
    shutil.copy(root / "tools" / "compiled_records.py", records)
    sources = _copied(root, config, work / "src")
    os.chdir(work / "src")  # compiled code names its lines by the path from here
    folders = [Path(package) for package in config["packages"]]
    imported = [*(folder.parent for folder in folders), records.parent]
    os.environ["MYPYPATH"] = os.pathsep.join(map(str, imported))
    translated = mypyc.mypycify(
        # The gate checks types, strictly; here they are only read.
        ["--config-file=", "--explicit-package-bases", f"--cache-dir={work / 'types'}", *sources],
        opt_level=_LEVEL,
        multi_file=True,
        target_dir=str(work / "c"),
        group_name="stepahead",
    )
    in_c = [
        setuptools.Extension(
            f"{path.parent.name}.{path.stem}",
            [str(path)],
            include_dirs=[import_module("numpy").get_include()],
            extra_compile_args=["/O2" if sys.platform == "win32" else "-O3"],
        )
        for folder in folders
        for path in sorted(folder.glob("_*.c"))
    ]
    if not is_guided():
        return _compiled([*translated, *in_c], work)
    # A loop in C that comes for several processors is settled on while its module is loaded, too
    # early to count; so what is in C stays as it is.
    counting = _compiled([*_with(_COUNTING, translated), *in_c], work)
    _count(root, config, work, counting)
    return _compiled([*_with(_COUNTED, translated), *in_c], work)


def is_guided() -> bool:
    """Tell whether the environment asks for a guided build; 0 and nothing do not."""
    return os.environ.get("STEPAHEAD_GUIDED", "") not in {"", "0"}


def _with(flags: list[str], extensions: list[Any]) -> list[Any]:
    """Return extensions like these that are compiled and linked with more flags."""
    others = [copy(extension) for extension in extensions]
    for other in others:
        other.extra_compile_args = [*other.extra_compile_args, *flags]
        other.extra_link_args = [*other.extra_link_args, *flags]
    return others


def _compiled(extensions: list[Any], work: Path) -> list[Path]:
    """Compile the C code, all of it; return what is in ``lib``."""
    setuptools: Any = import_module("setuptools")
    distribution = setuptools.Distribution({"name": "stepahead", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.force = True
    command.ensure_finalized()
    command.run()
    return sorted(path for path in (work / "lib").rglob("*") if path.is_file())


def demand_gcc() -> None:
    """Refuse any other compiler, before anything is compiled.

    Raises:
        RuntimeError: it is none, or there is none.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    told = ""
    if shutil.which(compiler[0]) is not None:
        told = subprocess.check_output([*compiler, "--version"], text=True)
    if "Free Software Foundation" not in told:
        raise RuntimeError(
            f"STEPAHEAD_GUIDED=1 needs GCC, which {shlex.join(compiler)} is not; set CC, or unset "
            "STEPAHEAD_GUIDED for a compiled build that is not guided"
        )


def _count(root: Path, config: dict[str, Any], work: Path, counting: list[Path]) -> None:
    """Replay a trace with each loop on a build that counts where it goes."""
    site = work / "site"
    for package in (*config["packages"], *_INTERPRETED):
        ignored = shutil.ignore_patterns(f"*{_SUFFIX}")
        shutil.copytree(root / package, site / Path(package).name, ignore=ignored)
    for built in counting:
        shutil.copy2(built, site / built.relative_to(work / "lib"))
    for options in _REPLAYS:
        replay = [sys.executable, "-m", "stepahead_tools", "replay", "demo", *options.split()]
        subprocess.run(replay, cwd=site, stdout=subprocess.DEVNULL, check=True)
