"""The cache tiers behind the NPU's, from the command line to the result."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepahead_models.product import read_engine_config
from stepahead_models.profiles import load_profile
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER, OVERLAP
from stepahead_tools.options import ReplayOptions
from stepahead_tools.runs import remote_store
from stepahead_tools.settings import Settings, resolve
from stepahead_tools.testing import run

FAST = load_profile("fast")
BLOCK_BYTES = 16 * FAST.memory.kv_bytes_per_token.value
REPLAY = ReplayOptions(trace="t.jsonl")
OFFLOAD = "--experimental-kv-offload"
SESSIONS, TURNS = 6, 5


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Write chats that take turns, each prompt beginning with the one before it."""
    path = tmp_path / "chats.jsonl"
    lines: list[dict[str, object]] = []
    for turn in range(TURNS):
        for session in range(SESSIONS):
            blocks = 2 * (turn + 1)
            lines.append(
                {
                    "timestamp": 40 * len(lines),
                    "input_length": 16 * blocks,
                    "output_length": 4,
                    "max_tokens": 8,
                    "hash_block_size": 16,
                    "hash_ids": [100 * session + place for place in range(blocks)],
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def compared(chats: Path, *arguments: str) -> dict[str, Any]:
    """Compare both loops on a machine whose pool is too small for all chats."""
    given = ("compare", str(chats), "--device", "fast", "--num-blocks", "24", "--json", "-")
    done = run(*given, *arguments)
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def hits(result: Mapping[str, Any], loop: str) -> dict[str, int]:
    """Return hit tokens by tier."""
    tiers: dict[str, int] = result["runs"][loop]["prefix_hit_tokens_by_tier"]
    return tiers


def host(count: int, *more: str) -> tuple[str, ...]:
    """Give the host a budget of so many blocks."""
    gib = count * BLOCK_BYTES / (1 << 30)
    return (f"{OFFLOAD}-host-memory-gb", repr(gib), *more)


def settings(**given: Any) -> Settings:  # noqa: ANN401 # fields of the options
    """Resolve options on the fast device."""
    return resolve(replace(REPLAY, **given), FAST)


@pytest.mark.parametrize(
    "options",
    [
        (f"{OFFLOAD}-write-back",),
        (f"{OFFLOAD}-write-through-threshold", "1"),
        (f"{OFFLOAD}-write-back", f"{OFFLOAD}-overlap-l2-reload"),
    ],
)
def test_the_host_cache_gives_back_what_the_npu_has_lost(
    chats: Path, options: tuple[str, ...]
) -> None:
    """More tokens are found, from the host, and the output is the same in both loops."""
    without = compared(chats)
    tiers = compared(chats, *host(1_000, *options))
    for loop in ("eager", "overlap"):
        before, after = without["runs"][loop], tiers["runs"][loop]
        assert hits(without, loop)["host"] == before["stored_blocks"] == 0
        assert hits(tiers, loop)["host"] > 0
        assert after["prefix_hit_tokens"] == sum(hits(tiers, loop).values())
        assert after["prefix_hit_tokens"] > before["prefix_hit_tokens"]
        assert after["stored_blocks"] > 0
        assert after["tokens_digest"] == before["tokens_digest"]
    config = tiers["config"]
    assert config["host_pages"] == 1_000
    assert config["write_back"] == (f"{OFFLOAD}-write-back" in options)
    assert config["overlap_l2_reload"] == (f"{OFFLOAD}-overlap-l2-reload" in options)


@pytest.mark.parametrize(
    ("loop", "options", "reached"),
    [
        ("overlap", (*host(20, f"{OFFLOAD}-write-through-threshold", "1"),), ("host",)),
        ("just-in-time", (*host(60, f"{OFFLOAD}-write-back"),), ("host",)),
        (
            "overlap",
            host(60, f"{OFFLOAD}-write-back", f"{OFFLOAD}-overlap-l2-reload"),
            ("host",),
        ),
        (
            "eager",
            host(
                20,
                "--l3-enabled",
                "--remote-miss",
                "20",
                "--remote-failure",
                "20",
                f"{OFFLOAD}-write-back",
                f"{OFFLOAD}-overlap-l2-reload",
            ),
            ("host", "remote"),
        ),
        (
            "eager",
            host(
                60,
                f"{OFFLOAD}-write-back",
                "--experimental-speculative-config",
                '{"method": "mtp", "num_speculative_tokens": 2}',
            ),
            ("host",),
        ),
    ],
)
def test_every_tier_can_be_checked(
    chats: Path, loop: str, options: tuple[str, ...], reached: tuple[str, ...]
) -> None:
    """All invariants hold after each step, copies happen, and looking on changes no byte."""
    given = ("replay", str(chats), "--device", "fast", "--num-blocks", "24", "--loop", loop)
    checked = run(*given, *options, "--json", "-", "--check")
    assert checked.exit_code == 0, checked.stderr
    result: dict[str, Any] = json.loads(checked.stdout)
    found = hits(result, loop)
    assert [tier for tier in reached if not found[tier]] == []
    assert checked.stdout == run(*given, *options, "--json", "-").stdout


def test_the_table_shows_hits_by_tier(chats: Path) -> None:
    """Where there is a tier behind the NPU's; and the configuration says what it is."""
    given = ("replay", str(chats), "--device", "fast", "--num-blocks", "24")
    words = " ".join(run(*given, *host(1_000, f"{OFFLOAD}-write-back")).stdout.split())
    assert "host KV 1000 blocks, written through at 2 hits, written back, reloaded" in words
    for label in ("prefix hit tokens", "on the NPU (L1)", "on the host (L2)", "stored blocks"):
        assert label in words
    plain = run(*given).stdout
    assert "prefix hit tokens" in plain
    assert "host KV" not in plain
    assert "(L2)" not in plain


def test_a_journal_with_copies_replays_to_the_same_digests(chats: Path, tmp_path: Path) -> None:
    """Loads, stores and their ends are lines like others."""
    path = tmp_path / "run.jsonl"
    options = host(1_000, f"{OFFLOAD}-write-back", f"{OFFLOAD}-overlap-l2-reload")
    compared(chats, *options, "--journal", str(path))
    for loop in ("eager", "overlap"):
        written = path.with_name(f"run.{loop}.jsonl")
        for word in ("LoadBlocks", "StoreBlocks", "TransferDone"):
            assert word in written.read_text(encoding="utf-8")
        done = run("replay", str(written))
        assert done.exit_code == 0, done.stderr
        assert "events replayed: same commands, same digests." in done.stdout


def test_the_remote_store_serves_the_eager_loop_alone(chats: Path) -> None:
    """A host too small for all chats loses what the remote store keeps."""
    options = host(12, f"{OFFLOAD}-write-back", "--l3-enabled", "--remote-latency-us", "5")
    without, remote = compared(chats, *options[:-3]), compared(chats, *options)
    assert hits(remote, "eager")["remote"] > 0 == hits(remote, "overlap")["remote"]
    assert remote["runs"]["overlap"] == without["runs"]["overlap"]
    assert remote["runs"]["eager"]["tokens_digest"] == without["runs"]["eager"]["tokens_digest"]
    assert (without["config"]["remote"], remote["config"]["remote"]) == (
        None,
        {"bytes_per_s": 10e9, "latency_ns": 5_000, "miss_ppm": 0, "failure_ppm": 0},
    )
    lost = compared(chats, *options, "--remote-miss", "100")
    assert hits(lost, "eager")["remote"] == 0
    failing = compared(chats, *options, "--remote-failure", "100")
    assert failing["runs"]["eager"]["failed_transfers"] > 0 == hits(failing, "eager")["remote"]
    assert failing["runs"]["eager"]["tokens_digest"] == remote["runs"]["eager"]["tokens_digest"]


def test_a_remote_store_that_nothing_fills_is_said(chats: Path) -> None:
    """What goes there is what is copied to the host."""
    done = run("replay", str(chats), "--device", "fast", "--l3-enabled", "--json", "-")
    assert done.exit_code == 0, done.stderr
    assert (
        "the remote KV cache (L3) is filled with what is copied to the host, and the host KV cache "
        "(L2) is off; give a host budget" in done.stderr
    )


def test_host_memory_becomes_blocks_of_the_device() -> None:
    """By GiB, rounded down; or as a share of the pool that the run has."""
    gib = (7 * BLOCK_BYTES + 1) / (1 << 30)
    assert settings(experimental_kv_offload_host_memory_gb=gib).host_pages == 7
    half = settings(experimental_kv_offload_host_memory_ratio=0.5, num_blocks=100)
    assert half.host_pages == 50
    assert settings().host_pages == 0


def test_the_tiers_reach_the_kernel() -> None:
    """The remote store only where nothing is prepared ahead."""
    given = settings(
        experimental_kv_offload_host_memory_ratio=0.5,
        experimental_kv_offload_write_through_threshold=0,
        experimental_kv_offload_write_back=True,
        experimental_kv_offload_overlap_l2_reload=True,
        num_blocks=100,
        l3_enabled=True,
        remote_latency_us=0.5,
        remote_gb_per_s=2.0,
        remote_miss=12.5,
        remote_failure=1.0,
        seed=3,
    )
    config = given.kernel_config(EAGER)
    assert (config.host_pages, config.write_through_threshold) == (50, None)
    assert (config.write_back, config.layerwise_reload, config.remote) == (True, True, True)
    assert not given.kernel_config(OVERLAP).remote
    store = remote_store(given, FAST)
    assert store is not None
    assert (store.link.bytes_per_s, store.link.latency_ns) == (2e9, 500)
    assert (store.miss_ppm, store.failure_ppm, store.seed) == (125_000, 10_000, 3)
    assert store.block_bytes == BLOCK_BYTES
    assert remote_store(settings(), FAST) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"experimental_kv_offload_host_memory_gb": 1.0, "enable_prefix_caching": False},
            (
                "the host KV cache (L2) holds blocks of the prefix cache (L1), which is off; leave "
                "out --no-enable-prefix-caching or the host budget"
            ),
        ),
        (
            {"experimental_kv_offload_host_memory_gb": 1e-6},
            (
                "the host budget of 1073 bytes holds no KV block of 524288 bytes; give more, or a "
                "smaller --block-size"
            ),
        ),
        (
            {"l3_enabled": True, "enable_prefix_caching": False},
            (
                "the remote KV cache (L3) holds blocks of the prefix cache (L1), which is off; "
                "leave out --no-enable-prefix-caching, or set l3_enabled to false"
            ),
        ),
        (
            {"l3_enabled": True, "remote_gb_per_s": 0.0},
            "--remote-gb-per-s 0 is out of range; give a number above 0",
        ),
        (
            {"l3_enabled": True, "remote_latency_us": -1.0},
            "--remote-latency-us -1 is out of range; give a number from 0 to 1000000000",
        ),
        (
            {"l3_enabled": True, "remote_miss": 101.0},
            "--remote-miss 101 is out of range; give a percentage from 0 to 100",
        ),
        (
            {"l3_enabled": True, "remote_failure": -0.5},
            "--remote-failure -0.5 is out of range; give a percentage from 0 to 100",
        ),
    ],
)
def test_tiers_that_cannot_be_are_refused(given: dict[str, Any], sentence: str) -> None:
    """The sentence names the value and the way out."""
    with pytest.raises(OptionError, match=f"^{re.escape(sentence)}$"):
        settings(**given)


def test_a_checked_configuration_comes_before_the_flags() -> None:
    """What the check has switched off stays off."""
    config = read_engine_config(options={"max_concurrency": 3})
    given = resolve(replace(REPLAY, l3_enabled=True, max_concurrency=9), FAST, config)
    assert (given.remote, given.max_concurrency) == (None, 3)
