"""Every rule of the configuration, broken on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepahead_models.product.engine import ENGINE_RULES, KV_TRANSFER_RULES
from stepahead_models.product.offload import KV_OFFLOAD_RULES, MEMORY_RULES
from stepahead_models.product.options import with_flag
from stepahead_models.product.rules import Rule
from stepahead_models.product.scheduler import PREFIX_CACHE_RULES, SCHEDULER_RULES
from stepahead_models.product.speculation import SPECULATIVE_RULES
from stepahead_tools.testing import Result

OFFLOAD = "--experimental-kv-offload"
GIB = (f"{OFFLOAD}-host-memory-gb", "1")
Check = Callable[..., Result]
Write = Callable[[str], Path]

RULES: tuple[Rule[Any], ...] = (
    *PREFIX_CACHE_RULES,
    *SCHEDULER_RULES,
    *KV_OFFLOAD_RULES,
    *MEMORY_RULES,
    *SPECULATIVE_RULES,
    *KV_TRANSFER_RULES,
    *ENGINE_RULES,
)
DRAFT = (
    '[speculative_config]\nmethod = "draft_model"\nnum_speculative_tokens = 2\nmodel = "small"\n'
)
MTP = '[speculative_config]\nmethod = "mtp"\nnum_speculative_tokens = 2\n'
TRANSFER = '[kv_transfer_config]\nhost = "node"\nport = 1\n'
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
def test_every_rule_is_enforced_on_the_command_line(  # noqa: PLR0913, PLR0917 # with fixtures
    name: str, flags: tuple[str, ...], text: str, value: str, toml: Write, checked: Check
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


def test_a_model_length_above_the_artifact_is_refused(toml: Write, checked: Check) -> None:
    """The configuration can only lower it."""
    done = checked("--device", "fast", "--config", str(toml("max_model_len = 131073\n")))
    assert (done.exit_code, done.stderr) == (
        2,
        (
            "stepahead: max_model_len (--max-model-len) is 131073; expected at most 131072, the "
            "context of the artifact; lower it, or leave it out\n"
        ),
    )
