"""The commands as a user meets them: what they print, write and return."""

import json
from pathlib import Path

import pytest

from stepahead_models.traces import bundled_trace
from stepahead_tools.testing import run

SMALL = ("--device", "fast", "--num-blocks", "400")


def test_compare_prints_a_table_a_verdict_and_the_agreement(tiny_trace: Path) -> None:
    """The configuration, every metric with its change, and what it means."""
    done = run("compare", str(tiny_trace), *SMALL)
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "trace tiny (stepahead), 24 requests over 0.2 s, ends by eos" in words
    assert "metric eager overlap change" in words
    for label in ("output tokens/s", "TTFT, ms mean", "TPOT, ms mean", "host gap, ms mean"):
        assert label in words
    assert "on this load: output tokens/s" in words
    assert (
        "Every request completed in more than one loop got the same tokens; no KV block leaked."
        in words
    )


def test_the_log_names_each_loop_that_starts(tiny_trace: Path) -> None:
    """The overlap loop announces itself as the product does, on standard error."""
    done = run("compare", str(tiny_trace), *SMALL, "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == [
        "Effective configuration",
        "Eager scheduler has started",
        "Overlap scheduler has started",
    ]
    assert lines[0]["num_blocks"] == 400
    console = run("replay", str(tiny_trace), *SMALL, "--enable-overlap-scheduling")
    assert "Overlap scheduler has started" in console.stderr
    assert "Eager scheduler" not in console.stderr


def test_the_result_is_written_as_json(tiny_trace: Path, tmp_path: Path) -> None:
    """Every request of the trace has one outcome, in both loops alike."""
    target = tmp_path / "result.json"
    done = run("compare", str(tiny_trace), *SMALL, "--json", str(target))
    assert done.exit_code == 0, done.stderr
    result = json.loads(target.read_text(encoding="utf-8"))
    assert list(result) == ["schema", "trace", "config", "runs", "delta"]
    assert result["schema"] == 1
    assert list(result["runs"]) == ["eager", "overlap"]
    assert list(result["delta"]) == ["overlap"]
    for figures in result["runs"].values():
        counts = figures["requests"]
        outcomes = [counts[name] for name in ("completed", "cancelled", "refused", "errored")]
        assert sum(outcomes) == result["trace"]["requests"] == 24
        assert outcomes[1:] == [2, 1, 0]
        assert figures["leaked_blocks"] == 0
    eager, overlap = result["runs"].values()
    assert eager["hidden_cpu_s"] == 0 < overlap["hidden_cpu_s"]


def test_json_on_standard_output_is_alone_there(tiny_trace: Path) -> None:
    """A pipe gets one document and no table."""
    done = run("replay", str(tiny_trace), *SMALL, "--json", "-")
    assert json.loads(done.stdout)["config"]["loops"] == {
        "eager": {"lookahead": 0, "timing": "early"}
    }


def test_a_journal_replays_to_the_same_digests(tiny_trace: Path, tmp_path: Path) -> None:
    """Compare writes one journal per loop; replay tells it from a trace by its content."""
    done = run("compare", str(tiny_trace), *SMALL, "--journal", str(tmp_path / "run.jsonl"))
    assert done.exit_code == 0, done.stderr
    for loop in ("eager", "overlap"):
        replayed = run("replay", str(tmp_path / f"run.{loop}.jsonl"))
        assert replayed.exit_code == 0, replayed.stderr
        assert "events replayed: same commands, same digests." in replayed.stdout
    one = run("replay", str(tiny_trace), *SMALL, "--journal", str(tmp_path / "one.jsonl"))
    assert one.exit_code == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "run.eager.jsonl").read_bytes()


