"""The compatibility table: the document's rows, the betas, and what the check makes of them."""

import msgspec
import pytest
from msgspec.structs import replace

from stepahead_models.product import (
    EngineConfig,
    Feature,
    InvalidOption,
    ModelDescription,
    ModelKind,
    ProductVersion,
    SchedulingLoop,
    UnsupportedConfiguration,
    Verdict,
    check_configuration,
    compatibility,
    context_limit,
    read_engine_config,
    render_compatibility_markdown,
    verdict_for,
)
from stepahead_models.product.check import features_in_use
from stepahead_models.product.compatibility import (
    COMBINATIONS,
    COMPATIBILITY,
    SPECULATIVE,
    CompatibilityTableError,
    check_table,
    combination_for,
    row_for,
)
from stepahead_models.product.features import SWITCHES
from stepahead_models.product.versions import DEFAULT_VERSION

YES, NO, OFF = Verdict.SUPPORTED, Verdict.REFUSED, Verdict.DISABLED
RESTART = "restart with --no-enable-overlap-scheduling or SchedulingLoop.EAGER"
B0, B1, B2, B3 = list(ProductVersion)[1:]
PREPARING = [SchedulingLoop.OVERLAP, SchedulingLoop.JUST_IN_TIME]
HOST = {"kv_offload_host_memory_gb": 1.0}
MTP = {"speculative_method": "mtp", "num_speculative_tokens": 2}
DRAFT = {
    "speculative_method": "draft_model",
    "num_speculative_tokens": 2,
    "draft_model_id_or_path": "small",
}
TRANSFER = {"kv_transfer_config": {"host": "node", "port": 1}}
TEXT = ModelDescription()
VISION = ModelDescription(kind=ModelKind.VISION_LANGUAGE)
POOLING = ModelDescription(kind=ModelKind.POOLING)
NO_SAMPLER = ModelDescription(has_sampler=False)

# Furiosa-LLM 2026.4 documentation, overlap scheduling: every row of "Current compatibility".
# (feature, options that bring it in, model, what overlap does)
DOCUMENT: list[tuple[Feature, dict[str, object], ModelDescription, Verdict]] = [
    (Feature.TEXT_GENERATION, {}, TEXT, YES),
    (Feature.VISION_LANGUAGE, {}, VISION, NO),
    (Feature.POOLING, {}, POOLING, NO),
    (Feature.L1_PREFIX_CACHE, {"enable_prefix_caching": True}, TEXT, YES),
    (Feature.L2_HOST_CACHE, {**HOST}, TEXT, YES),
    (Feature.LAYERWISE_RELOAD, {**HOST, "kv_offload_overlap_l2_reload": True}, TEXT, YES),
    (Feature.NPU_SAMPLING, {"enable_npu_sampling": True}, TEXT, YES),
    (Feature.SPECULATIVE_DRAFT, {**DRAFT}, TEXT, NO),
    (Feature.SPECULATIVE_DRAFT_OTHER, {**DRAFT}, VISION, NO),
    (Feature.SPECULATIVE_MTP, {**MTP}, TEXT, NO),
    (Feature.L3_REMOTE_CACHE, {"l3_enabled": True}, TEXT, OFF),
    (Feature.DEEPER_NPU_QUEUE, {"npu_queue_limit": 2}, TEXT, NO),
]
IDS = [row[0].name for row in DOCUMENT]


def config_of(options: dict[str, object], loop: SchedulingLoop) -> EngineConfig:
    """Read a configuration of the default version."""
    return read_engine_config(options={**options, "scheduling_loop_type": loop})


@pytest.mark.parametrize("loop", PREPARING)
@pytest.mark.parametrize(("feature", "options", "model", "verdict"), DOCUMENT, ids=IDS)
def test_the_check_does_under_overlap_what_the_document_says(
    feature: Feature,
    options: dict[str, object],
    model: ModelDescription,
    verdict: Verdict,
    loop: SchedulingLoop,
) -> None:
    """A start, a refusal, or a start without the feature; just-in-time as overlap."""
    config = config_of(options, loop)
    assert feature in features_in_use(config, model)
    assert verdict_for(feature, loop) is verdict
    if verdict is NO:
        with pytest.raises(UnsupportedConfiguration):
            check_configuration(config, model)
    else:
        assert check_configuration(config, model).disabled == ((feature,) if verdict is OFF else ())


