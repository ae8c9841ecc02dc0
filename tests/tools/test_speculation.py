"""Speculative decoding from the command line to the result."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from stepahead_models.product.speculation import SpeculativeMethod
from stepahead_models.profiles import load_profile
from stepahead_models.record import RunRecord
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER, JUST_IN_TIME, OVERLAP
from stepahead_tools.metrics import measure
from stepahead_tools.options import ReplayOptions
from stepahead_tools.runs import machine
from stepahead_tools.settings import Settings, resolve
from stepahead_tools.testing import Result, run

FAST = load_profile("fast")
FLAG = "--experimental-speculative-config"
#: All requests at once, in a pool of about two of them.
TIGHT = ("--speed", "1000", "--num-blocks", "16")
REPLAY = ReplayOptions(trace="t.jsonl", experimental_speculative_config="")


def spec(count: int) -> str:
    """Ask for so many drafts of prediction heads."""
    return json.dumps({"method": "mtp", "num_speculative_tokens": count})


def replayed(trace: Path, *arguments: str) -> dict[str, Any]:
    """Replay on the fast device and return the JSON document."""
    done = run("replay", str(trace), "--device", "fast", "--json", "-", *arguments)
    assert done.exit_code == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def settings(**given: Any) -> Settings:  # noqa: ANN401 # options, by name
    """Resolve options of a replay on the fast device."""
    return resolve(replace(REPLAY, **given), FAST)


@pytest.fixture
def staying(tiny_trace: Path) -> Path:
    """Write the tiny trace without its clients that leave, who may get more tokens than before."""
    lines = tiny_trace.read_text(encoding="utf-8").splitlines(keepends=True)
    path = tiny_trace.with_name("staying.jsonl")
    path.write_text("".join(line for line in lines if "cancel" not in line), encoding="utf-8")
    return path


def test_tokens_are_those_of_a_run_without_drafts(staying: Path) -> None:
    """Whatever their number and quality; steps become fewer with good ones."""
    plain = replayed(staying, "--loop", "eager")["runs"]["eager"]
    assert (plain["drafted_tokens"], plain["accepted_tokens"]) == (0, 0)
    assert (plain["draft_acceptance_rate"], plain["tokens_per_row_step"]) == (None, 1.0)
    for count in (1, 2, 4):
        for quality in ("0", "0.5", "1"):
            document = replayed(staying, FLAG, spec(count), "--draft-acceptance", quality)
            found = document["runs"]["eager"]
            for key in ("requests", "leaked_blocks", "tokens_digest"):
                assert found[key] == plain[key]
            assert found["drafted_tokens"] > 0
            assert 1 <= found["tokens_per_row_step"] <= 1 + count
            if quality == "0":
                assert found["accepted_tokens"] == 0
                assert found["tokens_per_row_step"] == 1
            if quality == "1":
                assert found["draft_acceptance_rate"] == 1
                assert found["device_steps"] < plain["device_steps"]


def test_a_run_is_as_long_unchecked(tiny_trace: Path) -> None:
    """The closed form accepts what the memory accepts."""
    given = (FLAG, spec(3), "--draft-acceptance", "0.6", *TIGHT)
    checked = replayed(tiny_trace, *given)["runs"]["eager"]
    unchecked = replayed(tiny_trace, *given, "--unchecked")["runs"]["eager"]
    assert checked.pop("tokens_digest") != unchecked.pop("tokens_digest")
    assert checked == unchecked
    assert checked["preemptions"] > 0


def test_what_decided_the_result_stands_in_it(tiny_trace: Path) -> None:
    """Defaults filled in, and null without speculation."""
    given = ("--draft-acceptance", "0.25", "--draft-token-us", "2.5")
    config = replayed(tiny_trace, FLAG, spec(2), *given)["config"]
    assert config["speculation"] == {
        "method": "mtp",
        "num_speculative_tokens": 2,
        "acceptance_ppm": 250_000,
        "draft_step_ns": 1_000_000,
        "draft_token_ns": 2_500,
    }
    assert replayed(tiny_trace)["config"]["speculation"] is None


def test_assumptions_about_drafts_that_nobody_proposes_are_refused(tiny_trace: Path) -> None:
    """All of them at once, with what they are for."""
    given = ("--draft-acceptance", "0.25", "--draft-step-us", "5", "--draft-token-us", "2.5")
    done = run("replay", str(tiny_trace), "--device", "fast", *given)
    assert (done.exit_code, done.stderr) == (
        2,
        (
            "stepahead: --draft-acceptance and --draft-step-us and --draft-token-us have no effect "
            "where nothing is drafted; leave them out, or give --experimental-speculative-config\n"
        ),
    )


def test_the_file_and_the_flag_mean_the_same(tiny_trace: Path, toml: Callable[[str], Path]) -> None:
    """To the byte; and the flag wins over the file."""
    text = '[speculative_config]\nmethod = "mtp"\nnum_speculative_tokens = 3\n'
    by_file = replayed(tiny_trace, "--config", str(toml(text)))
    assert by_file == replayed(tiny_trace, FLAG, spec(3))
    assert by_file == replayed(tiny_trace, "--experimental-spec-config", spec(3))
    both = replayed(tiny_trace, "--config", str(toml(text)), FLAG, spec(1))
    assert both["config"]["speculation"]["num_speculative_tokens"] == 1


def test_a_printed_configuration_reads_back(
    tiny_trace: Path, toml: Callable[[str], Path], checked: Callable[..., Result]
) -> None:
    """With its table of speculation."""
    printed = checked("--device", "fast", FLAG, spec(3))
    assert "\n[speculative_config]\n" in printed.stdout
    again = replayed(tiny_trace, "--config", str(toml(printed.stdout)))
    assert again == replayed(tiny_trace, FLAG, spec(3))


def test_a_run_can_be_checked_and_replayed(tiny_trace: Path, tmp_path: Path) -> None:
    """The invariants hold after every step, and the journal gives the same digests."""
    journal = tmp_path / "run.jsonl"
    given = (FLAG, spec(3), "--check", "--journal", str(journal), *TIGHT)
    found = replayed(tiny_trace, *given)["runs"]["eager"]
    assert found["preemptions"] > 0
    assert 0 < found["accepted_tokens"] < found["drafted_tokens"]
    done = run("replay", str(journal))
    assert done.exit_code == 0, done.stderr
    assert "events replayed: same commands, same digests." in done.stdout


def test_compare_runs_the_eager_loop_alone(tiny_trace: Path) -> None:
    """Its figures are those of a replay."""
    given = ("--device", "fast", FLAG, spec(3), "--json", "-")
    done = run("compare", str(tiny_trace), "--loops", "eager", *given)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == replayed(tiny_trace, FLAG, spec(3))


def test_the_table_has_lines_for_drafts_where_there_are_any(tiny_trace: Path) -> None:
    """The configuration says what was assumed."""
    given = ["replay", str(tiny_trace), "--device", "fast"]
    done = run(*given, FLAG, spec(3), columns=200)
    assert (
        "drafts    3 per decode row (mtp), each right with 0.7, 1000 us per pass and 1 us per token"
        in done.stdout
    )
    for label in ("draft tokens", "  accepted, %", "  tokens per row and step"):
        assert re.search(rf"^ {label} +[0-9.,]+ *$", done.stdout, re.MULTILINE), label
    assert "draft" not in run(*given, columns=200).stdout


def test_a_load_means_the_same_with_and_without_drafts(tiny_trace: Path) -> None:
    """The capacity that it is a share of is that of the plain eager loop."""
    given = ("--load", "0.5")
    plain = replayed(tiny_trace, *given)
    drafted = replayed(tiny_trace, *given, FLAG, spec(4), "--draft-acceptance", "1")
    assert drafted["config"]["arrivals"] == plain["config"]["arrivals"]
    assert drafted["trace"] == plain["trace"]
    assert drafted["runs"]["eager"]["device_steps"] < plain["runs"]["eager"]["device_steps"]


# -- options ---------------------------------------------------------------------------------------


def test_a_method_brings_its_costs_and_a_flag_replaces_them() -> None:
    """A draft model is slower than prediction heads; both are assumptions."""
    draft = json.dumps({"method": "draft_model", "model": "m", "num_speculative_tokens": 1})
    for config, method, step_ns in (
        (draft, SpeculativeMethod.DRAFT_MODEL, 1_650_000),
        (spec(1), SpeculativeMethod.MTP, 1_000_000),
    ):
        found = settings(experimental_speculative_config=config).speculation
        assert found is not None
        assert (found.method, found.costs.step_ns) == (method, step_ns)
        cheap = settings(experimental_speculative_config=config, draft_step_us=0.0).speculation
        assert cheap is not None
        assert cheap.costs.step_ns == 0
        assert machine(settings(experimental_speculative_config=config), FAST).drafter == (
            found.costs
        )


def test_only_a_loop_that_prepares_nothing_ahead_gets_drafts() -> None:
    """The product's check refuses the others before; the kernel would."""
    found = settings(experimental_speculative_config=spec(5))
    assert found.kernel_config(EAGER).num_speculative_tokens == 5
    for loop in (OVERLAP, JUST_IN_TIME):
        assert found.kernel_config(loop).num_speculative_tokens == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"draft_acceptance": 70.0},
            "--draft-acceptance 70 is out of range; give a probability from 0 to 1",
        ),
        (
            {"draft_acceptance": float("nan")},
            "--draft-acceptance nan is out of range; give a probability from 0 to 1",
        ),
        (
            {"draft_step_us": -1.0},
            "--draft-step-us -1 is out of range; give a number from 0 to 1000000000",
        ),
        (
            {"draft_token_us": 2e9},
            "--draft-token-us 2000000000 is out of range; give a number from 0 to 1000000000",
        ),
    ],
)
def test_assumptions_out_of_range_are_refused(given: dict[str, float], sentence: str) -> None:
    """Whether or not anything is drafted."""
    for config in (None, spec(2)):
        with pytest.raises(OptionError, match=f"^{re.escape(sentence)}$"):
            settings(experimental_speculative_config=config, **given)


