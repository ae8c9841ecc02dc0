"""What the host thread pays per batch: build, fill, sampling, synchronisation, result processing.

Each job costs a base plus terms per row, per token and per new KV block, in integer nanoseconds.
A scale (`--cpu-scale`) multiplies each total once and rounds half to even, so that scaled and
unscaled runs differ by the scale alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Final

from stepahead_models.npu import BatchShape, DeviceModelError

_UNSCALED: Final = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTerms:
    """Cost of one job of the host; all four in nanoseconds, none negative."""

    base_ns: int = 0
    per_row_ns: int = 0
    per_token_ns: int = 0
    per_block_ns: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise DeviceModelError(
                    f"CPU cost {field.name}={getattr(self, field.name)} is negative; give 0 or more"
                )

    def total_ns(self, rows: int, tokens: int = 0, blocks: int = 0) -> int:
        """Return the unscaled cost of a job over that many rows, tokens and new blocks."""
        return (
            self.base_ns
            + self.per_row_ns * rows
            + self.per_token_ns * tokens
            + self.per_block_ns * blocks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuModel:
    """The host's jobs around one batch.

    Args:
        build: input buffers and actions of a prepared batch.
        fill: writing the sampled tokens into a prepared batch and dispatching it.
        host_sampling: drawing the next tokens on the host, per sampled position.
        synchronisation: learning that the NPU is done and reading its output; also paid when the
            NPU samples.
        result_processing: applying a batch's tokens and sending them out, per sampling row, and per
            token that goes out.
        scale: factor on every total.
    """

    build: CpuTerms = CpuTerms()
    fill: CpuTerms = CpuTerms()
    host_sampling: CpuTerms = CpuTerms()
    synchronisation: CpuTerms = CpuTerms()
    result_processing: CpuTerms = CpuTerms()
    scale: Fraction = _UNSCALED

    @classmethod
    def zero(cls) -> CpuModel:
        """Return a host that costs nothing."""
        return cls()

    def scaled(self, factor: float | str | Fraction) -> CpuModel:
        """Return this model with every total multiplied by ``factor`` more.

        A float counts as the decimal that it prints as: 0.1 is one tenth.

        Raises:
            DeviceModelError: the factor is negative or not a finite number.
        """
        try:
            exact = factor if isinstance(factor, Fraction) else Fraction(str(factor))
        except (ValueError, ZeroDivisionError):
            exact = Fraction(-1)
        if exact < 0:
            raise DeviceModelError(f"CPU scale {factor} is not usable; give a finite number >= 0")
        scale = self.scale * exact
        return replace(self, scale=_UNSCALED if scale == 1 else scale)

    def build_ns(self, shape: BatchShape) -> int:
        """Return the time to build the input buffers of a batch."""
        return self.build_like_ns(shape.rows, shape.tokens, shape.new_blocks)

    def build_like_ns(self, rows: int, tokens: int, new_blocks: int) -> int:
        """Return `build_ns` of a batch of that size without making its shape."""
        return self.scaled_ns(self.build.total_ns(rows, tokens, new_blocks))

    def fill_ns(self, rows: int) -> int:
        """Return the time to fill and dispatch a prepared batch of ``rows`` rows."""
        return self.scaled_ns(self.fill.total_ns(rows, rows))

    def sampling_ns(self, samples: int) -> int:
        """Return the time to draw so many tokens on the host; without any nothing runs."""
        if not samples:
            return 0
        return self.scaled_ns(self.host_sampling.total_ns(samples, samples))

    def synchronisation_ns(self, rows: int) -> int:
        """Return the time to learn that a batch of ``rows`` rows has been executed."""
        return self.scaled_ns(self.synchronisation.total_ns(rows, rows))

    def processing_ns(self, sampling_rows: int, tokens: int = -1) -> int:
        """Return the time to apply and publish the tokens of a batch, one per row if left at -1."""
        if tokens < 0:
            tokens = sampling_rows
        return self.scaled_ns(self.result_processing.total_ns(sampling_rows, tokens))

    @property
    def is_scaled(self) -> bool:
        """Tell whether scaled and unscaled costs may differ."""
        return self.scale is not _UNSCALED  # a comparison of fractions is slow

    def scaled_ns(self, total_ns: int) -> int:
        """Return the cost of a job whose unscaled cost is ``total_ns``."""
        return round(total_ns * self.scale) if self.is_scaled else total_ns
