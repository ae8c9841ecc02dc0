"""No option is given in vain: it changes the run, or a sentence says that it does not."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stepahead_tools.options import ReplayOptions
from stepahead_tools.testing import Result, run

OFFLOAD = "--experimental-kv-offload"
HOST = (f"{OFFLOAD}-host-memory-gb", "0.01", f"{OFFLOAD}-write-back")
REMOTE = (f"{OFFLOAD}-host-memory-gb", "0.003", f"{OFFLOAD}-write-back", "--l3-enabled")
DRAFTS = ("--experimental-speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
#: Which loop runs on which device, and with which tiers.
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "eager": ("--loop", "eager", "--goodput", "tpot:0.001"),
    "overlap": ("--loop", "overlap"),
    "just-in-time": ("--loop", "just-in-time", "--goodput", "ttft:2"),
    "a device that takes no changed batch": ("--loop", "overlap", "--device", "roofline-rngd"),
    "host cache": ("--loop", "overlap", *HOST),
    "remote cache": ("--loop", "eager", *REMOTE),
    "remote cache under overlap": ("--loop", "overlap", *REMOTE),
    "drafts": ("--loop", "eager", *DRAFTS),
    "no prefix cache": ("--loop", "eager", "--no-enable-prefix-caching"),
}
#: An example of each option.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "limit": ("--limit", "9"),
    "speed": ("--speed", "3"),
    "load": ("--load", "0.5"),
    "rate": ("--rate", "100"),
    "concurrency": ("--concurrency", "2"),
    "seed": ("--seed", "5"),
    "ends": ("--ends", "length"),
    "warmup": ("--warmup", "3"),
    "goodput": ("--goodput", "e2el:1"),
    "goodput_single_token": ("--goodput-single-token", "fails"),
    "lookahead": ("--lookahead", "2"),
    "npu_queue_limit": ("--npu-queue-limit", "2"),
    "max_num_batched_tokens": ("--max-num-batched-tokens", "24"),
    "max_concurrency": ("--max-concurrency", "2"),
    "max_model_len": ("--max-model-len", "120"),
    "order": ("--order", "priority"),
    "prefer": ("--prefer", "prefill"),
    "block_size": ("--block-size", "8"),
    "num_blocks": ("--num-blocks", "30"),
    "prune": ("--prune",),
    "late_joiners": ("--late-joiners",),
    "late_share": ("--late-share", "40"),
    "enable_prefix_caching": ("--no-enable-prefix-caching",),
    "experimental_kv_offload_host_memory_gb": (f"{OFFLOAD}-host-memory-gb", "0.2"),
    "experimental_kv_offload_host_memory_ratio": (f"{OFFLOAD}-host-memory-ratio", "4"),
    "experimental_kv_offload_write_through_threshold": (
        f"{OFFLOAD}-write-through-threshold",
        "1",
    ),
    "experimental_kv_offload_write_back": (f"{OFFLOAD}-write-back",),
    "experimental_kv_offload_overlap_l2_reload": (f"{OFFLOAD}-overlap-l2-reload",),
    "experimental_kv_offload_staging_memory_gb": (f"{OFFLOAD}-staging-memory-gb", "3"),
    "l3_enabled": ("--l3-enabled",),
    "remote_gb_per_s": ("--remote-gb-per-s", "0.5"),
    "remote_latency_us": ("--remote-latency-us", "50"),
    "remote_miss": ("--remote-miss", "40"),
    "remote_failure": ("--remote-failure", "40"),
    "experimental_speculative_config": (DRAFTS[0], DRAFTS[1].replace("2", "3")),
    "draft_acceptance": ("--draft-acceptance", "0.2"),
    "draft_step_us": ("--draft-step-us", "3"),
    "draft_token_us": ("--draft-token-us", "30"),
    "device": ("--device", "roofline-rngd"),
    "cpu_scale": ("--cpu-scale", "3"),
    "npu_sampling": ("--npu-sampling",),
    "noise": ("--noise", "20"),
    "unchecked": ("--unchecked",),
}
#: Options that are not to change a run, and why.
QUIET = {
    "trace": "it is no option",
    "loop": "the combinations choose it",
    "enable_overlap_scheduling": "it names the loop again, or contradicts it",
    "json": "where the result goes",
    "journal": "where the events go",
    "log_format": "how the log looks",
    "check": "it looks for faults",
    "skip_bad_lines": "the trace has none",
    "config": "what is in the file counts",
    "product_version": "it names the rules that the others are checked by",
    "print_config": "nothing runs",
}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Write a load on which everything matters: turns, priorities, stops, clients that leave."""
    path = tmp_path / "sessions.jsonl"
    lines: list[dict[str, Any]] = []
    for turn in range(4):
        for session in range(6):
            blocks = 2 * (turn + 1)
            number = len(lines)
            lines.append(
                {
                    "timestamp": number / 4,
                    "input_length": 16 * blocks,
                    "output_length": 1 + number % 9,
                    "max_tokens": 1 + number % 9 + (0 if number % 4 == 0 else 6),
                    "priority": -number % 5,
                    "hash_block_size": 16,
                    "hash_ids": [100 * session + place for place in range(blocks)],
                }
            )
    lines[17]["cancel_after_tokens"] = 2
    for number in (3, 8, 13, 21):
        lines[number]["cancel_after_ms"] = number / 4
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def outcome(*arguments: str) -> tuple[Mapping[str, Any] | None, set[str]]:
    """Return the figures of a run, or None where it is refused, and what it was warned of."""
    device = () if "--device" in arguments else ("--device", "fast")
    blocks = () if "--num-blocks" in arguments else ("--num-blocks", "24")
    budget = "--max-num-batched-tokens"
    tokens = () if budget in arguments else (budget, "64")
    output = ("--json", "-", "--log-format", "json")
    done = run("replay", *arguments, *device, *blocks, *tokens, *output)
    assert done.exit_code in {0, 2}, done.stderr
    if done.exit_code:
        return None, set()
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    warnings = {line["event"] for line in lines if line["level"] == "warning"}
    runs: Mapping[str, Any] = json.loads(done.stdout)["runs"]
    return runs, warnings