def test_a_journal_changed_by_one_token_names_its_first_line(
    tiny_trace: Path, tmp_path: Path
) -> None:
    """The line is named, both sides are shown, and the exit code says that something is wrong."""
    path = tmp_path / "run.jsonl"
    run("replay", str(tiny_trace), *SMALL, "--journal", str(path))
    lines = path.read_text(encoding="utf-8").splitlines()
    number, line = next(
        (number, line) for number, line in enumerate(lines, 1) if '"tokens":[[' in line
    )
    token = line.partition('"tokens":[[')[2].partition("]")[0].partition(",")[0]
    lines[number - 1] = line.replace(f"[[{token}", f"[[{int(token) ^ 1}")
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    done = run("replay", str(path))
    assert done.exit_code == 1
    assert f"run.jsonl line {number} is the first that differs" in done.stderr
    assert "recorded: " in done.stderr
    assert "replayed: " in done.stderr


def test_a_journal_carries_its_own_configuration(tiny_trace: Path, tmp_path: Path) -> None:
    """Options that would change the run are refused."""
    path = tmp_path / "run.jsonl"
    run("replay", str(tiny_trace), *SMALL, "--journal", str(path))
    done = run("replay", str(path), "--loop", "eager", "--block-size", "8")
    assert done.exit_code == 2
    assert done.stderr == (
        f"stepahead: {path} is a journal, which carries its own configuration; leave out "
        "--block-size, --loop\n"
    )


def test_invariants_are_checked_when_asked_for(tiny_trace: Path) -> None:
    """A checked run gives the same result as an unchecked one, stretches and all."""
    arguments = ("replay", str(tiny_trace), *SMALL, "--loop", "overlap", "--json", "-")
    checked = run(*arguments, "--check", "--limit", "6")
    assert checked.exit_code == 0, checked.stderr
    assert checked.stdout == run(*arguments, "--limit", "6").stdout


def test_bad_lines_are_skipped_when_asked_for_and_reported(tiny_trace: Path) -> None:
    """Otherwise the first one ends the command, with file, line, field and what was expected."""
    lines = tiny_trace.read_text(encoding="utf-8").splitlines()
    lines[3] = lines[3].replace('"input_length": ', '"input_length": -')
    tiny_trace.write_text("\n".join(lines), encoding="utf-8")
    refused = run("replay", str(tiny_trace), *SMALL)
    assert refused.exit_code == 2
    assert f"stepahead: {tiny_trace}, line 4, field input_length: expected" in refused.stderr
    done = run("replay", str(tiny_trace), *SMALL, "--skip-bad-lines")
    assert done.exit_code == 0
    assert "1 bad line; the first: line 4, field input_length" in " ".join(done.stdout.split())
    assert "bad lines skipped" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("missing.jsonl",), "missing.jsonl: no such file or directory; check the path"),
        (
            ("demo", "--device", "abacus"),
            (
                "device profile 'abacus' is neither a file nor one of fast, rngd-llama-3.1-8b, "
                "roofline-rngd, table-sample; give one of these names or the path of a TOML file"
            ),
        ),
        (
            ("demo", "--limit", "5", "--warmup", "5"),
            "--warmup 5 leaves none of the 5 requests to measure; give at most 4",
        ),
        (
            (str(bundled_trace()), "--limit", "5", "--block-size", "24"),
            (
                "--block-size 24 is not usable: trace 'mooncake_conversation_head' has hash ids "
                "for 512 tokens, which a block size of 24 cannot share; use a divisor or a "
                "multiple of 512, or switch prefix caching off with --no-enable-prefix-caching"
            ),
        ),
        (
            ("demo", "--limit", "4", "--rate", "1", "--npu-sampling", "--device", "table-sample"),
            (
                "NPU sampling on an artifact without a sampler cannot be used with the eager loop "
                "of 2026.4 (the artifact has no sampling kernel); change "
                "scheduler_config.enable_npu_sampling (--experimental-enable-npu-sampling): set "
                "enable_npu_sampling to false, or build the artifact with --enable-sampler"
            ),
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    arguments: tuple[str, ...], sentence: str
) -> None:
    """The sentence goes to standard error and the exit code is 2."""
    device = () if "--device" in arguments else ("--device", "fast")
    done = run("replay", *arguments, *device)
    assert (done.exit_code, done.stderr) == (2, f"stepahead: {sentence}\n")


