"""The mutants: what mutmut changes in one function of the kernel at a time."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
KERNEL: Final = ROOT / "kernel" / "stepahead"
#: Declarations, and what a person reads: tests compare their texts.
LEFT_OUT: Final = ("__init__", "arrays", "errors", "events", "commands")


@dataclass(frozen=True, slots=True)
class Change:
    """One mutant.

    Args:
        module: of the kernel.
        place: the function.
        before, after: its source, without its indentation as a method.
        lines: lines of the module with the statements that differ; who runs none of them cannot
            notice.
        words: the difference is the text of an error, or what stands in it.
    """

    module: str
    place: str
    before: str
    after: str
    lines: frozenset[int]
    words: bool

    @property
    def key(self) -> str:
        """The same for the same change of the same function, wherever it stands."""
        text = f"{self.place}\0{self.before}\0{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """Return what differs in one line."""
        before, after = self.before.splitlines(), self.after.splitlines()
        start, stop, end = _difference(before, after)
        return f"{self.place}: {_joined(before[start:stop])} => {_joined(after[start:end])}"


def modules() -> list[str]:
    """Return the names of the modules that have mutants."""
    return [path.stem for path in sorted(KERNEL.glob("*.py")) if path.stem not in LEFT_OUT]


def changes(module: str) -> Iterator[Change]:
    """Return the mutants of one module of the kernel, in order.

    mutmut leaves decorated functions alone, since it imports what it changes. Here a function only
    gets other code, so properties are changed like the rest.
    """
    # mutmut is no dependency of ours, so its types are not there to be checked.
    mutmut: Any = importlib.import_module("mutmut.mutation.file_mutation")
    cst: Any = importlib.import_module("libcst")
    text = (KERNEL / f"{module}.py").read_text(encoding="utf-8")
    bare = re.sub(r"^( *)@property$", r"\1# a property", text, flags=re.MULTILINE)
    tree, mutations, *_ = mutmut.create_mutations(f"{module}.py", bare)
    owners = dict(_owners(cst, tree))
    starts = dict(_starts(ast.parse(bare)))
    for mutation in mutations:
        function = mutation.contained_by_top_level_function
        if function is None or id(function) not in owners:
            continue
        place = owners[id(function)]
        mutated = mutmut.deep_replace(function, mutation.original_node, mutation.mutated_node)
        before, after = (textwrap.dedent(cst.Module([n]).code) for n in (function, mutated))
        if before != after:
            yield _change(module, place, before, after, starts[place])


def _change(module: str, place: str, before: str, after: str, start: int) -> Change:
    first, spans, raised = _shape(before)
    rows = _touched(before, after)
    lines = rows.union(*(span for span in spans if rows.intersection(span)))
    words = any(rows <= set(span) for span in raised)
    return Change(module, place, before, after, frozenset(n + start - first for n in lines), words)


@cache
def _shape(source: str) -> tuple[int, list[range], list[range]]:
    """Return the line of a function's ``def``, and the spans of statements and of raised errors."""
    (function,) = ast.parse(source).body
    spans = [_span(node) for node in ast.walk(function) if isinstance(node, _STATEMENTS)]
    raised = [
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(function)
        if isinstance(node, ast.Raise)
    ]
    return function.lineno, spans, raised


_STATEMENTS: Final = (ast.stmt, ast.match_case, ast.excepthandler)


def _span(node: ast.stmt | ast.match_case | ast.excepthandler) -> range:
    """Return the lines of a statement, of a compound one those of its head."""
    first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    body: list[ast.stmt] = getattr(node, "body", [])
    if body:
        return range(first, max(body[0].lineno, first + 1))
    last = None if isinstance(node, ast.match_case) else node.end_lineno
    return range(first, (last or first) + 1)


def _touched(before: str, after: str) -> set[int]:
    """Return the rows of ``before`` that differ, counted from 1: one stretch of them."""
    start, stop, _ = _difference(before.splitlines(), after.splitlines())
    return set(range(start + 1, max(stop, start + 1) + 1))


def _difference(before: Sequence[str], after: Sequence[str]) -> tuple[int, int, int]:
    """Return from where to where ``before`` differs, and to where ``after`` does."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, len(before) - end, len(after) - end


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines) or "nothing"


def _starts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Iterate over functions and methods with the line of their ``def``."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{node.name}.{part.name}", part.lineno


def _owners(cst: Any, tree: Any) -> Iterator[tuple[int, str]]:  # noqa: ANN401 # see `changes`
    for node in tree.body:
        if isinstance(node, cst.FunctionDef):
            yield id(node), node.name.value
        elif isinstance(node, cst.ClassDef):
            for part in node.body.body:
                if isinstance(part, cst.FunctionDef):
                    yield id(part), f"{node.name.value}.{part.name.value}"
