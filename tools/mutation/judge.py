"""One mutant alive in a process of its own, and whoever may notice it, one after the other."""

from __future__ import annotations
import __future__

import json
import os
import resource
import select
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Final

from mutation.changes import Change
from mutation.killers import Killer, cpu_seconds
from stepahead.tables import (
    BATCH,
    BATCH_ROWS,
    REQUEST,
    REQUEST_ROWS,
    BatchState,
    BatchTrigger,
    RequestState,
    RequestTrigger,
)
from stepahead_specs.mutants.patching import find

#: CPU time after which somebody who takes so much longer than without a mutant counts as hanging.
_PATIENCE_S: Final = 2.0
_PATIENCE_TIMES: Final = 8
#: Wall time after which a mutant hangs that needs no CPU, s.
_ASLEEP_S: Final = 600
_MEMORY: Final = 6 << 30


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    ``how`` is "noticed", "hangs" (whoever ran it did not come to its end), "crash" (its process
    died), "survives", "unseen" (nobody runs the lines) or "no program". ``killer`` is who noticed,
    ``tried`` how many ran, of so many who run its lines, ``seconds`` their CPU time.
    """

    how: str
    killer: str
    tried: int
    among: int
    seconds: float


def plant(change: Change) -> None:
    """Give the function of the kernel the code of the mutant, and its defaults.

    Raises:
        SyntaxError: the mutant is no program.
    """
    function = find(change.place)
    flags = __future__.annotations.compiler_flag
    code = compile(change.after, f"<mutant of {change.place}>", "exec", flags, dont_inherit=True)
    names = dict(function.__globals__)
    exec(code, names)  # noqa: S102 - the kernel's own source, changed in one place
    mutant = names[function.__name__]
    if not isinstance(mutant, FunctionType):
        raise SyntaxError(f"{change.place} is no function any more")  # noqa: TRY004 - of the source
    function.__code__ = mutant.__code__
    function.__defaults__ = mutant.__defaults__
    function.__kwdefaults__ = mutant.__kwdefaults__
    if at_import(change):
        # The tables were made at import, so they are made once more, in place.
        REQUEST.__init__("request", RequestState, RequestTrigger, REQUEST_ROWS)  # type: ignore[misc]
        BATCH.__init__("batch", BatchState, BatchTrigger, BATCH_ROWS)  # type: ignore[misc]


def at_import(change: Change) -> bool:
    """Tell whether the function runs at import, where nobody who may notice is seen running it."""
    return change.place in ("StateTable.__init__", "StateTable._column")


def judge(change: Change, killers: Sequence[Killer], budget: float) -> Verdict:
    """Let the mutant live among ``killers``, in order, for so many CPU seconds."""
    if not killers:
        return Verdict("unseen", "", 0, 0, 0.0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _live(change, killers, budget, writer)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], _ASLEEP_S)
    said = os.read(reader, 1 << 16) if ready else b""
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, _, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if not said:
        return Verdict("crash" if ready else "hangs", "", 1, len(killers), seconds)
    told: dict[str, str | int] = json.loads(said)
    number = int(told["tried"])
    killer = killers[number - 1].name if number and told["how"] != "survives" else ""
    return Verdict(str(told["how"]), killer, number, len(killers), seconds)


def _live(change: Change, killers: Sequence[Killer], budget: float, writer: int) -> None:
    """Tell the parent how it ended; does not return."""
    tried = 0

    def tell(how: str) -> None:
        os.write(writer, json.dumps({"how": how, "tried": tried}).encode())
        os._exit(0)

    def over(_number: int, _frame: FrameType | None) -> None:
        tell("hangs")

    _silence()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGVTALRM, over)
    try:
        plant(change)
    except SyntaxError:
        tell("no program")
    except Exception:  # noqa: BLE001 - the kernel cannot be imported any more
        tell("crash")
    began = cpu_seconds()
    for tried, killer in enumerate(killers, start=1):  # noqa: B007 - `tell` reads it
        signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE_S + _PATIENCE_TIMES * killer.seconds)
        try:
            noticed = killer.notices()
        except BaseException:  # noqa: BLE001 - nothing was raised without the mutant
            noticed = True
        if noticed:
            tell("noticed")
        if cpu_seconds() - began > budget:
            break
    tell("survives")


def _silence() -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(sink, stream)