def test_load_needs_requests_that_can_be_served(tiny_trace: Path) -> None:
    """Where all are refused there is no capacity to scale by."""
    done = run("replay", str(tiny_trace), "--device", "fast", "--num-blocks", "1", "--load", "1")
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "stepahead: --load needs requests that can be served, but all were refused; the first "
        "reason: "
    )


def test_a_deep_queue_under_eager_is_accepted_with_one_warning(tiny_trace: Path) -> None:
    """The kernel keeps one batch dispatched, whatever the product's option says."""
    done = run("replay", str(tiny_trace), *SMALL, "--npu-queue-limit", "3")
    assert done.exit_code == 0
    sentence = "the kernel keeps one batch dispatched; --npu-queue-limit changes nothing here"
    assert done.stderr.count(sentence) == 1


def test_an_overloaded_run_makes_no_claim_about_ttft(tiny_trace: Path) -> None:
    """One row per batch cannot keep up with a request every 70 us."""
    done = run("compare", str(tiny_trace), *SMALL, "--speed", "100", "--max-concurrency", "1")
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert (
        "the waiting line grows to the end (overloaded), so nothing is said about TTFT; "
        "try --load 0.6" in words
    )


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        ("replay", ["--journal", "{trace}"], "--journal {trace} would be written over the trace"),
        (
            "replay",
            ["--journal", "{folder}/out", "--json", "{folder}/out"],
            "--journal {folder}/out would be written over --json",
        ),
        (
            "compare",
            ["--journal", "{folder}/out.j", "--json", "{folder}/out.overlap.j"],
            "--journal {folder}/out.overlap.j would be written over --json",
        ),
    ],
)
def test_nothing_is_written_over_what_is_read_or_written(
    tiny_trace: Path, tmp_path: Path, command: str, words: list[str], sentence: str
) -> None:
    """Under whatever name; the trace is still there afterwards."""
    before = tiny_trace.read_bytes()
    names = {"trace": str(tiny_trace), "folder": str(tmp_path)}
    filled = [word.format(**names) for word in words]
    done = run(command, str(tiny_trace), *SMALL, *filled)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"stepahead: {sentence.format(**names)}; give another file\n"
    assert tiny_trace.read_bytes() == before


@pytest.mark.parametrize("flag", ["--json", "--journal"])
def test_a_target_that_cannot_be_written_is_refused_at_once(
    tiny_trace: Path, tmp_path: Path, flag: str
) -> None:
    """Not after a long run."""
    target = tmp_path / "missing" / "file.json"
    done = run("replay", str(tiny_trace), *SMALL, flag, str(target))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"stepahead: {flag} {target} cannot be written: there is no folder {target.parent}, or it "
        "is a folder itself; give a file in a folder that exists\n"
    )


def test_an_unchecked_run_has_other_tokens_and_the_same_figures(tiny_trace: Path) -> None:
    """Nothing but the tokens, and the note of how they were made, depends on the token model."""
    arguments = ("compare", str(tiny_trace), *SMALL, "--json", "-")
    results = [json.loads(run(*arguments, *more).stdout) for more in ((), ("--unchecked",))]
    models = [result["config"].pop("token_model") for result in results]
    digests = [run.pop("tokens_digest") for result in results for run in result["runs"].values()]
    assert models == ["history hash", "closed form"]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert results[0] == results[1]


def test_a_run_is_checked_or_unchecked(tiny_trace: Path) -> None:
    """Invariants on a run that is to be fast are a contradiction."""
    done = run("replay", str(tiny_trace), *SMALL, "--check", "--unchecked")
    assert done.exit_code == 2
    assert done.stderr == "stepahead: --check contradicts --unchecked; give one of the two\n"


def test_objectives_are_in_the_result(tiny_trace: Path) -> None:
    """Goodput appears with what it was asked for."""
    done = run("replay", str(tiny_trace), *SMALL, "--goodput", "ttft:50", "e2el:1e6", "--json", "-")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["config"]["goodput"] == {
        "ttft_ms": 50.0,
        "tpot_ms": None,
        "e2el_ms": 1000000.0,
        "single_token": "meets",
    }
    assert result["runs"]["eager"]["goodput"] > 0
