"""Check the rules of this project that no linter knows.

Owns: names that say nothing, left-over markers, addresses of one machine or one registry, and the
sizes of modules and functions. A size beyond its limit is a note, beyond twice the limit a
problem: a module may outgrow the rule for a reason, but not without anybody looking.

    python tools/tidy.py        print notes and problems; exit 1 where there is a problem
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
SOURCE_ROOTS: Final = ("kernel", "models", "specs", "tests", "tools")
TOP_FILES: Final = ("*.md", "*.toml", "*.txt", "*.yaml", "Makefile", "NOTICE", ".ci/*")
TEXT_SUFFIXES: Final = frozenset(
    {"", ".cfg", ".md", ".pml", ".py", ".pyi", ".sh", ".tla", ".toml", ".txt", ".yaml", ".yml"}
)
MODULE_LINES_MAX: Final = 300
FUNCTION_LINES_MAX: Final = 50

# A file is named for a noun of the domain; these say only that something had no other place.
EMPTY_NAMES: Final = frozenset(
    {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
)

# One letter of each pattern stands in brackets, so that this file does not report itself.
LINE_RULES: Final = (
    (re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b"), "a left-over marker; do it or drop it"),
    (re.compile(r"^(?:<{7}|>{7}) "), "a merge conflict marker; resolve it"),
    (
        re.compile(r"\d[%](?![-\w\"'%(])|[.]\d[%][}]"),
        "a percent sign without a space before it; the tables and the prose have one",
    ),
    (
        re.compile(r"index[-]url|pypi[.]org/simple|pythonhosted[.]|registry[.]npmjs"),
        "the address of a registry; leave it to the user's package settings",
    ),
    (
        re.compile(r"[.]{2}/shared\b|(?<![\w./])/(?:work|root)/"),
        "a path that exists on one machine; the project must stand alone",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to look at; a problem fails the gate, a note does not."""

    path: Path
    line: int
    says: str
    problem: bool

    def __str__(self) -> str:
        kind = "problem" if self.problem else "note"
        return f"{self.path.as_posix()}:{self.line}: {kind}: {self.says}"


def tidy(project: Path) -> Iterator[Finding]:
    """Yield what is untidy in the project, in the order of its paths."""
    for path in text_files(project):
        text = (project / path).read_text(encoding="utf-8")
        yield from check_lines(path, text)
        if path.suffix == ".py":
            yield from check_name(path)
            yield from check_sizes(path, text)


def text_files(project: Path) -> list[Path]:
    """List the texts that people wrote, relative to the project, sorted."""
    found = {path for pattern in TOP_FILES for path in project.glob(pattern)}
    for root in SOURCE_ROOTS:
        paths = (project / root).rglob("*")
        found |= {path for path in paths if not _is_left_behind(path.relative_to(project))}
    return sorted(
        path.relative_to(project)
        for path in found
        if path.is_file() and path.suffix in TEXT_SUFFIXES
    )


def _is_left_behind(path: Path) -> bool:
    """Tell whether a tool wrote this file: caches and hidden folders are not ours to tidy."""
    return any(part.startswith(".") or part == "__pycache__" for part in path.parent.parts)


def check_lines(path: Path, text: str) -> Iterator[Finding]:
    """Yield each line that breaks one of the `LINE_RULES`."""
    for line, content in enumerate(text.splitlines(), start=1):
        for pattern, says in LINE_RULES:
            if pattern.search(content):
                yield Finding(path=path, line=line, says=says, problem=True)


def check_name(path: Path) -> Iterator[Finding]:
    """Yield a finding where a module has a name that says nothing."""
    if path.stem.strip("_") in EMPTY_NAMES:
        says = f"the name {path.stem} says nothing; name the file for what it holds"
        yield Finding(path=path, line=1, says=says, problem=True)


def check_sizes(path: Path, text: str) -> Iterator[Finding]:
    """Yield the module and each function that is longer than its limit, in lines.

    The lines of a docstring do not count: a rule about length must not shorten an explanation.
    """
    lines = text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield _too_long(path, 1, "the module", lines, MODULE_LINES_MAX)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _body_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield _too_long(path, node.lineno, node.name, lines, FUNCTION_LINES_MAX)


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function from its ``def`` to its end, without its docstring."""
    first = node.body[0]
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _too_long(path: Path, line: int, what: str, lines: int, lines_max: int) -> Finding:
    says = f"{what} has {lines} lines, the limit is {lines_max}"
    return Finding(path=path, line=line, says=says, problem=lines > 2 * lines_max)


def main() -> int:
    """Print every finding, and return 1 where one of them is a problem."""
    findings = list(tidy(PROJECT))
    for finding in findings:
        print(finding)
    problems = sum(finding.problem for finding in findings)
    print(f"tidy: {problems} problems, {len(findings) - problems} notes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
