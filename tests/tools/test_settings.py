"""What options mean together, and the sentences for those that contradict each other."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stepahead import BatchPreference, ConfigError, WaitingOrder
from stepahead_models.profiles import load_profile
from stepahead_tools.engine_options import OrderChoice, PreferChoice
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP, chosen_loop, compared_loops
from stepahead_tools.options import CompareOptions, ReplayOptions
from stepahead_tools.pacing import Pacing
from stepahead_tools.settings import DEMO_LOAD, objectives, resolve

FAST = load_profile("fast")
REPLAY = ReplayOptions(trace="t.jsonl")
COMPARE = CompareOptions(trace="t.jsonl")


def refusal(sentence: str) -> Any:  # noqa: ANN401 # pytest's context manager
    """Expect an option error with exactly this sentence."""
    return pytest.raises(OptionError, match=f"^{re.escape(sentence)}$")


def test_defaults_come_from_the_device() -> None:
    """Rows, chunk, model length and blocks are those of the profile; the budget is one chunk."""
    settings = resolve(REPLAY, FAST)
    limits = FAST.limits
    assert settings.max_concurrency == limits.max_concurrency.value
    assert settings.max_model_len == limits.max_model_len.value
    assert settings.max_tokens_per_row == limits.max_tokens_per_row.value
    assert settings.max_num_batched_tokens == max(
        limits.max_tokens_per_row.value, limits.max_concurrency.value
    )
    assert settings.num_blocks == FAST.num_blocks(16)
    assert settings.pacing == Pacing("recorded")


def test_options_reach_the_kernel() -> None:
    """Order, preference, caching, sizes and lookahead stand in the kernel's configuration."""
    options = replace(
        REPLAY,
        order=OrderChoice.PRIORITY,
        prefer=PreferChoice.PREFILL,
        enable_prefix_caching=False,
        block_size=8,
        num_blocks=77,
        max_num_batched_tokens=99,
        max_concurrency=5,
        max_model_len=1000,
        lookahead=3,
        enable_overlap_scheduling=True,
    )
    config = resolve(options, FAST).kernel_config(chosen_loop(None, options))
    assert config.order is WaitingOrder.PRIORITY
    assert config.preference is BatchPreference.PREFILL_FIRST
    assert not config.prefix_caching
    assert (config.block_size, config.num_blocks) == (8, 77)
    assert (config.max_num_batched_tokens, config.max_concurrency) == (99, 5)
    assert (config.max_model_len, config.lookahead) == (1000, 3)


@pytest.mark.parametrize(
    ("name", "flag", "expected"),
    [
        (None, None, EAGER),
        (None, False, EAGER),
        (None, True, OVERLAP),
        ("eager", None, EAGER),
        ("eager", False, EAGER),
        ("overlap", True, OVERLAP),
        ("just-in-time", True, JUST_IN_TIME),
    ],
)
def test_the_loop_is_eager_unless_chosen(
    name: str | None,
    flag: bool | None,  # noqa: FBT001 # a case of the table above
    expected: object,
) -> None:
    """Loop name and product flag choose the same thing, or only one is given."""
    assert chosen_loop(name, replace(REPLAY, enable_overlap_scheduling=flag)) == expected


def test_a_loop_and_a_flag_that_contradict_each_other_are_refused() -> None:
    """Both directions have the same sentence."""
    with refusal("--loop eager contradicts --enable-overlap-scheduling; give one of the two"):
        chosen_loop("eager", replace(REPLAY, enable_overlap_scheduling=True))
    with refusal("--loop overlap contradicts --no-enable-overlap-scheduling; give one of the two"):
        chosen_loop("overlap", replace(REPLAY, enable_overlap_scheduling=False))


def test_lookahead_belongs_to_a_loop_that_looks_ahead() -> None:
    """Overlap takes 1 to 8, eager none."""
    assert chosen_loop("eager", replace(REPLAY, lookahead=0)) == EAGER
    with refusal(
        "--lookahead 2 contradicts the eager loop, which prepares nothing ahead; leave it out, or "
        "choose the overlap loop"
    ):
        chosen_loop(None, replace(REPLAY, lookahead=2))
    with refusal(
        "--lookahead 0 contradicts the overlap loop; give 1 to 8, or run the eager loop alone"
    ):
        chosen_loop("overlap", replace(REPLAY, lookahead=0))
    with refusal(
        "--lookahead 1 contradicts the eager loop, which prepares nothing ahead; leave it out, or "
        "choose the overlap loop"
    ):
        compared_loops(replace(COMPARE, loops="eager", lookahead=1))


def test_compared_loops_are_named_once_each() -> None:
    """Names are split at commas, in order; unknown and repeated ones are refused."""
    assert compared_loops(COMPARE) == (EAGER, OVERLAP)
    assert compared_loops(replace(COMPARE, loops="Overlap, eager")) == (OVERLAP, EAGER)
    with refusal(
        "--loops names 'lazy', which is no loop; give some of eager, overlap, just-in-time, "
        "separated by commas"
    ):
        compared_loops(replace(COMPARE, loops="eager,lazy"))
    with refusal("--loops eager,eager names a loop twice; give each one once"):
        compared_loops(replace(COMPARE, loops="eager,eager"))


def test_the_flag_must_agree_with_the_compared_loops() -> None:
    """It chooses one loop, so it can only contradict or repeat the list."""
    with refusal(
        "--no-enable-overlap-scheduling contradicts --loops eager,overlap; leave the flag out, or "
        "give --loops eager"
    ):
        compared_loops(replace(COMPARE, enable_overlap_scheduling=False))
    with refusal(
        "--enable-overlap-scheduling contradicts --loops eager; leave the flag out, or name "
        "overlap in --loops"
    ):
        compared_loops(replace(COMPARE, loops="eager", enable_overlap_scheduling=True))


