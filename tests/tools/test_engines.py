"""The product's configuration on the command line: file, flags, refusals, warnings."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stepahead_models.product import Feature, ProductVersion, Verdict, verdict_for
from stepahead_models.product.engine import ENGINE_RULES, KV_TRANSFER_RULES
from stepahead_models.product.features import SWITCHES
from stepahead_models.product.loops import SchedulingLoop
from stepahead_models.product.offload import KV_OFFLOAD_RULES, MEMORY_RULES
from stepahead_models.product.options import with_flag
from stepahead_models.product.rules import Rule
from stepahead_models.product.scheduler import PREFIX_CACHE_RULES, SCHEDULER_RULES
from stepahead_models.product.speculation import SPECULATIVE_RULES
from stepahead_models.profiles import load_profile, profile_names
from stepahead_tools.__main__ import app
from stepahead_tools.engine_options import VersionChoice
from stepahead_tools.engines import WITHOUT_EFFECT, describe
from stepahead_tools.errors import OptionError

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
Write = Callable[[str], Path]


def run(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [*arguments])


def checked(*arguments: str) -> Result:
    """Check a configuration without running anything."""
    return run("replay", "demo", *arguments, "--print-config")


@pytest.fixture
def toml(tmp_path: Path) -> Write:
    """Return a function that writes a configuration and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "engine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def device(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a device with a model of another kind."""
    packaged = Path(__file__).parents[2] / "models/stepahead_models/data/profiles/fast.toml"

    def write(kind: str) -> Path:
        path = tmp_path / f"{kind}.toml"
        text = packaged.read_text(encoding="utf-8")
        path.write_text(text.replace('"text-generation"', f'"{kind}"'), encoding="utf-8")
        return path

    return write


