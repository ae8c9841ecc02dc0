"""Profiles: packaged ones load and mean what they say, and a bad file is refused by place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from stepahead_models.npu import BatchShape, DeviceModelError
from stepahead_models.profile_sections import Sourced
from stepahead_models.profiles import Profile, load_profile, profile_names
from stepahead_models.table import Measurement, read_measurements

PACKAGED = Path(__file__).parents[2] / "models" / "stepahead_models" / "data" / "profiles"
RNGD = "rngd-llama-3.1-8b"


def _decode(rows: int, kv_tokens: int) -> BatchShape:
    positions = np.full(rows, kv_tokens, dtype=np.int64)
    return BatchShape(positions, np.ones(rows, dtype=np.int64), rows)


def _rewritten(tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = (PACKAGED / f"{name}.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_the_packaged_profiles_are_listed_by_name() -> None:
    """Each file of the package is one profile."""
    assert profile_names() == ("fast", RNGD, "roofline-rngd", "table-sample")


@pytest.mark.parametrize("name", ["fast", RNGD, "roofline-rngd", "table-sample"])
def test_a_packaged_profile_is_named_like_its_file_and_builds_its_models(name: str) -> None:
    """A decode step takes between a microsecond and a second, and so do the host's jobs."""
    profile = load_profile(name)
    cpu = profile.cpu_model()

    assert profile.name == name
    assert 1_000 < profile.npu_model().step_ns(_decode(16, 1_000)) < 1_000_000_000
    assert 1_000 < cpu.build_ns(_decode(16, 1_000)) + cpu.fill_ns(16) < 1_000_000_000


def test_the_default_pool_is_what_the_memory_holds() -> None:
    """246,079 tokens of KV make 15,379 whole blocks of 16."""
    profile = load_profile(RNGD)

    assert [profile.num_blocks(size) for size in (1, 16, 246_080)] == [246_079, 15_379, 0]


def test_kinds_are_told_apart() -> None:
    """The device model decides the kind of a profile."""
    kinds = {name: load_profile(name).kind for name in profile_names()}

    assert kinds == {
        "fast": "roofline",
        RNGD: "staged",
        "roofline-rngd": "roofline",
        "table-sample": "table",
    }


def test_one_fused_rngd_step_takes_what_was_measured() -> None:
    """32 fused layers of 435.8 us and a head of 0.62 ms, within 0.1 %."""
    step_ns = load_profile(RNGD).npu_model().step_ns(_decode(1, 1_000))

    assert step_ns == pytest.approx(32 * 435_800 + 620_000, rel=0.001)


def test_the_fast_device_decodes_about_as_long_as_its_host_prepares() -> None:
    """At 128 rows of 1,000 KV tokens both take between 0.75 and 0.9 ms."""
    profile = load_profile("fast")
    batch = _decode(128, 1_000)

    assert 750_000 < profile.npu_model().step_ns(batch) < 900_000
    assert 750_000 < profile.cpu_model().build_ns(batch) < 900_000


def test_the_sample_table_agrees_with_the_roofline_it_was_read_off() -> None:
    """On a measured point they are equal, between points within 1 %."""
    table, roofline = (load_profile(n).npu_model() for n in ("table-sample", "roofline-rngd"))

    assert table.step_ns(_decode(64, 2_048)) == roofline.step_ns(_decode(64, 2_048))
    assert table.step_ns(_decode(32, 1_000)) == pytest.approx(
        roofline.step_ns(_decode(32, 1_000)), rel=0.01
    )


def test_what_nobody_measured_is_listed() -> None:
    """The split of the host's time and long KV buckets are inferences, measured stages are not."""
    inferred = load_profile(RNGD).inferred()

    assert {"cpu.build.base_ns", "npu.decode[2].sequence_us", "npu.stage_scale"} <= set(inferred)
    assert not {"npu.dense_us", "npu.decode[0].sequence_us"} & set(inferred)


def test_a_transfer_takes_latency_and_size_over_rate() -> None:
    """128 MiB at 26.27 GB/s take 5.11 ms, after 20 us."""
    channel = load_profile(RNGD).dma.host_to_device

    assert channel.transfer_ns(0) == 20_000
    assert channel.transfer_ns(1 << 27) == 5_129_164


def test_sampling_on_the_npu_needs_a_sampler() -> None:
    """Base and rows where there is one; else the sentence says how to go on."""
    sentence = "device table-sample has no sampler; sample on the host (leave NPU sampling off)"

    assert load_profile(RNGD).npu_sampler().total_ns(4) == 22_000
    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        load_profile("table-sample").npu_sampler()


