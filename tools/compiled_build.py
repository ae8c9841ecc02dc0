"""The compiled build: kernel and simulators through mypyc, from the same sources. Off by default.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .        # or: make compiled

A build hook of hatchling, declared in pyproject.toml with what it needs and with the modules that
stay as they are. The wheel holds the sources too, beside the extension modules that Python prefers
to them. Nothing is written into the source tree, where extension modules would hide the sources.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: At -O3 compiling takes half as long again, and a replay as long as before.
_LEVEL: Final = "2"
_SUFFIX: Final = ".pyd" if sys.platform == "win32" else ".so"


class CompiledBuild(BuildHookInterface[Any]):
    """Compiles the modules of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the builder which files to add.

        Raises:
            RuntimeError: the install is to be editable.
        """
        if version == "editable":
            raise RuntimeError(
                "a compiled build does not follow its sources; install it without --editable, or "
                "unset HATCH_BUILD_HOOKS_ENABLE"
            )
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


def _built(root: Path, config: dict[str, Any], work: Path) -> list[Path]:
    """Compile in ``work``; return the extension modules, in ``lib`` there."""
    # They are there where the hook is enabled, and of setuptools mypy knows no types.
    setuptools: Any = import_module("setuptools")
    mypyc: Any = import_module("mypyc.build")
    os.chdir(root)
    os.environ["MYPYPATH"] = os.pathsep.join(
        str((root / package).parent) for package in config["packages"]
    )
    # The gate checks types, strictly. Here they are only read, and what modules import that stay
    # as they are may be missing.
    options = (
        "--config-file=",
        "--explicit-package-bases",
        "--ignore-missing-imports",
        f"--cache-dir={work / 'types'}",
    )
    extensions = mypyc.mypycify(
        [*options, *map(str, compiled_sources(root, config))],
        opt_level=_LEVEL,
        multi_file=True,
        target_dir=str(work / "c"),
        group_name="stepahead",
    )
    distribution = setuptools.Distribution({"name": "stepahead", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.ensure_finalized()
    command.run()
    return sorted(path for path in (work / "lib").rglob("*") if path.suffix == _SUFFIX)
