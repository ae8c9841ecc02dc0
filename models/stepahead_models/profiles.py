"""Device profiles: data files in TOML, each number with its source, turned into models.

A profile names its numbers as ``{value = ..., source = "..."}``; ``inferred = true`` marks what
nobody measured. Unknown keys, missing keys and wrong types are refused with the place in the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import msgspec
from msgspec import Struct

from stepahead_models.cpu import CpuModel, CpuTerms
from stepahead_models.dma import Dma, DmaChannel
from stepahead_models.npu import DeviceModelError, NpuModel, RooflineNpu
from stepahead_models.profile_sections import (
    ChangedBatchSection,
    CpuSection,
    DmaChannels,
    DmaSection,
    LimitsSection,
    MemorySection,
    RooflineSection,
    SamplerSection,
    Sourced,
    StagedSection,
    TableSection,
    value_or_zero,
)
from stepahead_models.staged import DecodeBucket, StagedNpu, Stages
from stepahead_models.table import TableNpu, read_measurements

_PACKAGED: Final = Path(__file__).parent / "data" / "profiles"


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One device with one model on it: everything that the simulators need to know."""

    name: str
    description: str
    model_kind: str
    memory: MemorySection
    limits: LimitsSection
    sampler: SamplerSection
    changed_batch: ChangedBatchSection
    dma: DmaChannels
    npu: RooflineSection | TableSection | StagedSection
    cpu: CpuSection
    folder: str = ""

    @property
    def kind(self) -> str:
        """The kind of the device model: roofline, staged or table."""
        tag = self.npu.__struct_config__.tag
        return str(tag)

    def num_blocks(self, block_size: int) -> int:
        """Return how many KV blocks of ``block_size`` tokens the memory holds."""
        return self.memory.kv_memory_bytes.value // (
            self.memory.kv_bytes_per_token.value * block_size
        )

    def npu_model(self) -> NpuModel:
        """Build the device model.

        Raises:
            DeviceModelError: the numbers do not fit together.
        """
        section = self.npu
        if isinstance(section, RooflineSection):
            return RooflineNpu.from_rates(
                flops_per_s=section.flops_per_s.value,
                bytes_per_s=section.bytes_per_s.value,
                flops_per_token=section.flops_per_token.value,
                weights_bytes=section.weights_bytes.value,
                kv_bytes_per_token=self.memory.kv_bytes_per_token.value,
                overhead_ns=section.overhead_ns.value,
            )
        if isinstance(section, TableSection):
            return TableNpu(read_measurements(Path(self.folder) / section.csv.value))
        return StagedNpu(_stages(section, self.memory.layers.value))

    def cpu_model(self) -> CpuModel:
        """Build the host model."""
        return CpuModel(
            build=self.cpu.build.terms(),
            fill=self.cpu.fill.terms(),
            host_sampling=self.cpu.host_sampling.terms(),
            synchronisation=self.cpu.synchronisation.terms(),
            result_processing=self.cpu.result_processing.terms(),
        )

    def dma_model(self) -> Dma:
        """Build the copy engines."""
        return Dma(
            to_device=_channel(self.dma.host_to_device),
            to_host=_channel(self.dma.device_to_host),
            bytes_per_token=self.memory.kv_bytes_per_token.value,
            layers=self.memory.layers.value,
        )

    def npu_sampler(self) -> CpuTerms:
        """Return what sampling on the NPU adds to a step: a base and a term per row.

        Raises:
            DeviceModelError: the device has no sampler.
        """
        if not self.sampler.present.value:
            raise DeviceModelError(
                f"device {self.name} has no sampler; sample on the host (leave NPU sampling off)"
            )
        return CpuTerms(
            base_ns=value_or_zero(self.sampler.base_ns),
            per_row_ns=value_or_zero(self.sampler.per_row_ns),
        )

    def inferred(self) -> tuple[str, ...]:
        """Return the dotted names of all numbers that nobody measured."""
        return tuple(_inferred(self, ""))


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that ship with the package, sorted."""
    return tuple(sorted(file.stem for file in _PACKAGED.glob("*.toml")))


def load_profile(name_or_path: str | Path) -> Profile:
    """Load a profile of the package by name, or any profile by the path of its TOML file.

    Raises:
        DeviceModelError: no such profile, or the file is not one; the sentence names the place.
    """
    name = str(name_or_path)
    packaged = name in profile_names()
    if not packaged and not Path(name).is_file():
        raise DeviceModelError(
            f"device profile {name!r} is neither a file nor one of {', '.join(profile_names())}; "
            "give one of these names or the path of a TOML file"
        )
    source = _PACKAGED / f"{name}.toml" if packaged else Path(name)
    try:
        profile = msgspec.convert(tomllib.loads(source.read_text(encoding="utf-8-sig")), Profile)
    except (
        tomllib.TOMLDecodeError,
        msgspec.ValidationError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:
        raise DeviceModelError(
            f"device profile {source} is not usable: {error}; compare it with the packaged profiles"
        ) from error
    return msgspec.structs.replace(profile, folder=str(source.parent))


def _channel(section: DmaSection) -> DmaChannel:
    return DmaChannel(bytes_per_s=section.bytes_per_s.value, latency_ns=section.latency_ns.value)


def _stages(section: StagedSection, layers: int) -> Stages:
    scale = section.stage_scale.value

    def stage_ns(microseconds: float) -> int:
        return round(microseconds * 1_000 * scale)

    return Stages(
        layers=layers,
        dense_ns={int(tokens): stage_ns(us) for tokens, us in section.dense_us.value},
        fused_one_ns=round(section.fused_one_us.value * 1_000),
        fused_saving_ns=round(section.fused_saving_us.value * 1_000),
        decode=[
            DecodeBucket(
                size=bucket.size,
                group_ns=stage_ns(bucket.group_us.value),
                sequence_ns=stage_ns(bucket.sequence_us.value),
                group_rows_max=bucket.group_rows_max,
            )
            for bucket in section.decode
        ],
        decode_batches=section.decode_batches.value,
        prefill_ns={
            int(chunk): [(int(size), stage_ns(us)) for size, us in points]
            for chunk, points in section.prefill_us.value.items()
        },
        chunk_multiple=section.chunk_multiple.value,
        extend_size_min=section.extend_size_min.value,
        head_ns=[(int(rows), round(us * 1_000)) for rows, us in section.head_us.value],
    )


def _inferred(node: object, name: str) -> Iterator[str]:
    if isinstance(node, Sourced):
        if node.inferred:
            yield name
    elif isinstance(node, Struct):
        for field in node.__struct_fields__:
            yield from _inferred(getattr(node, field), f"{name}.{field}" if name else field)
    elif isinstance(node, list):
        for index, item in enumerate(cast("list[object]", node)):
            yield from _inferred(item, f"{name}[{index}]")
