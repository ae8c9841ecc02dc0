"""What a benchmark needs of the machine: its name, CPU time, and a loop that says how fast it is.

Times are CPU times of one thread, because the machines that run this are shared. They are compared
within one run only: what is printed are ratios, medians over paired runs.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

_CALIBRATION_ROUNDS: Final = 2000
_NS_PER_US: Final = 1000


def describe() -> dict[str, str | int | float]:
    """Return what identifies the machine and its load in a result."""
    load = os.getloadavg()[0]
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "load_average": round(load, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def cpu_us(work: Callable[[], object]) -> float:
    """Return the CPU time of one call in microseconds."""
    started = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - started) / _NS_PER_US


def calibration_us() -> float:
    """Return the CPU time of one turn of a fixed loop of small NumPy calls, in microseconds.

    Where a rival is not installed, costs are given as multiples of this: one gather, one addition,
    one comparison, one count and one scatter over 64 integers.
    """
    column, rows = np.zeros(1024, dtype=np.int64), np.arange(0, 512, 8)

    def loop() -> None:
        for _ in range(_CALIBRATION_ROUNDS):
            values = column[rows] + 1
            np.count_nonzero(values > 0)
            column[rows] = values

    return min(cpu_us(loop) for _ in range(5)) / _CALIBRATION_ROUNDS


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