def test_one_option_sets_the_arrivals() -> None:
    """Speed, load, rate and concurrency exclude each other."""
    assert resolve(replace(REPLAY, rate=2.5), FAST).pacing == Pacing("rate", 2.5)
    assert resolve(replace(REPLAY, trace="demo"), FAST).pacing == Pacing("load", DEMO_LOAD)
    assert resolve(replace(REPLAY, trace="demo", speed=1.0), FAST).pacing == Pacing("speed", 1.0)
    with refusal("--load and --rate each set when requests arrive; give one of them"):
        resolve(replace(REPLAY, load=0.5, rate=2.0), FAST)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"limit": 0}, "--limit 0 is out of range; give 1 or more"),
        ({"concurrency": 0}, "--concurrency 0 is out of range; give 1 or more"),
        ({"block_size": 0}, "--block-size 0 is out of range; give 1 or more"),
        ({"num_blocks": -1}, "--num-blocks -1 is out of range; give 1 or more"),
        ({"warmup": -1}, "--warmup -1 is out of range; give 0 or more requests"),
        ({"speed": 0.0}, "--speed 0 is out of range; give a number above 0"),
        ({"load": -1.0}, "--load -1 is out of range; give a number above 0"),
        ({"rate": float("inf")}, "--rate inf is out of range; give a number above 0"),
        ({"cpu_scale": -0.5}, "--cpu-scale -0.5 is out of range; give a number from 0 to 1000000"),
        (
            {"cpu_scale": 1e300},
            "--cpu-scale 1e+300 is out of range; give a number from 0 to 1000000",
        ),
        ({"seed": -1}, "--seed -1 is out of range; give 0 or more"),
        (
            {"noise": 100.00000001},
            "--noise 100.00000001 is out of range; give a percentage from 0 to below 100",
        ),
        ({"noise": 100.0}, "--noise 100 is out of range; give a percentage from 0 to below 100"),
        (
            {"max_concurrency": 100_000},
            "--max-concurrency 100000 is out of range on device fast; give 1 to 1024",
        ),
        (
            {"max_model_len": 131_073},
            "--max-model-len 131073 is out of range on device fast; give 1 to 131072",
        ),
    ],
)
def test_values_out_of_range_are_refused(given: dict[str, Any], sentence: str) -> None:
    """The sentence names the option, the value and the range."""
    with refusal(sentence):
        resolve(replace(REPLAY, **given), FAST)


def test_what_only_the_kernel_limits_is_refused_by_the_kernel() -> None:
    """A model length of 1 leaves no room for prompt and output."""
    settings = resolve(replace(REPLAY, max_model_len=1), FAST)
    sentence = "max_model_len=1 is not usable; give an integer from 2 to 1073741824"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        settings.kernel_config(EAGER)


def test_objectives_are_names_and_milliseconds() -> None:
    """Words may come one by one, with spaces or with commas."""
    found = objectives(["ttft:200 tpot:30.5", "e2el:1e4"], "fails")
    assert found is not None
    assert (found.ttft_ns, found.tpot_ns, found.e2el_ns) == (
        200_000_000,
        30_500_000,
        10_000_000_000,
    )
    assert found.lone_token == "fails"  # noqa: S105 # no secret
    assert objectives(None, "meets") is None


@pytest.mark.parametrize("word", ["itl:5", "ttft", "ttft:", "ttft:-1", "ttft:0", "tpot:nan"])
def test_what_is_no_objective_is_refused(word: str) -> None:
    """The sentence shows what an objective looks like."""
    with refusal(
        f"--goodput {word!r} is no objective; give ttft, tpot or e2el, a colon and milliseconds "
        "above 0, for example ttft:200"
    ):
        objectives([word], "meets")


def test_an_objective_given_twice_is_refused() -> None:
    """Two limits for one metric would hide each other."""
    with refusal("--goodput names ttft twice; give each objective once"):
        objectives(["ttft:1", "ttft:2"], "meets")


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("fast", None, False),
        ("fast", True, True),
        ("fast", False, False),
        ("rngd-llama-3.1-8b", True, False),
    ],
)
def test_dead_rows_are_dropped_where_the_device_takes_a_changed_batch(
    device: str,
    given: bool | None,  # noqa: FBT001 # a case of the table above
    expected: bool,  # noqa: FBT001 # a case of the table above
) -> None:
    """By default only where it is free, which no shipped device with an answer of its own is."""
    settings = resolve(replace(REPLAY, prune=given), load_profile(device))
    assert settings.prune is expected
    assert settings.kernel_config(OVERLAP).prune is expected


def test_dead_rows_are_dropped_by_default_where_that_is_free() -> None:
    """A device that takes a changed batch and asks nothing for it."""
    changed = msgspec.structs.replace(FAST.changed_batch, base_ns=None, per_row_ns=None)
    free = msgspec.structs.replace(FAST, changed_batch=changed)
    assert resolve(REPLAY, free).prune
    assert not resolve(replace(REPLAY, prune=False), free).prune


def test_late_joiners_and_the_late_share_are_those_of_just_in_time() -> None:
    """The share is in percent; joining late means nothing to the other loops."""
    settings = resolve(replace(REPLAY, late_joiners=True, late_share=2.5), FAST)
    assert settings.kernel_config(JUST_IN_TIME).late_joiners
    assert settings.kernel_config(JUST_IN_TIME).late_share_ppm == 25_000
    assert not settings.kernel_config(OVERLAP).late_joiners
    with refusal("--late-share 0 is out of range; give a percentage from 0.0001 to 50"):
        resolve(replace(REPLAY, late_share=0.0), FAST)
