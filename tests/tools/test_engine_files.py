"""The configuration in a file and in flags: what is printed, refused and warned of."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stepahead_tools.engines import WITHOUT_EFFECT
from stepahead_tools.testing import Result, run

RESTART = "restart with --no-enable-overlap-scheduling or SchedulingLoop.EAGER"
OFFLOAD = "--experimental-kv-offload"
GIB = (f"{OFFLOAD}-host-memory-gb", "1")
Check = Callable[..., Result]
Write = Callable[[str], Path]


# -- the file --------------------------------------------------------------------------------------


def test_what_is_printed_reads_back_to_the_same(toml: Write, checked: Check) -> None:
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


def test_flags_win_over_the_file(toml: Write, checked: Check) -> None:
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


def test_flags_that_contradict_each_other_are_refused(checked: Check) -> None:
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
    text: str, sentence: str, toml: Write, checked: Check
) -> None:
    """The sentence says what could have been meant."""
    done = checked("--config", str(toml(text)))
    assert (done.exit_code, done.stderr) == (2, f"stepahead: {sentence}\n")


def test_a_file_that_cannot_be_read_is_named(toml: Write, tmp_path: Path, checked: Check) -> None:
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


def test_one_configuration_is_printed_at_a_time(checked: Check) -> None:
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


# -- warnings --------------------------------------------------------------------------------------


def test_the_remote_cache_is_switched_off_with_one_warning_when_overlap_starts(
    tiny_trace: Path, toml: Write
) -> None:
    """After the line that says so, and not when eager starts."""
    done = run(
        *("compare", str(tiny_trace), "--device", "fast", "--log-format", "json"),
        *("--config", str(toml("l3_enabled = true\n")), *GIB),
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


def test_what_has_no_effect_in_the_simulation_is_said_once(
    tiny_trace: Path, toml: Write, checked: Check
) -> None:
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
