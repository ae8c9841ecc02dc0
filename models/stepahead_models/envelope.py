"""Measured envelopes: operating points of a real device, and the lengths of their load."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from stepahead.arrays import Ints
from stepahead_models.npu import DeviceModelError

Rate = Annotated[float, Meta(gt=0)]

_PACKAGED: Final = Path(__file__).parent / "data" / "measured"

# Steps of golden-ratio kind: multiples modulo 1 cover the unit square evenly and never repeat (the
# first two of the R3 sequence, M. Roberts 2018).
_STEP_1: Final = 0.8191725133961645
_STEP_2: Final = 0.6710436067037893


class EnvelopeRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One measured operating point of a closed loop.

    Args:
        concurrency: requests at work on average.
        requested: clients of the closed loop.
        requests: how many requests the run had.
        tokens_per_s: output tokens per second.
        tpot_ms: time per output token.
        idle_ms: device idle per step, an inference from its utilisation; not used in the fit.
        fitted: whether the fit may use the row.
    """

    concurrency: Rate
    requested: Annotated[int, Meta(ge=1)]
    requests: Annotated[int, Meta(ge=1)]
    tokens_per_s: Rate
    tpot_ms: Rate
    idle_ms: float | None = None
    fitted: bool = False


class Lengths(Struct, frozen=True, forbid_unknown_fields=True):
    """Quantiles of prompt and output lengths at equal steps from 0 to 100 %, in tokens."""

    source: str
    prompt: Annotated[list[int], Meta(min_length=2)]
    output: Annotated[list[int], Meta(min_length=2)]

    def workload(self, requests: int) -> tuple[Ints, Ints]:
        """Return prompt and output lengths of a workload that has these quantiles.

        The same for every call: golden-ratio steps through both distributions, so that any prefix
        of the workload is spread evenly over them.

        Returns:
            Prompt lengths and output lengths; both of shape ``(requests,)``.
        """
        index = np.arange(requests, dtype=np.float64)
        return (
            _quantile(self.prompt, np.mod(0.5 + index * _STEP_1, 1.0)),
            _quantile(self.output, np.mod(0.5 + index * _STEP_2, 1.0)),
        )


class Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """A measured envelope and where it comes from."""

    name: str
    profile: str
    source: str
    rows: list[EnvelopeRow]
    lengths: Lengths


def load_envelope(name: str) -> Envelope:
    """Load a measured envelope that ships with the package.

    Raises:
        DeviceModelError: there is none of that name.
    """
    if name not in (names := sorted(file.stem for file in _PACKAGED.glob("*.toml"))):
        raise DeviceModelError(
            f"there is no measured envelope {name!r}; give one of {', '.join(names)}"
        )
    text = (_PACKAGED / f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Envelope)


def _quantile(quantiles: Sequence[int], share: NDArray[np.float64]) -> Ints:
    grid = np.linspace(0.0, 1.0, len(quantiles))
    return np.rint(np.interp(share, grid, quantiles)).astype(np.int64)
