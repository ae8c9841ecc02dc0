"""The tables of a device profile file, as msgspec decodes them strictly."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from stepahead_models.cpu import CpuTerms

T = TypeVar("T")
# The upper limits (a petabyte, 11 days) are far beyond any machine, and keep sums within 64 bits.
Count = Annotated[int, Meta(ge=1, le=10**15)]
Nanoseconds = Annotated[int, Meta(ge=0, le=10**15)]
Positive = Annotated[float, Meta(gt=0, le=1e24)]
Micros = Annotated[float, Meta(ge=0, le=1e12)]
Point = tuple[float, Micros]


class Sourced(Struct, Generic[T], frozen=True, forbid_unknown_fields=True):
    """A number of a profile and where it comes from; ``inferred`` if nobody measured it."""

    value: T
    source: Annotated[str, Meta(min_length=1)]
    inferred: bool = False


class MemorySection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """KV memory in bytes, and over how many layers a token's KV is spread."""

    layers: Sourced[Count]
    kv_bytes_per_token: Sourced[Count]
    kv_memory_bytes: Sourced[Count]


class LimitsSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the compiled model takes at most."""

    max_tokens_per_row: Sourced[Count]
    max_concurrency: Sourced[Count]
    max_model_len: Sourced[Count]


class SamplerSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampling on the NPU: whether there is a sampler, and what it adds to a step."""

    present: Sourced[bool]
    base_ns: Sourced[Nanoseconds] | None = None
    per_row_ns: Sourced[Nanoseconds] | None = None


class ChangedBatchSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether a prepared batch may be changed before its dispatch, and what that costs the CPU."""

    allowed: Sourced[bool]
    base_ns: Sourced[Nanoseconds] | None = None
    per_row_ns: Sourced[Nanoseconds] | None = None

    def terms(self) -> CpuTerms:
        """Return what it costs the host, beside filling."""
        return CpuTerms(
            base_ns=value_or_zero(self.base_ns), per_row_ns=value_or_zero(self.per_row_ns)
        )

    def free(self) -> bool:
        """Tell whether a batch may be changed, at no cost."""
        return self.allowed.value and self.terms() == CpuTerms()


class DmaSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One direction between host and device memory."""

    bytes_per_s: Sourced[Positive]
    latency_ns: Sourced[Nanoseconds]

    def transfer_ns(self, size_bytes: int) -> int:
        """Return the time of one transfer, latency included."""
        return self.latency_ns.value + round(size_bytes * 1_000_000_000 / self.bytes_per_s.value)


class SubmitSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the host pays to set one copy up: a call, and a descriptor per KV block."""

    base_ns: Sourced[Nanoseconds] | None = None
    per_block_ns: Sourced[Nanoseconds] | None = None


class DmaChannels(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Both directions, which run side by side; without ``submit`` the host sets up for nothing."""

    host_to_device: DmaSection
    device_to_host: DmaSection
    submit: SubmitSection | None = None

    def submit_terms(self) -> CpuTerms:
        """Return what setting a copy up costs the host."""
        if self.submit is None:
            return CpuTerms()
        return CpuTerms(
            base_ns=value_or_zero(self.submit.base_ns),
            per_block_ns=value_or_zero(self.submit.per_block_ns),
        )


class TermsSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cost of one host job; an absent term is 0."""

    base_ns: Sourced[Nanoseconds] | None = None
    per_row_ns: Sourced[Nanoseconds] | None = None
    per_token_ns: Sourced[Nanoseconds] | None = None
    per_block_ns: Sourced[Nanoseconds] | None = None

    def terms(self) -> CpuTerms:
        """Return the plain numbers."""
        return CpuTerms(
            base_ns=value_or_zero(self.base_ns),
            per_row_ns=value_or_zero(self.per_row_ns),
            per_token_ns=value_or_zero(self.per_token_ns),
            per_block_ns=value_or_zero(self.per_block_ns),
        )


class CpuSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The five host jobs of `stepahead_models.cpu.CpuModel`."""

    build: TermsSection
    fill: TermsSection
    host_sampling: TermsSection
    synchronisation: TermsSection
    result_processing: TermsSection


class RooflineSection(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="roofline"
):
    """See `stepahead_models.npu.RooflineNpu`."""

    flops_per_s: Sourced[Positive]
    bytes_per_s: Sourced[Positive]
    flops_per_token: Sourced[Positive]
    weights_bytes: Sourced[Count]
    overhead_ns: Sourced[Nanoseconds]


class TableSection(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="table"
):
    """A CSV file beside the profile with the columns rows, tokens, kv_tokens, step_us."""

    csv: Sourced[str]


class DecodeSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Decode attention of one KV bucket, per layer."""

    size: Count
    group_us: Sourced[Positive]
    sequence_us: Sourced[Positive]
    group_rows_max: Count


class StagedSection(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="staged"
):
    """See `stepahead_models.staged.Stages`; times in microseconds per layer, the head per step."""

    stage_scale: Sourced[Positive]
    dense_us: Sourced[list[Point]]
    fused_one_us: Sourced[Micros]
    fused_saving_us: Sourced[Micros]
    decode_batches: Sourced[Annotated[list[Count], Meta(min_length=1)]]
    decode: list[DecodeSection]
    chunk_multiple: Sourced[Count]
    extend_size_min: Sourced[Count]
    prefill_us: Sourced[dict[str, list[Point]]]
    head_us: Sourced[list[Point]]


def value_or_zero(number: Sourced[int] | None) -> int:
    """Return a number that may be left out of a profile."""
    return 0 if number is None else number.value