@pytest.mark.parametrize(("feature", "options", "model", "verdict"), DOCUMENT, ids=IDS)
def test_everything_in_the_document_starts_in_the_eager_loop(
    feature: Feature, options: dict[str, object], model: ModelDescription, verdict: Verdict
) -> None:
    """The way out that a refusal names does work."""
    config = config_of(options, SchedulingLoop.EAGER)
    checked = check_configuration(config, model)
    assert verdict_for(feature, SchedulingLoop.EAGER) is YES
    assert (checked.config, checked.disabled, checked.warnings) == (config, (), ())
    assert (verdict is YES) == (verdict_for(feature, SchedulingLoop.OVERLAP) is YES)


@pytest.mark.parametrize(
    ("options", "model", "feature", "option", "message"),
    [
        (
            {},
            VISION,
            Feature.VISION_LANGUAGE,
            "scheduler_config.scheduling_loop_type",
            (
                "vision-language models cannot be used with the overlap loop of 2026.4 "
                "(requests that hold only text are no exception); "
                f"change scheduler_config.scheduling_loop_type (--loop): {RESTART}"
            ),
        ),
        (
            {},
            POOLING,
            Feature.POOLING,
            "scheduler_config.scheduling_loop_type",
            (
                "pooling models cannot be used with the overlap loop of 2026.4 "
                "(they have no decode phase); "
                f"change scheduler_config.scheduling_loop_type (--loop): {RESTART}"
            ),
        ),
        (
            MTP,
            TEXT,
            Feature.SPECULATIVE_MTP,
            "speculative_config",
            (
                "speculative decoding with embedded MTP cannot be used with the overlap loop of "
                "2026.4 (preparing ahead assumes decode blocks that speculation does not have); "
                "change speculative_config (--experimental-speculative-config): "
                f"leave speculative_config out, or {RESTART}"
            ),
        ),
        (
            {"npu_queue_limit": 2},
            TEXT,
            Feature.DEEPER_NPU_QUEUE,
            "scheduler_config.npu_queue_limit",
            (
                "npu_queue_limit other than 1 cannot be used with the overlap loop of 2026.4 "
                "(preparing ahead on the CPU needs no deeper queue of the NPU); "
                "change scheduler_config.npu_queue_limit (--npu-queue-limit): "
                f"set npu_queue_limit to 1, or {RESTART}"
            ),
        ),
    ],
)
def test_a_refusal_names_feature_loop_option_and_way_out(
    options: dict[str, object],
    model: ModelDescription,
    feature: Feature,
    option: str,
    message: str,
) -> None:
    """In attributes and in one sentence."""
    with pytest.raises(UnsupportedConfiguration) as caught:
        check_configuration(config_of(options, SchedulingLoop.OVERLAP), model)
    error = caught.value
    assert str(error) == message
    assert (error.feature, error.loop, error.option, error.beside) == (
        feature,
        SchedulingLoop.OVERLAP,
        option,
        None,
    )
    assert message.endswith(error.way_out)


def test_the_remote_cache_is_switched_off_with_one_warning() -> None:
    """The rest of the configuration stays as it was."""
    config = config_of({"l3_enabled": True}, SchedulingLoop.OVERLAP)
    checked = check_configuration(config, TEXT)
    assert checked.disabled == (Feature.L3_REMOTE_CACHE,)
    assert checked.warnings == (
        (
            "remote KV cache (L3) is switched off with the overlap loop of 2026.4 "
            f"(even where it is configured); {RESTART} if you depend on it"
        ),
    )
    assert checked.config == msgspec.structs.replace(config, l3_enabled=False)