def test_every_option_has_an_example_or_a_reason() -> None:
    """A new option is in one of the tables, and no example is for an option that went."""
    assert not set(EXAMPLES) & set(QUIET)
    assert {field.name for field in fields(ReplayOptions)} == {*EXAMPLES, *QUIET}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_an_option_changes_the_run_or_says_that_it_does_not(sessions: Path, name: str) -> None:
    """Whoever gives an option expects an effect; a silent one is taken for one that worked."""
    chosen = COMBINATIONS[name]
    runs, warnings = outcome(str(sessions), *chosen)
    assert runs is not None
    silent: list[str] = []
    for option, words in EXAMPLES.items():
        # The eager loop drops a row only if its client leaves while the batch is being built.
        if set(words) <= set(chosen) or (option == "prune" and "eager" in chosen):
            continue
        changed, more = outcome(str(sessions), *chosen, *words)
        if changed == runs and more == warnings:
            silent.append(option)
    assert silent == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("replay", "demo", "--remote-miss", "5", "--remote-latency-us", "1"),
            (
                "--remote-latency-us and --remote-miss have no effect where no loop has a remote "
                "KV cache (L3); leave them out, or give --l3-enabled and a loop that has one"
            ),
        ),
        (
            ("compare", "demo", "--l3-enabled", "--loops", "overlap", "--remote-miss", "5"),
            (
                "--remote-miss has no effect where no loop has a remote KV cache (L3); leave it "
                "out, or give --l3-enabled and a loop that has one"
            ),
        ),
        (
            ("compare", "demo", "--late-joiners"),
            (
                "--late-joiners has no effect where no loop selects just in time; leave it out, or "
                "run the just-in-time loop"
            ),
        ),
        (
            ("replay", "demo", "--goodput", "ttft:5", "--goodput-single-token", "fails"),
            (
                "--goodput-single-token has no effect without an objective for TPOT; leave it out, "
                "or give one, for example --goodput tpot:30"
            ),
        ),
        (
            (
                *("compare", "demo", "--loops", "eager", "--max-num-batched-tokens"),
                *("1", *DRAFTS, "--draft-acceptance", "0.5"),
            ),
            (
                "--draft-acceptance has no effect where a batch has no room for drafts; leave it "
                "out, or give batches 2 tokens or more"
            ),
        ),
        (
            ("replay", "demo", "--print-config", "--json", "-", "--check"),
            (
                "--json and --check have no effect beside --print-config, which runs nothing; "
                "leave them out, or run without --print-config"
            ),
        ),
        (
            ("advise", "demo", "--goodput", "ttft:5", "--seeds", "9"),
            (
                "--seeds has no effect where no arrivals are drawn at random; leave it out, or "
                "give --poisson"
            ),
        ),
        (
            ("advise", "demo", "--goodput", "ttft:5", "--poisson", "--vary", "concurrency"),
            (
                "--poisson has no effect with --vary concurrency, where nothing arrives at random; "
                "leave it out, or search over the load"
            ),
        ),
        (
            ("mutants", "--list", "--shrink", "--tables"),
            "--list only names mutants; leave out --shrink, --tables",
        ),
    ],
)
def test_what_would_change_nothing_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence with the way out, exit code 2."""
    done = run(*arguments)
    assert (done.exit_code, done.stderr) == (2, f"stepahead: {sentence}\n")


@pytest.mark.parametrize(
    ("text", "flags", "names"),
    [
        ("", (f"{OFFLOAD}-write-back",), "write_back"),
        ("", (f"{OFFLOAD}-write-through-threshold", "0"), "write_through_threshold"),
        ("write_back = true\nwrite_through_threshold = 5\n", (), "both"),
        ("write_back = true\n", (f"--no-{OFFLOAD[2:]}-write-back",), ""),
    ],
)
def test_copies_to_a_host_cache_that_is_off_are_said_to_have_no_effect(
    text: str,
    flags: tuple[str, ...],
    names: str,
    toml: Callable[[str], Path],
    checked: Callable[..., Result],
) -> None:
    """The product takes them in silence, so this is a warning; flag or file."""
    path = toml(f"[scheduler_config.kv_offload_config]\n{text}")
    told = {
        name: f"scheduler_config.kv_offload_config.{name} ({OFFLOAD}-{name.replace('_', '-')})"
        for name in ("write_through_threshold", "write_back")
    }
    done = checked("--config", str(path), *flags)
    assert done.exit_code == 0, done.stderr
    if not names:
        assert not done.stderr
        return
    listed = ", ".join(told.values()) if names == "both" else told[names]
    assert (
        f"without effect, since the host KV cache (L2) is off: {listed}; give a host budget, or "
        "leave that out" in done.stderr
    )


def test_pruning_on_a_device_that_takes_no_changed_batch_is_said_to_mask(
    checked: Callable[..., Result],
) -> None:
    """Dead rows run then, whatever was asked for."""
    sentence = (
        "device rngd-llama-3.1-8b takes no changed batch, so --prune masks the rows of ended "
        "requests and drops none"
    )
    assert sentence in checked("--prune").stderr
    assert not checked("--prune", "--device", "fast").stderr


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (
            "1",
            (
                "without effect, since max_num_batched_tokens is 1: speculative_config "
                "(--experimental-speculative-config); give batches more tokens, or leave that out"
            ),
        ),
        (
            "2",
            (
                "without effect, since max_num_batched_tokens is 2: drafts beyond the first 1 of "
                "a row; give batches more tokens, or draft 1 at most"
            ),
        ),
        ("3", ""),
    ],
)
def test_drafts_that_no_batch_has_room_for_are_said_to_have_no_effect(
    sessions: Path, checked: Callable[..., Result], budget: str, words: str
) -> None:
    """A row has its own token first; what was assumed about its drafts is refused."""
    given = (*DRAFTS, "--max-num-batched-tokens", budget)
    assert words in checked(*given).stderr
    assert bool(words) == ("without effect" in checked(*given).stderr)
    found, _ = outcome(str(sessions), *given, "--draft-acceptance", "1")
    assert (found is None) == (budget == "1")


def test_the_remote_cache_of_a_later_loop_is_not_left_out(sessions: Path) -> None:
    """Loops in any order: eager has it, overlap has not."""
    runs: list[Any] = []
    for loops in ("eager,overlap", "overlap,eager"):
        output = ("--json", "-", "--device", "fast", "--num-blocks", "24")
        done = run("compare", str(sessions), "--loops", loops, *REMOTE, *output)
        assert done.exit_code == 0, done.stderr
        runs.append(json.loads(done.stdout)["runs"])
    assert runs[0]["eager"]["prefix_hit_tokens_by_tier"]["remote"] > 0
    assert runs[0] == runs[1]