def test_a_profile_of_ones_own_is_loaded_by_path(tmp_path: Path) -> None:
    """A copy under another name finds the table beside it."""
    path = _rewritten(tmp_path, "table-sample", '"table-sample"', '"mine"')
    (tmp_path / "table-sample.csv").write_text("rows,tokens,kv_tokens,step_us\n1,1,0,5\n", "utf-8")

    profile = load_profile(path)

    assert profile.name == "mine"
    assert profile.npu_model().step_ns(_decode(1, 0)) == 5_000


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The sentence says what may be given instead."""
    sentence = (
        "device profile 'nope' is neither a file nor one of fast, rngd-llama-3.1-8b, "
        "roofline-rngd, table-sample; give one of these names or the path of a TOML file"
    )

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        load_profile("nope")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "latency_ns",
            "latency",
            "Object contains unknown field `latency` - at `$.dma.host_to_device`",
        ),
        (
            "value = 256,",
            'value = "256",',
            "Expected `int`, got `str` - at `$.limits.max_concurrency.value`",
        ),
        ('kind = "roofline"', 'kind = "magic"', "Invalid value 'magic' - at `$.npu.kind`"),
        (
            ', source = "as the compiled artifact of Furiosa-LLM"',
            "",
            "Object missing required field `source` - at `$.limits.max_concurrency`",
        ),
        (
            "[memory]",
            "[memory",
            "Expected ']' at the end of a table declaration (at line 8, column 8)",
        ),
        (
            "base_ns = { value = 27_000,",
            "base_ns = { value = 27_000_000_000_000_000,",
            "Expected `int` <= 1000000000000000 - at `$.cpu.build.base_ns.value`",
        ),
        ("[memory]", "x = " + "[" * 9999, "maximum recursion depth exceeded"),
    ],
)
def test_an_unusable_file_is_refused_by_place(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    """Unknown and missing keys, wrong types, wrong kinds and broken TOML name their place."""
    path = _rewritten(tmp_path, "roofline-rngd", old, new)
    sentence = (
        f"device profile {path} is not usable: {problem}; compare it with the packaged profiles"
    )

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        load_profile(path)


@pytest.mark.parametrize(
    "line", ["0,0,0,5", "2,1,0,5", "1,1,-1,5", "1,1,0,0", "1,1,0,nan", "1,1,0", "a,1,0,5"]
)
def test_a_bad_line_of_a_table_is_named(tmp_path: Path, line: str) -> None:
    """File, line number (comments counted) and the line itself stand in the sentence."""
    path = tmp_path / "table.csv"
    path.write_text(f"# mine\nrows,tokens,kv_tokens,step_us\n1,1,0,5\n\n{line}\n", "utf-8")
    sentence = (
        f"{path}, line 5: {line!r} is not a measurement; give whole numbers 1 <= rows <= tokens, "
        "kv_tokens >= 0, and step_us above 0"
    )

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        read_measurements(path)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"1,1,0,\xff", r"'1,1,0,\\xff'"),
        (b'"1,1,0,5', repr('"1,1,0,5')),
        (b"1,1,0,5,6", "'1,1,0,5,6'"),
        (b"1" * 200_000, repr("1" * 57 + "...")),
    ],
)
def test_a_damaged_line_spoils_no_other(tmp_path: Path, line: bytes, shown: str) -> None:
    """Neither a byte that is no text nor a quote without end reaches beyond its line."""
    path = tmp_path / "table.csv"

    path.write_bytes(b"rows,tokens,kv_tokens,step_us\n" + line + b"\n2,2,0,5\n")
    with pytest.raises(DeviceModelError) as caught:
        read_measurements(path)
    assert str(caught.value) == (
        f"{path}, line 2: {shown} is not a measurement; give whole numbers 1 <= rows <= tokens, "
        "kv_tokens >= 0, and step_us above 0"
    )


def test_a_table_from_a_spreadsheet_is_a_table(tmp_path: Path) -> None:
    """With a byte order mark, carriage returns and quotes."""
    path = tmp_path / "table.csv"
    path.write_bytes(b'\xef\xbb\xbfrows,tokens,kv_tokens,step_us\r\n"2","2","0","5.5"\r\n')
    assert read_measurements(path) == [Measurement(2, 2, 0, 5.5)]


def test_a_table_needs_its_four_columns(tmp_path: Path) -> None:
    """Other columns are refused with both lists."""
    path = tmp_path / "table.csv"
    path.write_text("rows,step_us\n1,5\n", "utf-8")
    sentence = (
        f"table of measurements {path} has the columns rows,step_us; give exactly "
        "rows,tokens,kv_tokens,step_us"
    )

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        read_measurements(path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    """A profile may point at a file that is not there."""
    path = _rewritten(tmp_path, "table-sample", '"table-sample.csv"', '"gone.csv"')
    sentence = (
        f"table of measurements {tmp_path / 'gone.csv'} does not exist; check csv in the profile"
    )

    with pytest.raises(DeviceModelError, match=f"^{re.escape(sentence)}$"):
        load_profile(path).npu_model()


def test_every_number_of_the_packaged_profiles_has_a_source() -> None:
    """Sources are sentences, not empty words, and an assumption of ours is marked as inferred."""
    for name in profile_names():
        for number in _sourced(load_profile(name)):
            assert len(number.source) > 6
            assert number.inferred or "our assumption" not in number.source


def _sourced(node: object) -> list[Sourced[object]]:
    """Collect the numbers of a profile, depth first."""
    if isinstance(node, Sourced):
        return [node]
    if isinstance(node, list):
        return [number for item in cast("list[object]", node) for number in _sourced(item)]
    fields: tuple[str, ...] = getattr(node, "__struct_fields__", ())
    return [number for field in fields for number in _sourced(getattr(node, field))]


def test_the_walk_over_a_profile_finds_its_numbers() -> None:
    """The helper sees optional, nested and listed numbers: the previous test is not vacuous."""
    profile: Profile = load_profile(RNGD)

    assert len(_sourced(profile)) > 50
