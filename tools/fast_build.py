"""Build `stepahead._fast`, the C module for a handful of numbers, beside its source.

    python tools/fast_build.py          # or: make fast

It is used from then on, and the sources are not hidden by it; to do without it again, delete the
file that this names. A compiled build (tools/compiled_build.py) brings the module along.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import numpy as np

SOURCE: Final = Path(__file__).resolve().parent.parent / "kernel/stepahead/_fast.c"
_FLAGS: Final = ("-O3", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")


class CannotBuildError(Exception):
    """Something that is needed to compile is not here."""


def build(folder: Path) -> Path:
    """Compile the module into a folder; every warning is an error.

    Raises:
        CannotBuildError: there is no compiler, or there are no header files of Python.
        subprocess.CalledProcessError: the compiler refused the source; it has said why.
    """
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    if not linker or shutil.which(linker[0]) is None:
        raise CannotBuildError("no C compiler, or none that Python knows how to call")
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise CannotBuildError("no header files of Python")
    target = folder / f"_fast{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = [*shlex.split(sysconfig.get_config_var("CCSHARED") or ""), *_FLAGS]
    flags += [f"-I{include}", f"-I{np.get_include()}", str(SOURCE), "-o", str(target)]
    subprocess.run([*linker, *flags], check=True)
    return target


def main() -> int:
    """Build it in the source tree."""
    try:
        print(f"built {build(SOURCE.parent)}")
    except CannotBuildError as problem:
        print(f"cannot build: {problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
