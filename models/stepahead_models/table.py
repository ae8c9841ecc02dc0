"""A device known by a table of measurements, interpolated."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepahead.arrays import Ints
from stepahead_models.npu import BatchShape, DeviceModelError
from stepahead_models.traces.problems import shown


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of a table of measurements: a batch by its totals, and its device time."""

    rows: int
    tokens: int
    kv_tokens: int
    step_us: float


class TableNpu:
    """A device known by measurements, interpolated bilinearly.

    Measurements with as many tokens as rows form the decode grid, over (tokens, KV tokens before
    the batch, all rows together); all others form the prefill grid over the same two axes, which
    also serves mixed batches by their totals. Each grid must be complete. Outside a grid the line
    through the two nearest grid points goes on, and a time is at least 1 ns. A grid that has no
    line of its own borrows the other one.

    Raises:
        DeviceModelError: no measurement, a grid point missing or measured twice.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        decode = [line for line in measurements if line.tokens == line.rows]
        prefill = [line for line in measurements if line.tokens != line.rows]
        if not measurements:
            raise DeviceModelError("a table of measurements has no line; give at least one")
        self._decode = _Grid("decode", decode or prefill)
        self._prefill = _Grid("prefill", prefill or decode)

    def step_ns(self, shape: BatchShape) -> int:
        """Return how long the NPU executes one batch."""
        grid = self._decode if shape.tokens == shape.rows else self._prefill
        return grid.at(shape.tokens, int(shape.positions.sum()))

    def repeat_ns(self, positions: Ints, steps: int) -> Ints:
        """Return how long each of ``steps`` decode steps in a row takes; see `NpuModel`."""
        rows = len(positions)
        kv_tokens = int(positions.sum()) + rows * np.arange(steps, dtype=np.int64)
        return self._decode.along(rows, kv_tokens)


def read_measurements(path: Path) -> list[Measurement]:
    """Read a table of measurements: CSV with the columns rows, tokens, kv_tokens, step_us.

    ``kv_tokens`` counts the KV tokens before the batch over all rows. Lines that start with ``#``
    are comments.

    Raises:
        DeviceModelError: a column is missing or a cell is not a number; file and line are named.
    """
    wanted = ("rows", "tokens", "kv_tokens", "step_us")
    if not path.is_file():
        raise DeviceModelError(
            f"table of measurements {path} does not exist; check csv in the profile"
        )
    # Bytes that are no text spoil their own line; a byte order mark says nothing.
    content = path.read_text(encoding="utf-8-sig", errors="backslashreplace")
    numbered = enumerate(content.splitlines(), start=1)
    lines = [
        (number, text) for number, text in numbered if text.strip() and not text.startswith("#")
    ]
    columns = _cells(lines[0][1]) if lines else []
    if tuple(columns) != wanted:
        raise DeviceModelError(
            f"table of measurements {path} has the columns {shown(','.join(columns))}; "
            f"give exactly {','.join(wanted)}"
        )
    found: list[Measurement] = []
    for number, text in lines[1:]:
        try:
            rows, tokens, kv_tokens, step_us = _cells(text)
            line = Measurement(int(rows), int(tokens), int(kv_tokens), float(step_us))
        except ValueError:
            line = Measurement(0, 0, 0, 0.0)
        if not (
            1 <= line.rows <= line.tokens
            and line.kv_tokens >= 0
            and 0 < line.step_us < _STEP_US_MAX
        ):
            raise DeviceModelError(
                f"{path}, line {number}: {shown(text)!r} is not a measurement; give whole numbers "
                "1 <= rows <= tokens, kv_tokens >= 0, and step_us above 0"
            )
        found.append(line)
    return found


def _cells(text: str) -> list[str]:
    """Split a line; numbers need no quotes, but a spreadsheet may have put them."""
    cells = [cell.strip() for cell in text.split(",")]
    return [cell[1:-1] if re.fullmatch(r'"[^"]*"', cell) else cell for cell in cells]


#: About 12 days; also refuses "inf" and "nan".
_STEP_US_MAX: Final = 1e12


class _Grid:
    """A complete grid of step times in ns over (tokens, KV tokens)."""

    def __init__(self, name: str, lines: Sequence[Measurement]) -> None:
        self.tokens = sorted({line.tokens for line in lines})
        self.kv_tokens = sorted({line.kv_tokens for line in lines})
        cells: dict[tuple[int, int], float] = {}
        for line in lines:
            key = (line.tokens, line.kv_tokens)
            if key in cells:
                raise DeviceModelError(
                    f"the {name} measurements hold tokens={key[0]}, kv_tokens={key[1]} twice; "
                    "keep one"
                )
            cells[key] = line.step_us * 1_000.0
        for tokens in self.tokens:
            for kv_tokens in self.kv_tokens:
                if (tokens, kv_tokens) not in cells:
                    raise DeviceModelError(
                        f"the {name} measurements lack tokens={tokens}, kv_tokens={kv_tokens}; "
                        "measure that point or leave its row or column out"
                    )
        self._values = [[cells[t, k] for k in self.kv_tokens] for t in self.tokens]
        self._kv = np.array(self.kv_tokens, dtype=np.int64)
        self._columns: dict[int, tuple[list[float], NDArray[np.float64]]] = {}

    def at(self, tokens: int, kv_tokens: int) -> int:
        """Interpolate one point."""
        column, _ = self._column(tokens)
        if len(column) == 1:
            return max(1, round(column[0]))
        low = _segment(self.kv_tokens, kv_tokens)
        return max(1, round(_line(self.kv_tokens, column, low, kv_tokens)))

    def along(self, tokens: int, kv_tokens: Ints) -> Ints:
        """Interpolate many KV lengths at one token count, operation by operation as `at` does."""
        column, values = self._column(tokens)
        if len(column) == 1:
            return np.full(len(kv_tokens), max(1, round(column[0])), dtype=np.int64)
        low = np.clip(np.searchsorted(self._kv, kv_tokens, side="right") - 1, 0, len(column) - 2)
        share = (kv_tokens - self._kv[low]) / (self._kv[low + 1] - self._kv[low])
        times = np.rint(values[low] + (values[low + 1] - values[low]) * share)
        return np.maximum(times.astype(np.int64), 1)

    def _column(self, tokens: int) -> tuple[list[float], NDArray[np.float64]]:
        known = self._columns.get(tokens)
        if known is None:
            if len(self.tokens) == 1:
                column = self._values[0]
            else:
                low = _segment(self.tokens, tokens)
                columns = zip(*self._values, strict=True)
                column = [_line(self.tokens, values, low, tokens) for values in columns]
            known = self._columns[tokens] = (column, np.array(column, dtype=np.float64))
        return known


def _segment(edges: Sequence[int], value: int) -> int:
    """Return the index of the left end of the segment that holds ``value`` or lies nearest."""
    return min(max(bisect_right(edges, value) - 1, 0), len(edges) - 2)


def _line(edges: Sequence[int], values: Sequence[float], low: int, value: int) -> float:
    share = (value - edges[low]) / (edges[low + 1] - edges[low])
    return values[low] + (values[low + 1] - values[low]) * share