# -- the table ------------------------------------------------------------------------------------

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
    (Feature.L3_REMOTE_CACHE, "fast", (), "l3_enabled = true\n"),
    (Feature.DEEPER_NPU_QUEUE, "fast", ("--npu-queue-limit", "2"), ""),
    (Feature.KV_TRANSFER, "fast", (), TRANSFER),
]
IDS = [row[0].name for row in ROWS]
#: What the table has a loop do and the simulation does not have.
UNSIMULATED = {
    Feature.SPECULATIVE_DRAFT: "speculative_config asks for speculative decoding",
    Feature.SPECULATIVE_DRAFT_OTHER: "speculative_config asks for speculative decoding",
    Feature.SPECULATIVE_MTP: "speculative_config asks for speculative decoding",
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
    text: str, beside: str, other: str, toml: Write
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


def test_compare_is_refused_where_one_of_its_loops_is(tiny_trace: Path) -> None:
    """Before anything has run."""
    done = run("compare", str(tiny_trace), "--device", "fast", "--npu-queue-limit", "2")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == refusal(Feature.DEEPER_NPU_QUEUE, "overlap", "fast")


def test_versions_to_choose_from_are_those_of_the_table() -> None:
    """The options name them again, because reading the table takes time that help has not."""
    assert [choice.value for choice in VersionChoice] == [v.value for v in ProductVersion]


def test_a_version_brings_its_defaults_and_its_rows(device: Callable[[str], Path]) -> None:
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


def test_what_a_later_version_can_do_and_the_simulation_cannot_is_refused(toml: Write) -> None:
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


# -- rules ----------------------------------------------------------------------------------------

RULES: tuple[Rule[Any], ...] = (
    *PREFIX_CACHE_RULES,
    *SCHEDULER_RULES,
    *KV_OFFLOAD_RULES,
    *MEMORY_RULES,
    *SPECULATIVE_RULES,
    *KV_TRANSFER_RULES,
    *ENGINE_RULES,
)
SCHEDULER = "[scheduler_config]\n"
TIERS = "[scheduler_config.kv_offload_config]\n"
#: Name of the rule, flags and file that break it alone, and the value that is named.
BROKEN: list[tuple[str, tuple[str, ...], str, str]] = [
    (
        "lookahead-requests-not-negative",
        (),
        "[scheduler_config.prefix_cache_config]\nlookahead_requests = -1\n",
        "-1",
    ),
    ("npu-queue-limit-positive", ("--npu-queue-limit", "0"), "", "0"),
    ("max-processing-samples-positive", (), f"{SCHEDULER}max_processing_samples = 0\n", "0"),
    (
        "offline-has-one-kind",
        (),
        f'{SCHEDULER}is_offline = true\nscheduler_kind = "special"\n',
        "'special'",
    ),
    ("batch-scheduling-budget-positive", (), f"{SCHEDULER}batch_scheduling_budget_ms = 0\n", "0"),
    ("max-concurrency-positive", ("--max-concurrency", "0"), "", "0"),
    (
        "aggressive-batching-without-max-concurrency",
        ("--max-concurrency", "8"),
        f"{SCHEDULER}experimental_aggressive_batching = true\n",
        "8",
    ),
    ("max-num-batched-tokens-positive", ("--max-num-batched-tokens", "0"), "", "0"),
    (
        "round-robin-weighs-nothing",
        (),
        (
            f'{SCHEDULER}data_parallel_routing_policy = "round-robin"\n'
            'data_parallel_scoring_profile = "load"\n'
        ),
        "'load'",
    ),
    ("host-memory-ratio-finite", (f"{OFFLOAD}-host-memory-ratio", "-0.5"), "", "-0.5"),
    ("host-memory-bytes-positive", (), f"{TIERS}host_memory_bytes = 0\n", "0"),
    (
        "host-memory-has-one-budget",
        (),
        f"{TIERS}host_memory_bytes = 9\nhost_memory_ratio = 0.1\n",
        "9",
    ),
    ("enabled-has-a-budget", (), f"{TIERS}enabled = true\n", "true"),
    (
        "write-through-threshold-not-negative",
        (f"{OFFLOAD}-write-through-threshold", "-1"),
        "",
        "-1",
    ),
    ("staging-memory-bytes-positive", (), f"{TIERS}staging_memory_bytes = 0\n", "0"),
    ("reload-needs-a-host-budget", (f"{OFFLOAD}-overlap-l2-reload",), "", "true"),
    (
        "reload-needs-the-host-cache-on",
        (f"{OFFLOAD}-overlap-l2-reload",),
        f"{TIERS}enabled = false\nhost_memory_bytes = 9\n",
        "true",
    ),
    ("host-memory-gb-positive", (f"{OFFLOAD}-host-memory-gb", "0"), "", "0.0"),
    ("host-memory-gb-is-a-byte", (f"{OFFLOAD}-host-memory-gb", "1e-10"), "", "1e-10"),
    ("host-memory-has-one-option", (*GIB, f"{OFFLOAD}-host-memory-ratio", "0.5"), "", "1.0"),
    ("staging-memory-gb-positive", (f"{OFFLOAD}-staging-memory-gb", "-1"), "", "-1.0"),
    ("staging-memory-gb-is-a-byte", (f"{OFFLOAD}-staging-memory-gb", "1e-10"), "", "1e-10"),
    ("speculative-tokens-positive", (), MTP.replace("= 2", "= 0"), "0"),
    ("draft-model-is-named", (), DRAFT.replace('model = "small"\n', ""), "not set"),
    ("mtp-has-no-draft-model", (), f'{MTP}model = "small"\n', "'small'"),
    ("mtp-has-no-draft-artifact", (), f'{MTP}draft_fxb_path = "d.fxb"\n', "'d.fxb'"),
    ("kv-transfer-port-exists", (), TRANSFER.replace("= 1", "= 70000"), "70000"),
    ("kv-transfer-connector-exists", (), f'{TRANSFER}kv_connector = "Other"\n', "'Other'"),
    ("max-model-len-positive", ("--max-model-len", "0"), "", "0"),
]


def test_every_rule_is_broken_here() -> None:
    """A new rule needs an example."""
    assert {row[0] for row in BROKEN} == {rule.name for rule in RULES}


@pytest.mark.parametrize(("name", "flags", "text", "value"), BROKEN, ids=[row[0] for row in BROKEN])
def test_every_rule_is_enforced_on_the_command_line(
    name: str, flags: tuple[str, ...], text: str, value: str, toml: Write
) -> None:
    """Option, value, what was expected and the way out, and exit code 2."""
    rule = next(rule for rule in RULES if rule.name == name)
    done = checked(*flags, "--config", str(toml(text)))
    assert (done.exit_code, done.stderr) == (
        2,
        (
            f"stepahead: {with_flag(rule.option)} is {value}; expected {rule.expected}; "
            f"{rule.way_out}\n"
        ),
    )


def test_a_model_length_above_the_artifact_is_refused(toml: Write) -> None:
    """The configuration can only lower it."""
    done = checked("--device", "fast", "--config", str(toml("max_model_len = 131073\n")))
    assert (done.exit_code, done.stderr) == (
        2,
        (
            "stepahead: max_model_len (--max-model-len) is 131073; expected at most 131072, the "
            "context of the artifact; lower it, or leave it out\n"
        ),
    )


# -- the file -------------------------------------------------------------------------------------


def test_what_is_printed_reads_back_to_the_same(toml: Write) -> None:
    """Every field survives, those without a value too."""
    text = (
        "l3_enabled = true\nmax_model_len = 4096\n"
        '[scheduler_config]\nscheduling_loop_type = "Just_In_Time"\nmax_concurrency = 12\n'
        "[scheduler_config.prefix_cache_config]\nlookahead_requests = 3\n"
        "[scheduler_config.kv_offload_config]\nhost_memory_ratio = 0.75\n"
        "write_through_threshold = 0\nwrite_back = true\noverlap_l2_reload = true\n"
    )
    first = checked("--config", str(toml(text)))
    assert first.exit_code == 0, first.stderr
    for line in (
        "l3_enabled = false",
        "max_model_len = 4096",
        'scheduling_loop_type = "just-in-time"',
        "max_concurrency = 12",
        "lookahead_requests = 3",
        "enabled = true",
        "host_memory_ratio = 0.75",
        "write_through_threshold = 0",
        "write_back = true",
        "overlap_l2_reload = true",
    ):
        assert f"\n{line}\n" in f"\n{first.stdout}"
    again = checked("--config", str(toml(first.stdout)))
    assert again.stdout == first.stdout


def test_flags_win_over_the_file(toml: Write) -> None:
    """A budget on the command line replaces the one in the file."""
    path = toml(
        '[scheduler_config]\nscheduling_loop_type = "overlap"\nmax_concurrency = 12\n'
        "enable_npu_sampling = true\n"
        "[scheduler_config.prefix_cache_config]\nenabled = false\n"
        "[scheduler_config.kv_offload_config]\nhost_memory_ratio = 0.75\n"
    )
    done = checked("--config", str(path), "--device", "fast")
    assert 'scheduling_loop_type = "overlap"\n' in done.stdout
    flags = (
        *("--loop", "eager", "--max-concurrency", "7", "--host-sampling"),
        *("--enable-prefix-caching", f"{OFFLOAD}-host-memory-gb", "2"),
    )
    done = checked("--config", str(path), "--device", "fast", *flags)
    for line in (
        'scheduling_loop_type = "eager"',
        "max_concurrency = 7",
        "enable_npu_sampling = false",
        "host_memory_bytes = 2147483648",
        "host_memory_ratio = 0.0",
    ):
        assert f"\n{line}\n" in done.stdout
    assert done.stdout.count("\nenabled = true\n") == 2
    by_flag = checked("--config", str(path), "--no-enable-overlap-scheduling")
    assert 'scheduling_loop_type = "eager"\n' in by_flag.stdout


def test_the_loop_of_the_file_runs(tiny_trace: Path, toml: Write) -> None:
    """Replay takes it; compare goes by its own list."""
    path = toml('[scheduler_config]\nscheduling_loop_type = "OVERLAP"\nmax_concurrency = 5\n')
    given = (str(tiny_trace), "--device", "fast", "--config", str(path), "--json", "-")
    result = json.loads(run("replay", *given).stdout)
    assert result["config"]["loops"] == {"overlap": {"lookahead": 1, "timing": "early"}}
    assert result["config"]["max_concurrency"] == 5
    both = json.loads(run("compare", *given).stdout)
    assert list(both["runs"]) == ["eager", "overlap"]


def test_flags_that_contradict_each_other_are_refused() -> None:
    """A file cannot contradict a flag, but two flags can."""
    done = checked("--loop", "eager", "--enable-overlap-scheduling")
    assert (done.exit_code, done.stderr) == (
        2,
        ("stepahead: --loop eager contradicts --enable-overlap-scheduling; give one of the two\n"),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "max_model_length = 5\n",
            "max_model_length is not an option; did you mean max_model_len?",
        ),
        (
            "[scheduler_config]\nspare_blocks_ratio = 0.5\n",
            (
                "scheduler_config.spare_blocks_ratio is not an option; it ended with 2026.3; use "
                "lookahead_requests of prefix_cache_config"
            ),
        ),
        (
            "[scheduler_config.kv_offload_config]\nhost = 1\n",
            (
                "scheduler_config.kv_offload_config.host is not an option; the keys here are "
                "enabled, host_memory_ratio, host_memory_bytes, write_through_threshold, "
                "write_back, staging_memory_bytes, overlap_l2_reload"
            ),
        ),
        (
            '[scheduler_config]\nscheduling_loop_type = "lazy"\n',
            (
                "scheduler_config.scheduling_loop_type (--loop) is 'lazy'; expected one of eager, "
                "overlap, just-in-time; leave it out for the default 'eager'"
            ),
        ),
        (
            'scheduler_config = "eager"\n',
            (
                "scheduler_config is 'eager'; expected a table of options; write "
                "[scheduler_config] and its keys below"
            ),
        ),
    ],
)
def test_what_the_configuration_does_not_have_is_refused(
    text: str, sentence: str, toml: Write
) -> None:
    """The sentence says what could have been meant."""
    done = checked("--config", str(toml(text)))
    assert (done.exit_code, done.stderr) == (2, f"stepahead: {sentence}\n")


