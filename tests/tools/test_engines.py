"""The table of compatibility and the model of a device, on the command line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stepahead_models.product import Feature, ProductVersion, Verdict, verdict_for
from stepahead_models.product.features import SWITCHES
from stepahead_models.product.loops import SchedulingLoop
from stepahead_models.product.options import with_flag
from stepahead_models.profiles import load_profile, profile_names
from stepahead_tools.engine_options import VersionChoice
from stepahead_tools.engines import describe
from stepahead_tools.errors import OptionError
from stepahead_tools.testing import Result, run

RESTART = "restart with --no-enable-overlap-scheduling or SchedulingLoop.EAGER"
OFFLOAD = "--experimental-kv-offload"
GIB = (f"{OFFLOAD}-host-memory-gb", "1")
FAST = load_profile("fast")
IN_A_REQUEST = {
    Feature.KV_TRANSFER_PARAMS,
    Feature.STRUCTURED_OUTPUTS,
    Feature.LOGPROBS,
    Feature.PROMPT_LOGPROBS,
}
Check = Callable[..., Result]
Write = Callable[[str], Path]


# -- the table -------------------------------------------------------------------------------------

DRAFT = (
    '[speculative_config]\nmethod = "draft_model"\nnum_speculative_tokens = 2\nmodel = "small"\n'
)
MTP = '[speculative_config]\nmethod = "mtp"\nnum_speculative_tokens = 2\n'
TRANSFER = '[kv_transfer_config]\nhost = "node"\nport = 1\n'

#: Feature, device or kind of model, flags, file.
ROWS: list[tuple[Feature, str, tuple[str, ...], str]] = [
    (Feature.TEXT_GENERATION, "fast", (), ""),
    (Feature.VISION_LANGUAGE, "vision-language", (), ""),
    (Feature.POOLING, "pooling", (), ""),
    (Feature.L1_PREFIX_CACHE, "fast", ("--enable-prefix-caching",), ""),
    (Feature.L2_HOST_CACHE, "fast", GIB, ""),
    (Feature.LAYERWISE_RELOAD, "fast", (*GIB, f"{OFFLOAD}-overlap-l2-reload"), ""),
    (Feature.NPU_SAMPLING, "fast", ("--experimental-enable-npu-sampling",), ""),
    (Feature.NPU_SAMPLING_WITHOUT_SAMPLER, "table-sample", ("--npu-sampling",), ""),
    (Feature.SPECULATIVE_DRAFT, "fast", (), DRAFT),
    (Feature.SPECULATIVE_DRAFT_OTHER, "pooling", (), DRAFT),
    (Feature.SPECULATIVE_MTP, "fast", (), MTP),
    (Feature.L3_REMOTE_CACHE, "fast", GIB, "l3_enabled = true\n"),
    (Feature.DEEPER_NPU_QUEUE, "fast", ("--npu-queue-limit", "2"), ""),
    (Feature.KV_TRANSFER, "fast", (), TRANSFER),
]
IDS = [row[0].name for row in ROWS]
#: What the table has a loop do and the simulation does not have.
UNSIMULATED = {
    Feature.KV_TRANSFER: "kv_transfer_config asks for KV transfer between engines",
}


def refusal(feature: Feature, loop: str, kind: str) -> str:
    """Write what the check says of a feature that a loop refuses; eager helps all but one."""
    if feature is Feature.SPECULATIVE_DRAFT_OTHER:
        # The kind of model comes first, and is refused by itself.
        feature = {"pooling": Feature.POOLING}[kind]
    reasons = {
        Feature.VISION_LANGUAGE: "requests that hold only text are no exception",
        Feature.POOLING: "they have no decode phase",
        Feature.NPU_SAMPLING_WITHOUT_SAMPLER: "the artifact has no sampling kernel",
        Feature.DEEPER_NPU_QUEUE: "preparing ahead on the CPU needs no deeper queue of the NPU",
    }
    blocks = "preparing ahead assumes decode blocks that speculation does not have"
    switch = SWITCHES[feature]
    helps = [] if feature is Feature.NPU_SAMPLING_WITHOUT_SAMPLER else [RESTART]
    ways = ", or ".join([switch.without, *helps] if switch.without else helps)
    return (
        f"stepahead: {feature.value} cannot be used with the {loop} loop of 2026.4 "
        f"({reasons.get(feature, blocks)}); change {with_flag(switch.option)}: {ways}\n"
    )


def test_every_feature_of_a_configuration_has_a_row_here() -> None:
    """The other four belong to single requests, which a trace does not have."""
    assert {row[0] for row in ROWS} == set(Feature) - IN_A_REQUEST


@pytest.mark.parametrize("loop", [loop.value for loop in SchedulingLoop])
@pytest.mark.parametrize(("feature", "kind", "flags", "text"), ROWS, ids=IDS)
def test_every_row_of_the_table_is_reached_from_the_command_line(  # noqa: PLR0913, PLR0917 # with fixtures
    feature: Feature,
    kind: str,
    flags: tuple[str, ...],
    text: str,
    loop: str,
    toml: Write,
    device: Callable[[str], Path],
    checked: Check,
) -> None:
    """It starts, starts without and warns, or exits with 2 and one sentence."""
    profile = kind if kind in profile_names() else str(device(kind))
    done = checked("--loop", loop, "--device", profile, *flags, "--config", str(toml(text)))
    verdict = verdict_for(feature, SchedulingLoop(loop))
    if verdict is Verdict.REFUSED:
        assert (done.exit_code, done.stderr) == (2, refusal(feature, loop, kind))
    elif feature in UNSIMULATED:
        sentence = f"stepahead: {UNSIMULATED[feature]}, which the simulation does not have; "
        assert (done.exit_code, done.stderr) == (2, f"{sentence}leave it out\n")
    elif verdict is Verdict.DISABLED:
        assert done.exit_code == 0
        assert done.stdout.startswith("l3_enabled = false\n")
        assert done.stderr.count("\n") == 1
        assert (
            f"remote KV cache (L3) is switched off with the {loop} loop of 2026.4 (even where it "
            f"is configured); {RESTART} if you depend on it" in done.stderr
        )
    else:
        assert (done.exit_code, done.stderr) == (0, "")
        assert f'scheduling_loop_type = "{loop}"' in done.stdout


@pytest.mark.parametrize(
    ("text", "beside", "other"),
    [
        (MTP, "speculative decoding with embedded MTP", "speculative_config"),
        (TRANSFER, "KV transfer between engines", "kv_transfer_config"),
    ],
)
def test_features_that_exclude_each_other_are_refused(
    text: str, beside: str, other: str, toml: Write, checked: Check
) -> None:
    """The sentence of the table comes before what the simulation cannot do."""
    done = checked(*GIB, f"{OFFLOAD}-overlap-l2-reload", "--config", str(toml(text)))
    assert (done.exit_code, done.stderr) == (
        2,
        (
            f"stepahead: layer-wise reload from L2 to L1 cannot be used beside {beside} in 2026.4; "
            "change scheduler_config.kv_offload_config.overlap_l2_reload "
            "(--experimental-kv-offload-overlap-l2-reload): leave overlap_l2_reload out, or "
            f"leave {other} out\n"
        ),
    )


@pytest.mark.parametrize(
    ("feature", "flags"),
    [
        (Feature.DEEPER_NPU_QUEUE, ("--npu-queue-limit", "2")),
        (
            Feature.SPECULATIVE_MTP,
            ("--experimental-spec-config", '{"method": "mtp", "num_speculative_tokens": 2}'),
        ),
    ],
)
@pytest.mark.parametrize("loops", ["eager,overlap", "overlap,eager", "just-in-time,eager"])
def test_compare_is_refused_where_one_of_its_loops_is(
    feature: Feature, flags: tuple[str, str], loops: str, tiny_trace: Path
) -> None:
    """Before anything has run, with the one loop that has what was asked for."""
    done = run("compare", str(tiny_trace), "--device", "fast", "--loops", loops, *flags)
    assert (done.exit_code, done.stdout) == (2, "")
    refused = loops.replace("eager", "").strip(",")
    sentence = refusal(feature, refused, "fast").rstrip("\n")
    assert done.stderr == (
        f"{sentence}; of the loops {loops} only eager has it: run that one alone\n"
    )


def test_compare_says_nothing_of_the_eager_loop_where_that_does_not_help(tiny_trace: Path) -> None:
    """No loop samples without a sampler, and what excludes another feature does so in all."""
    done = run("compare", str(tiny_trace), "--device", "table-sample", "--npu-sampling")
    assert done.exit_code == 2
    assert done.stderr == refusal(Feature.NPU_SAMPLING_WITHOUT_SAMPLER, "eager", "table-sample")
    config = '{"method": "mtp", "num_speculative_tokens": 2}'
    given = ("compare", str(tiny_trace), "--device", "fast", "--experimental-spec-config", config)
    done = run(*given, "--loops", "eager,overlap", *GIB, f"{OFFLOAD}-overlap-l2-reload")
    assert done.exit_code == 2
    assert "cannot be used beside speculative decoding with embedded MTP" in done.stderr
    assert done.stderr.endswith("or leave speculative_config out\n")


def test_versions_to_choose_from_are_those_of_the_table() -> None:
    """The options name them again, because reading the table takes time that help has not."""
    assert [choice.value for choice in VersionChoice] == [v.value for v in ProductVersion]


def test_a_version_brings_its_defaults_and_its_rows(
    device: Callable[[str], Path], checked: Check
) -> None:
    """From the third beta on the NPU samples; from the first on overlap takes vision."""
    done = checked("--device", "fast", "--product-version", "2026.5.0b2")
    assert "enable_npu_sampling = true\n" in done.stdout
    done = checked("--device", "fast", "--product-version", "2026.5.0b2", "--host-sampling")
    assert "enable_npu_sampling = false\n" in done.stdout
    done = checked("--device", "table-sample", "--product-version", "2026.5.0b2")
    assert "enable_npu_sampling = false\n" in done.stdout
    assert (
        "NPU sampling on an artifact without a sampler is switched off with the eager loop of "
        "2026.5.0b2" in done.stderr
    )
    vision = ("--loop", "overlap", "--device", str(device("vision-language")))
    assert checked(*vision).exit_code == 2
    assert checked(*vision, "--product-version", "2026.5.0b0").exit_code == 0


def test_what_a_later_version_can_do_and_the_simulation_cannot_is_refused(
    toml: Write, checked: Check
) -> None:
    """The kernel takes a remote cache only where nothing is prepared ahead."""
    given = ("--config", str(toml("l3_enabled = true\n")), "--product-version", "2026.5.0b0")
    done = checked(*given, "--loop", "overlap")
    assert (done.exit_code, done.stderr) == (
        2,
        (
            "stepahead: l3_enabled asks for a remote KV cache (L3) under the overlap loop, which "
            "the simulation does not have; set it to false, or run the eager loop alone\n"
        ),
    )
    assert checked(*given).exit_code == 0


def test_speculation_under_overlap_is_refused_where_the_product_has_it(
    toml: Write, checked: Check
) -> None:
    """From the fourth beta on it has drafts of an independent model; MTP stays eager only."""
    beta = ("--product-version", "2026.5.0b3")
    given = ("--config", str(toml(DRAFT)), *beta)
    for loop in ("overlap", "just-in-time"):
        done = checked(*given, "--loop", loop)
        assert (done.exit_code, done.stderr) == (
            2,
            (
                "stepahead: speculative_config asks for speculative decoding under the "
                f"{loop} loop, which the simulation does not have; leave it out, or run the eager "
                "loop alone\n"
            ),
        )
    assert checked(*given).exit_code == 0
    done = checked("--config", str(toml(MTP)), *beta, "--loop", "overlap")
    assert done.exit_code == 2
    assert "embedded MTP cannot be used with the overlap loop of 2026.5.0b3" in done.stderr


# -- the model -------------------------------------------------------------------------------------


def test_a_device_describes_its_model() -> None:
    """Kind, sampler, and the two limits of a context."""
    model = describe(FAST)
    assert (model.kind.value, model.has_sampler) == ("text-generation", True)
    assert (model.max_positions, model.compiled_len) == (None, 131_072)
    assert model.kv_tokens == FAST.num_blocks(1)
    assert not describe(load_profile("table-sample")).has_sampler


def test_a_device_with_an_unknown_kind_of_model_is_refused(device: Callable[[str], Path]) -> None:
    """The sentence names the kinds."""
    profile = load_profile(device("diffusion"))
    sentence = (
        "device fast has the model_kind 'diffusion', which is not known; write one of "
        "text-generation, vision-language, pooling into its file"
    )
    with pytest.raises(OptionError, match=f"^{re.escape(sentence)}$"):
        describe(profile)


# -- the table as a command ------------------------------------------------------------------------


@pytest.mark.parametrize("version", list(ProductVersion))
def test_the_table_is_printed_by_version(version: ProductVersion) -> None:
    """Every feature with what both loops do about it."""
    done = run("compatibility", "--product-version", version.value, columns=300)
    assert done.exit_code == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    for feature in Feature:
        verdicts = [
            verdict_for(feature, loop, version).value
            for loop in (SchedulingLoop.EAGER, SchedulingLoop.OVERLAP)
        ]
        assert [line[1:3] for line in lines if line[0] == feature.value] == [verdicts]
    assert (
        "layer-wise reload from L2 to L1 beside KV transfer between engines: refused" in done.stdout
    )