def test_more_drafts_than_the_kernel_takes_are_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    """By the kernel's own sentence; the trace does not even exist."""
    missing = str(tmp_path / "missing.jsonl")
    Path(missing).write_text("no trace\n", encoding="utf-8")
    done = run("replay", missing, "--device", "fast", FLAG, spec(65))
    assert (done.exit_code, done.stderr) == (
        2,
        "stepahead: num_speculative_tokens=65 is not usable; give an integer from 0 to 64\n",
    )


def test_advise_takes_no_speculation(tiny_trace: Path) -> None:
    """It compares all loops, and only one has it."""
    done = run("advise", str(tiny_trace), "--goodput", "ttft:500", FLAG, spec(2))
    assert (done.exit_code, done.stderr) == (
        2,
        (
            "stepahead: advise chooses loads and loops itself, checks and drafts no tokens, and "
            "takes no --experimental-speculative-config; leave that out, or use compare\n"
        ),
    )


# -- figures ---------------------------------------------------------------------------------------


def test_tokens_of_one_step_are_nothing_apart(make_record: Callable[..., RunRecord]) -> None:
    """5 tokens in 3 emissions: gaps 0, 0, 10 and 30, for the request that had drafts."""
    record = make_record(
        arrivals_ns=[0, 0],
        first_tokens_ns=[10, 10],
        last_tokens_ns=[50, 50],
        ends_ns=[50, 50],
        output_tokens=[5, 3],
        extra_tokens=[2, 0],
        outcomes=[0, 0],
        emission_times_ns=[10, 20, 50],
        segment_requests=[0, 1],
        segment_firsts=[0, 0],
        segment_lasts=[2, 2],
        counters={"drafted_tokens": 8, "accepted_tokens": 3},
    )
    found = measure(record)
    assert found.itl is not None
    assert (found.itl.count, found.itl.mean_ns) == (6, round(80 / 6))
    assert found.tpot is not None
    assert (found.tpot.count, found.tpot.mean_ns) == (2, (40 // 4 + 40 // 2) // 2)
    assert found.draft_acceptance == Fraction(3, 8)
    assert found.tokens_per_row_step == Fraction(8, 6)