def test_a_file_that_cannot_be_read_is_named(toml: Write, tmp_path: Path) -> None:
    """No TOML, no text, or not there."""
    path = toml("max_model_len = \n")
    done = checked("--config", str(path))
    assert (done.exit_code, done.stderr) == (
        2,
        (
            f"stepahead: {path} is not TOML: Invalid value (at line 1, column 17); correct it, or "
            "start without it\n"
        ),
    )
    path.write_bytes(b"\xff")
    done = checked("--config", str(path))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"stepahead: {path} is not TOML: it is not UTF-8 (")
    missing = tmp_path / "missing.toml"
    done = checked("--config", str(missing))
    assert (done.exit_code, done.stderr) == (
        2,
        f"stepahead: {missing}: no such file or directory; check the path\n",
    )


def test_one_configuration_is_printed_at_a_time() -> None:
    """Two documents would not be one."""
    done = run("compare", "demo", "--print-config")
    assert (done.exit_code, done.stderr) == (
        2,
        (
            "stepahead: --print-config prints the configuration of one loop, and here run 2; name "
            "one with --loops, or use replay\n"
        ),
    )
    one = run("compare", "demo", "--loops", "overlap", "--print-config")
    assert one.stdout == checked("--loop", "overlap").stdout


# -- warnings -------------------------------------------------------------------------------------


