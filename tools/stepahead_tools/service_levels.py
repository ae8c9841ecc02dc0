"""What a whole run must hold: percentiles of latencies, one by one or by the name of a preset.

The presets are the server and interactive limits of MLPerf Inference (``loadgen/mlperf.conf``):
TTFT and TPOT in ms at the 99th percentile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from stepahead_tools.distribution import PERCENTILES, Distribution
from stepahead_tools.errors import OptionError
from stepahead_tools.metrics import RunMetrics

_NS_PER_MS: Final = 1_000_000
_NAMES: Final = ("ttft", "tpot", "itl", "e2el", "queue")
_WORD: Final = re.compile(rf"({'|'.join(_NAMES)})_(mean|p\d+):(.+)")

#: Name -> TTFT and TPOT in ms.
PRESETS: Final = MappingProxyType(
    {
        "llama2-70b": (2000, 200),
        "llama2-70b-interactive": (450, 40),
        "llama3.1-8b": (2000, 100),
        "llama3.1-8b-interactive": (500, 30),
        "llama3.1-405b": (6000, 175),
        "llama3.1-405b-interactive": (4500, 80),
        "deepseek-r1": (2000, 80),
        "deepseek-r1-interactive": (1500, 15),
        "gpt-oss-120b": (3000, 80),
        "gpt-oss-120b-interactive": (2000, 15),
        "mixtral-8x7b": (2000, 200),
    }
)


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """A statistic of a latency and what it may be at most, ns; ``percent`` None is the mean."""

    name: str
    percent: int | None
    limit_ns: int

    def __str__(self) -> str:
        statistic = "mean" if self.percent is None else f"p{self.percent}"
        return f"{self.name}_{statistic}:{self.limit_ns / _NS_PER_MS:g}"

    def holds(self, metrics: RunMetrics) -> bool:
        """Tell whether a run holds it; one that measured nothing does not."""
        figures: Distribution | None = getattr(metrics, self.name)
        if figures is None:
            return False
        value = figures.mean_ns if self.percent is None else figures.at(self.percent)
        return value <= self.limit_ns


def service_levels(words: Sequence[str] | None) -> tuple[ServiceLevel, ...]:
    """Return the levels named by words like ``ttft_p99:500``, in ms.

    Raises:
        OptionError: a word names none.
    """
    levels: list[ServiceLevel] = []
    for word in " ".join(words or ()).replace(",", " ").split():
        found = _WORD.fullmatch(word)
        percent = None if found is None or found[2] == "mean" else int(found[2][1:])
        limit = _milliseconds(found[3]) if found is not None else math.nan
        if found is None or percent not in (None, *PERCENTILES) or not 0 < limit < math.inf:
            known = ", ".join(f"p{percent}" for percent in PERCENTILES)
            raise OptionError(
                f"--slo {word!r} is no service level; give one of {', '.join(_NAMES)}, _mean or "
                f"one of {known} with an underscore before it, a colon and milliseconds above 0, "
                "for example ttft_p99:500"
            )
        levels.append(ServiceLevel(found[1], percent, round(limit * _NS_PER_MS)))
    return tuple(levels)


def preset(name: str) -> tuple[list[str], list[str]]:
    """Return the words of a preset for ``--goodput`` and for ``--slo``.

    Raises:
        OptionError: there is no such preset.
    """
    if name not in PRESETS:
        raise OptionError(f"--preset {name!r} is not known; give one of {', '.join(PRESETS)}")
    ttft, tpot = PRESETS[name]
    return [f"ttft:{ttft}", f"tpot:{tpot}"], [f"ttft_p99:{ttft}", f"tpot_p99:{tpot}"]


def _milliseconds(words: str) -> float:
    try:
        return float(words)
    except ValueError:
        return math.nan