@pytest.mark.parametrize("loop", SchedulingLoop)
def test_sampling_on_the_npu_needs_a_sampler_in_every_loop(loop: SchedulingLoop) -> None:
    """No other loop is offered, since none would help."""
    with pytest.raises(UnsupportedConfiguration) as caught:
        check_configuration(config_of({"enable_npu_sampling": True}, loop), NO_SAMPLER)
    assert str(caught.value) == (
        "NPU sampling on an artifact without a sampler cannot be used with the "
        f"{loop.value} loop of 2026.4 (the artifact has no sampling kernel); "
        "change scheduler_config.enable_npu_sampling (--experimental-enable-npu-sampling): "
        "set enable_npu_sampling to false, or build the artifact with --enable-sampler"
    )


@pytest.mark.parametrize(
    "feature",
    [Feature.TEXT_GENERATION, Feature.L1_PREFIX_CACHE, Feature.L2_HOST_CACHE, Feature.KV_TRANSFER],
)
def test_the_check_holds_no_copy_of_the_table(
    feature: Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing one row changes one answer."""
    config = config_of({**HOST, **TRANSFER}, SchedulingLoop.OVERLAP)
    assert check_configuration(config, TEXT).disabled == ()
    rows = [replace(row, overlap=NO) if row.feature is feature else row for row in COMPATIBILITY]
    monkeypatch.setattr(compatibility, "COMPATIBILITY", rows)
    with pytest.raises(UnsupportedConfiguration, match=SWITCHES[feature].option):
        check_configuration(config, TEXT)


# Furiosa-LLM release notes: from which beta on the overlap loop takes what 2026.4 does not.
SUPPORTED_SINCE = {
    Feature.VISION_LANGUAGE: B0,
    Feature.L3_REMOTE_CACHE: B0,
    Feature.SPECULATIVE_DRAFT: B3,
}


@pytest.mark.parametrize("version", ProductVersion)
@pytest.mark.parametrize(("feature", "options", "model", "verdict"), DOCUMENT, ids=IDS)
def test_a_beta_changes_what_its_notes_announce_and_nothing_else(
    feature: Feature,
    options: dict[str, object],
    model: ModelDescription,
    verdict: Verdict,
    version: ProductVersion,
) -> None:
    """Embedded MTP stays with the eager loop, pooling models too."""
    since = SUPPORTED_SINCE.get(feature)
    expected = YES if since is not None and version.includes(since) else verdict
    assert verdict_for(feature, SchedulingLoop.OVERLAP, version) is expected
    assert verdict_for(feature, SchedulingLoop.EAGER, version) is YES
    config = config_of(options, SchedulingLoop.OVERLAP)
    if expected is NO:
        with pytest.raises(UnsupportedConfiguration, match=version.value):
            check_configuration(config, model, version)
    else:
        assert (feature in check_configuration(config, model, version).disabled) == (
            expected is OFF
        )


@pytest.mark.parametrize("version", ProductVersion)
@pytest.mark.parametrize("feature", Feature)
def test_just_in_time_has_the_rows_of_overlap(feature: Feature, version: ProductVersion) -> None:
    """In every version."""
    assert verdict_for(feature, SchedulingLoop.JUST_IN_TIME, version) is verdict_for(
        feature, SchedulingLoop.OVERLAP, version
    )


@pytest.mark.parametrize(
    ("options", "beside", "other"),
    [
        (MTP, Feature.SPECULATIVE_MTP, "speculative_config"),
        (DRAFT, Feature.SPECULATIVE_DRAFT, "speculative_config"),
        (TRANSFER, Feature.KV_TRANSFER, "kv_transfer_config"),
    ],
)
def test_layer_wise_reload_is_refused_beside_speculation_and_kv_transfer(
    options: dict[str, object], beside: Feature, other: str
) -> None:
    """In the eager loop too; the nested form of speculation does not slip through."""
    config = config_of(
        {**HOST, **options, "kv_offload_overlap_l2_reload": True}, SchedulingLoop.EAGER
    )
    with pytest.raises(UnsupportedConfiguration) as caught:
        check_configuration(config, TEXT)
    assert str(caught.value) == (
        "layer-wise reload from L2 to L1 cannot be used beside "
        f"{beside.value} in 2026.4; "
        "change scheduler_config.kv_offload_config.overlap_l2_reload "
        "(--experimental-kv-offload-overlap-l2-reload): "
        f"leave overlap_l2_reload out, or leave {other} out"
    )
    assert caught.value.beside is beside


def test_speculation_in_json_does_not_slip_past_the_reload_rule() -> None:
    """The product looks only at the single options here; that gap is not copied."""
    nested = {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 1}'}
    config = config_of(
        {**HOST, **nested, "kv_offload_overlap_l2_reload": True}, SchedulingLoop.EAGER
    )
    with pytest.raises(UnsupportedConfiguration):
        check_configuration(config, TEXT)


def test_speculation_switches_sampling_on_the_npu_off_from_the_third_beta_on() -> None:
    """Before, the two are not known to exclude each other."""
    config = config_of({**MTP, "enable_npu_sampling": True}, SchedulingLoop.EAGER)
    assert check_configuration(config, TEXT, B1).disabled == ()
    checked = check_configuration(config, TEXT, B2)
    assert checked.disabled == (Feature.NPU_SAMPLING,)
    assert checked.warnings == (
        (
            "NPU sampling is switched off beside speculative decoding with embedded MTP in "
            "2026.5.0b2; leave speculative_config out if you depend on it"
        ),
    )
    assert not checked.config.scheduler_config.enable_npu_sampling


def test_where_sampling_on_the_npu_is_the_default_a_missing_sampler_is_a_warning() -> None:
    """A default must not keep an artifact from starting."""
    config = read_engine_config(version=B2)
    assert config.scheduler_config.enable_npu_sampling
    checked = check_configuration(config, NO_SAMPLER, B2)
    assert checked.disabled == (Feature.NPU_SAMPLING_WITHOUT_SAMPLER,)
    assert checked.warnings == (
        (
            "NPU sampling on an artifact without a sampler is switched off with the eager loop of "
            "2026.5.0b2 (the artifact has no sampling kernel, and sampling on the NPU is the "
            "default here); "
            "set enable_npu_sampling to false, or build the artifact with --enable-sampler"
        ),
    )
    assert not checked.config.scheduler_config.enable_npu_sampling


def test_token_logprobs_beside_sampling_on_the_npu_came_with_the_second_beta() -> None:
    """Inferred for the versions before."""
    verdicts = [combination_for(Feature.LOGPROBS, Feature.NPU_SAMPLING, v) for v in ProductVersion]
    assert verdicts == [NO, NO, YES, YES, YES]


def test_a_host_budget_without_the_host_cache_is_a_warning() -> None:
    """It may be meant, for a comparison; it is not passed over in silence."""
    config = read_engine_config(
        "[scheduler_config.kv_offload_config]\nenabled = false\nhost_memory_ratio = 0.5\n"
    )
    assert check_configuration(config, TEXT).warnings == (
        (
            "a host budget is given, but the host KV cache (L2) is off; "
            "set enabled of kv_offload_config, or leave the budget out"
        ),
    )


@pytest.mark.parametrize(
    ("model", "owner"),
    [
        (ModelDescription(max_positions=100), "positions of the model"),
        (ModelDescription(max_positions=500, compiled_len=100), "context of the artifact"),
    ],
)
def test_the_cap_on_the_context_can_only_lower_it(model: ModelDescription, owner: str) -> None:
    """At the limit it may stand."""
    check_configuration(EngineConfig(max_model_len=100), model)
    with pytest.raises(InvalidOption) as caught:
        check_configuration(EngineConfig(max_model_len=101), model)
    assert str(caught.value) == (
        "max_model_len (--max-model-len) is 101; "
        f"expected at most 100, the {owner}; lower it, or leave it out"
    )


@pytest.mark.parametrize(
    ("lengths", "cap", "limit"),
    [
        ((None, None, None), None, None),
        ((100, None, None), None, 100),
        ((100, 90, 80), None, 80),
        ((100, 90, 80), 70, 70),
        ((100, 90, 80), 85, 80),
    ],
)
def test_the_context_is_the_least_of_four_limits(
    lengths: tuple[int | None, int | None, int | None], cap: int | None, limit: int | None
) -> None:
    """Positions, artifact, KV memory and the cap."""
    positions, compiled, kv_tokens = lengths
    model = ModelDescription(max_positions=positions, compiled_len=compiled, kv_tokens=kv_tokens)
    assert context_limit(EngineConfig(max_model_len=cap), model) == limit


def test_a_draft_model_is_compared_with_its_target_where_both_are_known() -> None:
    """Unknown token ids refuse nothing."""
    config = config_of({**DRAFT}, SchedulingLoop.EAGER)
    target = ModelDescription(token_ids={"a": 0})
    check_configuration(config, target, draft=ModelDescription())
    check_configuration(config, target, draft=ModelDescription(token_ids={"a": 0}))
    with pytest.raises(InvalidOption, match="token ids"):
        check_configuration(config, target, draft=ModelDescription(token_ids={"a": 1}))


def test_every_feature_has_a_switch_and_every_row_a_source() -> None:
    """A refusal needs the one, a reader the other."""
    assert set(SWITCHES) == set(Feature)
    sources = [row.source for row in COMPATIBILITY] + [pair.source for pair in COMBINATIONS]
    assert all(sources)


@pytest.mark.parametrize("feature", [f for f in Feature if row_for(f).overlap is not YES])
def test_what_overlap_does_not_take_has_a_reason(feature: Feature) -> None:
    """The sentence of a refusal quotes it."""
    assert row_for(feature).reason


def test_a_feature_without_a_row_is_an_error_of_the_table() -> None:
    """Rows of the betas alone do not do."""
    rows = [row for row in COMPATIBILITY if row.feature is not Feature.POOLING]
    with pytest.raises(CompatibilityTableError) as caught:
        check_table(rows, COMBINATIONS)
    assert str(caught.value) == "POOLING has no row for 2026.4; add one"


def test_a_row_that_switches_off_what_a_start_needs_is_an_error_of_the_table() -> None:
    """A model cannot be switched off; saying that it was would be a lie."""
    row = replace(row_for(Feature.POOLING), since=B3, overlap=OFF)
    with pytest.raises(CompatibilityTableError) as caught:
        check_table([*COMPATIBILITY, row], COMBINATIONS)
    assert str(caught.value) == (
        "POOLING is switched off by a row, and the check cannot start without it; refuse it instead"
    )


def test_two_rows_for_one_version_are_an_error_of_the_table() -> None:
    """Which of them counts would depend on their order."""
    with pytest.raises(CompatibilityTableError) as caught:
        check_table([*COMPATIBILITY, row_for(Feature.L3_REMOTE_CACHE, B0)], COMBINATIONS)
    assert str(caught.value) == "L3_REMOTE_CACHE has two rows for 2026.5.0b0; leave one out"
    with pytest.raises(CompatibilityTableError) as caught:
        check_table(COMPATIBILITY, [*COMBINATIONS, COMBINATIONS[-1]])
    assert str(caught.value) == (
        "LOGPROBS beside NPU_SAMPLING has two rows for 2026.5.0b1; leave one out"
    )


def test_the_document_shows_every_row_of_the_table() -> None:
    """Each row as a line; pairs with the same verdict share one."""
    lines = render_compatibility_markdown().splitlines()
    for row in COMPATIBILITY:
        since = () if row.since is DEFAULT_VERSION else (row.since.value,)
        cells = (
            row.feature.value,
            *since,
            row.eager.value,
            row.overlap.value,
            row.reason,
            row.source,
        )
        assert f"| {' | '.join(cells)} |" in lines
    for pair in COMBINATIONS:
        assert any(
            line.startswith(f"| {pair.feature.value} |")
            and pair.beside.value in line
            and f"| {pair.since.value} | {pair.verdict.value} |" in line
            for line in lines
        )
    every = "; ".join(feature.value for feature in SPECULATIVE)
    assert any(f"| {every} | 2026.4 | refused |" in line for line in lines)
