"""Reads a command line: argparse, told of the options that the commands declare.

Help and mistakes end the process, as they do in argparse; a mistake is told in one sentence.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import partial
from typing import Any, Final, NoReturn, get_args, get_type_hints

from stepahead_tools.commands import COMMANDS, Command
from stepahead_tools.declared import Argument, Declared
from stepahead_tools.help_text import Help, explained, placeholder, summary, usage
from stepahead_tools.names import hint

_NOT_USABLE: Final = 2
_PLACES: Final = "Arguments"
_FLAGS: Final = "Options"
_HELP: Final[dict[str, Any]] = {"action": "help", "help": "Show this message and exit."}
_SPREAD: Final = {
    "--goodput": re.compile(r"(?:ttft|tpot|e2el):"),
    "--slo": re.compile(r"(?:ttft|tpot|itl|e2el|queue)_\w+:"),
}


def read(words: Sequence[str]) -> tuple[Command, Any]:
    """Return the command that the words ask for, and its options."""
    name = words[0] if words else ""
    if name not in COMMANDS:
        _tell_commands(words)
    command = COMMANDS[name]
    parser = _Parser(f"stepahead {name}", command.run.__doc__)
    actions = _declare(parser, command)
    several = any(action.nargs == "*" for action in actions)
    parse = parser.parse_known_intermixed_args if several else parser.parse_known_args
    chosen, rest = parse(spread_objectives(words[1:]))
    places = words[[*words, "--"].index("--") :]
    for word in rest:
        if word == "--":
            continue  # as good as nothing
        if word == "-" or not word.startswith("-") or word in places:
            parser.error(f"{word} is one word too many; {parser.format_usage().strip()}")
        flags = [flag for action in actions for flag in action.option_strings]
        near = hint(word.partition("=")[0], flags) or f"; see {parser.prog} --help"
        parser.error(f"{word} is no option of {name}{near}")
    return command, command.options()(**vars(chosen))


def spread_objectives(words: Iterable[str]) -> list[str]:
    """Let one ``--goodput`` or ``--slo`` take several words, as serving benchmarks write them."""
    spread: list[str] = []
    inside = ""
    for word in words:
        fits = inside != "" and _SPREAD[inside].match(word) is not None
        if fits and spread[-1] != inside:
            spread.append(inside)
        inside = word if word in _SPREAD else inside if fits else ""
        spread.append(word)
    return spread


class _Parser(argparse.ArgumentParser):
    """Takes whole names only, and returns only what was given."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=Help,
            argument_default=argparse.SUPPRESS,
            add_help=False,  # its place is at the end
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Say in one sentence what is wrong, and exit."""
        sentence = re.sub(r"^argument (\S+):", r"\1", message)
        self.exit(_NOT_USABLE, f"stepahead: {sentence}\n")


class _YesOrNo(argparse.Action):
    """Takes flags for yes, and those in ``const`` for no."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 # what argparse hands over
        namespace: argparse.Namespace,
        values: object,  # noqa: ARG002 # as above
        option_string: str | None = None,
    ) -> None:
        """Note which it was."""
        setattr(namespace, self.dest, option_string not in self.const)


class _Version(argparse.Action):
    """Prints the version, and exits; what it takes to know it is imported only then."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 # what argparse hands over
        values: object,  # noqa: ARG002 # as above
        option_string: str | None = None,  # noqa: ARG002 # as above
    ) -> None:
        """Print it."""
        from stepahead_tools.version import described  # noqa: PLC0415 # see above

        sys.stdout.write(f"{described()}\n")
        parser.exit()


def _tell_commands(words: Sequence[str]) -> NoReturn:
    """Print what commands there are, or that the first word is none of them."""
    about = "Replay request traces under eager and overlap scheduling, in simulated time."
    parser = _Parser("stepahead", about)
    if words and not words[0].startswith("-"):
        parser.error(f"{words[0]} is no command; {_offered(words[0], list(COMMANDS))}")
    parser.usage = "%(prog)s COMMAND [OPTIONS]"
    flags = parser.add_argument_group(_FLAGS)
    told = "Show the version, and whether it is the compiled build, and exit."
    flags.add_argument("--version", action=_Version, nargs=0, help=told)
    flags.add_argument("-h", "--help", **_HELP)
    listed = parser.add_argument_group("Commands")
    for name, command in COMMANDS.items():
        listed.add_argument(name, nargs="?", help=summary(command.run.__doc__))
    parser.parse_args(words[:1])
    parser.print_help(sys.stderr)
    parser.exit(_NOT_USABLE)


def _declare(parser: _Parser, command: Command) -> list[argparse.Action]:
    """Add the options of a command, in their groups, and return them."""
    options, unlisted = command.options(), command.unlisted_fields()
    hints = get_type_hints(options, include_extras=True)
    groups = {_PLACES: parser.add_argument_group(_PLACES)}
    actions: list[argparse.Action] = []
    for field in fields(options):
        hinted, declared = get_args(hints[field.name])
        title = _PLACES if isinstance(declared, Argument) else declared.group or _FLAGS
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        names, details = _argument(field.name, field.default, hinted, declared)
        if field.name in unlisted:
            details["help"] = argparse.SUPPRESS
        actions.append(groups[title].add_argument(*names, **details))
    parser.usage = usage(actions)
    last = groups[_FLAGS] if _FLAGS in groups else parser.add_argument_group(_FLAGS)
    return [*actions, last.add_argument("-h", "--help", **_HELP)]


def _argument(
    name: str,
    default: object,
    hinted: Any,  # noqa: ANN401 # a type, or one and None
    declared: Declared,
) -> tuple[Sequence[str], dict[str, Any]]:
    """Return the flags of a field, and all else that argparse is to know of it."""
    kind, *_ = get_args(hinted) or (hinted,)  # None comes last, and beside every list
    is_place = isinstance(declared, Argument)
    details: dict[str, Any] = {
        "dest": name,
        "help": explained(declared, default),
        "metavar": declared.metavar or (name.upper() if is_place else placeholder(kind)),
    }
    if kind not in {bool, list[str]}:
        details["type"] = partial(_converted, kind)
    if is_place:
        details["nargs"] = None if default is MISSING else "*" if kind == list[str] else "?"
        return (), details
    spelled = declared.flags or (f"--{name.replace('_', '-')}",)
    yes_or_no = [flags.split("/") for flags in spelled]
    if kind is bool:
        no = [flag for _, *flags in yes_or_no for flag in flags]
        details |= {"action": _YesOrNo, "nargs": 0, "const": no}
    elif kind == list[str]:
        details["action"] = "append"
    return [flag for flags in yes_or_no for flag in flags], details


def _converted(kind: type, word: str) -> Any:  # noqa: ANN401 # of that type
    """Return what a word stands for."""
    try:
        return kind(word)
    except ValueError:
        if issubclass(kind, StrEnum):
            fault = f"no choice; {_offered(word, [*kind])}"
        else:
            fault = "no whole number" if kind is int else "no number"
    raise argparse.ArgumentTypeError(f"{word} is {fault}")


def _offered(word: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that refuses a word."""
    return f"give one of {', '.join(names)}{hint(word, names)}"