def test_the_remote_cache_is_switched_off_with_one_warning_when_overlap_starts(
    tiny_trace: Path, toml: Write
) -> None:
    """After the line that says so, and not when eager starts."""
    done = run(
        *("compare", str(tiny_trace), "--device", "fast", "--log-format", "json"),
        *("--config", str(toml("l3_enabled = true\n"))),
    )
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [
        ("info", "Effective configuration"),
        ("info", "Eager scheduler has started"),
        ("info", "Overlap scheduler has started"),
        (
            "warning",
            (
                "remote KV cache (L3) is switched off with the overlap loop of 2026.4 (even where "
                f"it is configured); {RESTART} if you depend on it"
            ),
        ),
    ]
    assert lines[0]["product_version"] == "2026.4"


def test_what_has_no_effect_in_the_simulation_is_said_once(tiny_trace: Path, toml: Write) -> None:
    """Not once per loop; and a budget for a cache that is off is said too."""
    path = toml(
        "[scheduler_config]\nmax_processing_samples = 9\nis_offline = true\n"
        "[scheduler_config.prefix_cache_config]\nlookahead_requests = 4\n"
        "[scheduler_config.kv_offload_config]\nenabled = false\nhost_memory_bytes = 9\n"
        "staging_memory_bytes = 9\n"
    )
    done = run("compare", str(tiny_trace), "--device", "fast", "--config", str(path))
    assert done.exit_code == 0, done.stderr
    for sentence in (
        (
            "without effect in the simulation: scheduler_kind, max_processing_samples, is_offline, "
            "prefix_cache_config.lookahead_requests, kv_offload_config.staging_memory_bytes of "
            "scheduler_config"
        ),
        (
            "a host budget is given, but the host KV cache (L2) is off; set enabled of "
            "kv_offload_config, or leave the budget out"
        ),
    ):
        assert done.stderr.count(sentence) == 1
    assert set(WITHOUT_EFFECT) <= set(re.findall(r"\w+", checked().stdout))


# -- the model ------------------------------------------------------------------------------------


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


# -- the table as a command -----------------------------------------------------------------------


@pytest.mark.parametrize("version", list(ProductVersion))
def test_the_table_is_printed_by_version(version: ProductVersion) -> None:
    """Every feature with what both loops do about it."""
    wide = CliRunner(env={"COLUMNS": "300"})
    done = wide.invoke(app, ["compatibility", "--product-version", version.value])
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
