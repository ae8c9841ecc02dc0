"""Changing a function of the kernel from outside, for as long as a mutant lives.

The kernel has no switches for mutants. An `Edit` names a function and says which text of its source
is replaced by which; `applied` compiles the changed source and gives the function the new code.
That reaches every caller, however it imported the function, and it is undone on the way out. A text
that is not there exactly once is an error: the kernel has changed, and the mutant must follow.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType

import stepahead
from stepahead_models.build import is_compiled


class StaleMutant(Exception):
    """An edit does not fit the kernel's source any more."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Args:
        place: the function, as module and name below `stepahead`: "State.vacate".
        old: text that stands exactly once in the function's source, without its indentation as a
            method.
        new: what stands there instead.
    """

    place: str
    old: str
    new: str

    def __str__(self) -> str:
        """Return the edit as a small diff."""
        lines = [f"in {self.place}"]
        lines += [f"- {line}" for line in self.old.splitlines()]
        lines += [f"+ {line}" for line in self.new.splitlines()]
        return "\n".join(lines)


@contextmanager
def applied(edits: Sequence[Edit]) -> Generator[None]:
    """Give the edited functions their changed code inside the ``with`` block.

    Raises:
        StaleMutant: a function or a text is not there.
    """
    by_place: dict[str, list[Edit]] = {}
    for edit in edits:
        by_place.setdefault(edit.place, []).append(edit)
    changed = [(find(place), group) for place, group in by_place.items()]
    codes = [(function, compiled(function, group)) for function, group in changed]
    with ExitStack() as stack:
        for function, code in codes:
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield


def find(place: str) -> FunctionType:
    """Return the function of the kernel that a place names, whatever module it is in.

    Raises:
        StaleMutant: there is none, or more than one, or the kernel is compiled.
    """
    if is_compiled():
        raise StaleMutant(
            "mutants are edits of the kernel's Python, and this kernel is compiled; hunt them with "
            "a pure build"
        )
    found = [function for module in _modules() if (function := _within(module, place)) is not None]
    if len(found) != 1:
        raise StaleMutant(f"{len(found)} functions of the kernel are {place}, not one; rename it")
    return found[0]


def _modules() -> list[ModuleType]:
    names = [entry.name for entry in pkgutil.iter_modules(stepahead.__path__)]
    return [importlib.import_module(f"stepahead.{name}") for name in names]


def _within(module: ModuleType, place: str) -> FunctionType | None:
    """Return the function if the module defines it; what it merely imports is not its own.

    A property is the function that computes it.
    """
    found: object = module
    for name in place.split("."):
        found = getattr(found, name, None)
    if isinstance(found, property):
        found = found.fget
    own = isinstance(found, FunctionType) and found.__module__ == module.__name__
    return found if own and isinstance(found, FunctionType) else None


def compiled(function: FunctionType, edits: Sequence[Edit]) -> CodeType:
    """Return the code of ``function`` with its source edited.

    Raises:
        StaleMutant: a text to be replaced is not there exactly once.
    """
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        times = source.count(edit.old)
        if times != 1:
            raise StaleMutant(
                f"{edit.old!r} stands {times} times in {edit.place}, not once; follow the kernel"
            )
        source = source.replace(edit.old, edit.new)
    return code_of(function, source)


def code_of(function: FunctionType, source: str) -> CodeType:
    """Return the code that ``function`` has with another source, which is one function as well."""
    name = f"<mutant of {function.__qualname__}>"
    module = compile(source, name, "exec", annotations.compiler_flag, dont_inherit=True)
    (code,) = (constant for constant in module.co_consts if isinstance(constant, CodeType))
    return code
