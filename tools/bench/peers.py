"""Rivals side by side where they are installed; where not, that is said and none is compared.

Our own compiled build is one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from bench import replays
from stepahead_tools.errors import OptionError

_SCRIPT: Final = Path(__file__).with_name("vllm_steps.py")
_DYNAMO: Final = Path(__file__).with_name("dynamo_replay.py")


class DynamoReplay:
    """Replays traces with Dynamo's mocker in processes of another interpreter.

    Args:
        interpreter: one that may have Dynamo; this one when None.
    """

    def __init__(self, interpreter: str | None) -> None:
        self._interpreter: Final = interpreter or sys.executable
        told = subprocess.run(
            [self._interpreter, str(_DYNAMO)], capture_output=True, text=True, check=False
        )
        #: Name and version, or None where Dynamo is not installed.
        self.version: Final = told.stdout.strip() or None

    def replay(self, trace: Path) -> replays.Process | None:
        """Replay a Mooncake trace with the measured settings; None without Dynamo."""
        if self.version is None:
            return None
        limits = (
            replays.NUM_BLOCKS, replays.BLOCK_SIZE, replays.BATCHED_TOKENS, replays.CONCURRENCY
        )  # fmt: skip
        command = (str(_DYNAMO), str(trace), replays.SPEED, *limits)
        return replays.measured(command, self._interpreter)


class CompiledBuild:
    """Does the same as this build in processes of an interpreter that has the compiled one.

    Args:
        interpreter: one that has it; None: there is nothing to compare.

    Raises:
        OptionError: the interpreter has not.
    """

    def __init__(self, interpreter: str | None) -> None:
        self._interpreter: Final = interpreter
        #: Without what may lead to the sources, which are not compiled.
        self._environment: Final = {
            name: value for name, value in os.environ.items() if name != "PYTHONPATH"
        }
        #: Name and version, or None where there is nothing to compare.
        self.version: Final = self._told("-m", "stepahead_tools", "--version")
        if self.version is not None and not self.version.endswith("(compiled)"):
            raise OptionError(
                f"--compiled {interpreter} has {self.version}; `make compiled` makes one that has "
                "the compiled build"
            )

    def replay(self, trace: Path, loop: str) -> replays.Process | None:
        """Replay a Mooncake trace as `replays.replay` does, unchecked."""
        if self._interpreter is None:
            return None
        words = replays.command(trace, loop, "--unchecked")
        return replays.measured(words, self._interpreter, self._environment)

    def step_us(self, measure: str) -> float | None:
        """Return what a call of `bench.steps` says, such as "step_us(8)", in microseconds."""
        told = self._told("-c", f"from bench import steps; print(steps.{measure})")
        return None if told is None else float(told)

    def _told(self, *words: str) -> str | None:
        if self._interpreter is None:
            return None
        path = {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [self._interpreter, *words],
            env=self._environment | path,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OptionError(f"--compiled {self._interpreter} failed: {done.stderr.strip()}")
        return done.stdout.strip()


class VllmSteps:
    """Measures steps of vLLM's scheduler in a process of another interpreter.

    Args:
        interpreter: one that may have vLLM; this one when None.
    """

    def __init__(self, interpreter: str | None) -> None:
        self._process: Final = subprocess.Popen(
            [interpreter or sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        #: Name and version, or None where vLLM is not installed.
        self.version: Final = self._answers.readline().strip() or None

    def step_us(self, rows: int) -> float | None:
        """Return the CPU time of a decode step in microseconds, or None without vLLM."""
        if self.version is None:
            return None
        self._questions.write(f"{rows}\n")
        self._questions.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(
                f"{self.version} gave no answer for {rows} rows; run {_SCRIPT.name} by hand"
            )
        return float(answer)

    @property
    def _questions(self) -> IO[str]:
        return _pipe(self._process.stdin)

    @property
    def _answers(self) -> IO[str]:
        return _pipe(self._process.stdout)

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._questions.close()
        self._process.wait()
        self._answers.close()


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the process was started without pipes")
    return stream
