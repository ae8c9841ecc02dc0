"""What a replay costs as a whole process: start-up, CPU time by length of the trace, memory.

Each replay is one run of the command line in a process of its own, with the trace read, all metrics
computed and the result written, so that nothing is left out. Modules are compiled beforehand, as
those of an installed package are, also where Python is told to write no bytecode.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from stepahead_models.traces import bundled_trace

_KIB: Final = 1024
#: The measured load: 16-token blocks x 65,536, 8,192 tokens and 256 rows per batch, half the rate.
SPEED, NUM_BLOCKS, BLOCK_SIZE, BATCHED_TOKENS, CONCURRENCY = "0.5", "65536", "16", "8192", "256"
SETTINGS: Final = (
    "--device", "fast", "--speed", SPEED, "--num-blocks", NUM_BLOCKS, "--block-size", BLOCK_SIZE,
    "--max-num-batched-tokens", BATCHED_TOKENS, "--max-concurrency", CONCURRENCY,
)  # fmt: skip
_FEW: Final = ("--limit", "20")
_PLAIN: Final = (
    "import sys; sys.modules['stepahead._fast'] = None; "
    "from stepahead_tools.entry import main; sys.exit(main())"
)
LOOPS: Final = ("eager", "overlap", "just-in-time")


@dataclass(frozen=True, slots=True)
class Process:
    """What a process has used: CPU seconds (user and system) and the most memory, in bytes."""

    cpu_s: float
    memory: int


def measured(
    arguments: Sequence[str],
    interpreter: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Process:
    """Run an interpreter, this one by default, with ``arguments`` and return what it used.

    Raises:
        RuntimeError: it failed.
    """
    if interpreter is None:
        folder = _bytecode()
        return _spawned(sys.executable, arguments, _keeping_bytecode(folder.name))
    return _spawned(interpreter, arguments, environment)


@cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with the bytecode of what a replay imports; it goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="stepahead-bench-")
    _spawned(
        sys.executable, command(bundled_trace(), "eager", *_FEW), _keeping_bytecode(folder.name)
    )
    return folder


def _keeping_bytecode(folder: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": folder}


def _spawned(interpreter: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
    child = os.posix_spawn(
        interpreter,
        [interpreter, *arguments],
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    if status:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {status}")
    return Process(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * _KIB)


def command(trace: Path, loop: str, *more: str) -> tuple[str, ...]:
    """Return the words that replay a trace with the measured settings, behind an interpreter."""
    words = ("-m", "stepahead_tools", "replay", str(trace), "--loop", loop, *SETTINGS)
    return (*words, "--json", os.devnull, *more)


def replay(trace: Path, loop: str, *more: str) -> Process:
    """Replay a trace under one loop in a process of its own."""
    return measured(command(trace, loop, *more))


def replay_plain(trace: Path, loop: str, *more: str) -> Process:
    """Replay a trace without the module `stepahead._fast`, as if it had not been built."""
    _, _, *words = command(trace, loop, *more)
    return measured(("-c", _PLAIN, *words))


def import_kernel() -> Process:
    """Start Python and import the kernel."""
    return measured(("-c", "import stepahead"))


def start_command() -> Process:
    """Start the command line and let it replay a few requests."""
    return replay(bundled_trace(), "eager", *_FEW)


def repeated(trace: Path, requests: int, target: Path) -> Path:
    """Write a Mooncake trace of ``requests`` requests: the given one, over and over, in time.

    The content of each repetition is new, as its hash ids are, so that the cache helps as before.
    """
    if trace.suffix == ".zst":
        from zstandard import ZstdDecompressor  # noqa: PLC0415 # only for such a trace

        with trace.open("rb") as file:
            text = ZstdDecompressor().stream_reader(file).read().decode()
    else:
        text = trace.read_text(encoding="utf-8")
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    span = lines[-1]["timestamp"] + lines[-1]["timestamp"] // len(lines)
    ids = 1 + max(max(line["hash_ids"]) for line in lines)
    with target.open("wb") as out:
        for number in range(requests):
            turn, place = divmod(number, len(lines))
            line = lines[place]
            again = {
                **line,
                "timestamp": line["timestamp"] + turn * span,
                "hash_ids": [ident + turn * ids for ident in line["hash_ids"]],
            }
            out.write(msgspec.json.encode(again) + b"\n")
    return target
