"""The journal: written, cut, changed, replayed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead import Kernel, KernelConfig, WaitingOrder
from stepahead.commands import (
    AbandonBatch,
    DispatchBatch,
    FinishReason,
    FinishRequest,
    RefusalReason,
    RefuseRequest,
)
from stepahead.events import (
    BatchExecuted,
    BatchFailed,
    CancelReason,
    Event,
    FailureScope,
    HostReady,
    RequestArrived,
    RequestCancelled,
)
from stepahead_models.codec import (
    canonical,
    decode_command,
    decode_config,
    decode_event,
    encode,
)
from stepahead_models.errors import JournalError, TraceMismatch
from stepahead_models.examples import VOCABULARY, mixed_workload, roofline_device
from stepahead_models.journal import JournalWriter, Replay, replay_journal
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash

CONFIG = KernelConfig(
    num_blocks=80,
    block_size=4,
    max_concurrency=8,
    max_num_batched_tokens=64,
    max_model_len=256,
    lookahead=1,
    eos_token_id=7,
)


def _write(path: Path, *, count: int = 12, stretches: bool = True) -> tuple[JournalWriter, str]:
    """Write the journal of a run; return its writer and the kernel's final state."""
    kernel = Kernel(CONFIG)
    with JournalWriter(path, kernel) as journal:
        Simulation(
            kernel,
            mixed_workload(3, 4, count=count),
            roofline_device(),
            HistoryHash(vocab_size=VOCABULARY, eos_token_id=7),
            stretches=stretches,
            observers=[journal],
        ).run()
    return journal, kernel.digest()


@pytest.mark.parametrize("stretches", [False, True])
def test_a_journal_replays_to_the_same_digests(tmp_path: Path, stretches: bool) -> None:  # noqa: FBT001
    """All lines, the chained digest, the state at the end, and that it is the end."""
    journal, state = _write(tmp_path / "run.jsonl", stretches=stretches)
    replay = replay_journal(tmp_path / "run.jsonl")
    assert replay == Replay(
        schema=2,
        lines=journal.lines,
        digest=journal.digest,
        state=state,
        ended=True,
        torn=False,
    )
    assert not replay.incomplete


def test_every_1024th_line_holds_the_state_and_a_changed_one_is_found(tmp_path: Path) -> None:
    """The state digest is compared, so it cannot be wrong unnoticed."""
    path = tmp_path / "run.jsonl"
    journal, _ = _write(path, count=80, stretches=False)
    assert journal.lines > 1024
    lines = path.read_bytes().split(b"\n")
    with_state = [number for number, line in enumerate(lines) if b'"state":' in line]
    assert with_state == list(range(1024, journal.lines + 1, 1024))
    line = json.loads(lines[1024])
    state = line["state"]
    line["state"] = "0" * len(state)
    lines[1024] = canonical(line)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TraceMismatch) as caught:
        replay_journal(path)
    assert str(caught.value) == (
        "run.jsonl line 1025 is the first that differs\n"
        f"  recorded: state {'0' * len(state)}\n"
        f"  replayed: state {state}"
    )


def test_a_journal_cut_at_any_byte_is_good_up_to_its_last_whole_line(tmp_path: Path) -> None:
    """Every cut within the last two lines, and some before."""
    path = tmp_path / "run.jsonl"
    _write(path, count=3)
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 0x0A]
    cuts = {*range(ends[-3], len(whole) + 1), *range(ends[0], len(whole), 997)}
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        replay = replay_journal(path)
        lines = sum(end <= cut for end in ends)
        assert replay.ended is (lines == len(ends))
        assert replay.incomplete is not replay.ended
        assert replay.lines == lines - 1 - replay.ended
        assert replay.torn is (cut not in ends)


def _break(path: Path) -> None:
    """Write the journal of a run that breaks after its first event."""
    with JournalWriter(path, Kernel(CONFIG)) as journal:
        journal(HostReady(at=1), ())
        raise ZeroDivisionError


def test_the_journal_of_a_run_that_broke_has_no_end(tmp_path: Path) -> None:
    """Its events are all there are, and they are not a whole run."""
    path = tmp_path / "run.jsonl"
    with pytest.raises(ZeroDivisionError):
        _break(path)
    replay = replay_journal(path)
    assert (replay.lines, replay.ended, replay.incomplete, replay.torn) == (1, False, True, False)


def test_events_that_are_missing_before_the_end_are_counted(tmp_path: Path) -> None:
    """A journal that was cut in the middle and still has its end says how many there were."""
    path = tmp_path / "run.jsonl"
    journal, _ = _write(path, count=1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[-1]]))
    with pytest.raises(TraceMismatch) as caught:
        replay_journal(path)
    assert str(caught.value) == (
        "run.jsonl line 4 is the first that differs\n"
        f"  recorded: the end after {journal.lines} events\n"
        "  replayed: the end after 2 events"
    )


@pytest.mark.parametrize("more", [b"{}\n", b"{"])
def test_nothing_stands_behind_the_end(tmp_path: Path, more: bytes) -> None:
    """Two journals in one file are no journal."""
    path = tmp_path / "run.jsonl"
    journal, _ = _write(path, count=1)
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(JournalError) as caught:
        replay_journal(path)
    assert str(caught.value) == (
        f"run.jsonl line {journal.lines + 3} stands behind the end of the journal"
    )


def test_a_journal_of_the_first_schema_says_nothing_of_its_end(tmp_path: Path) -> None:
    """It replays as before, without what events have since; nor is known if there were more."""
    path = tmp_path / "run.jsonl"
    journal, state = _write(path, count=1)
    digest, old = "0" * 32, b""
    for number, raw in enumerate(path.read_bytes().splitlines()[:-1]):
        line = json.loads(raw)
        del line["digest"]
        if number == 0:
            line["journal"] = 1
        else:
            line["event"].pop("turn_times", None)
        digest = hashlib.sha256(digest.encode() + canonical(line)).hexdigest()[:32]
        old += canonical(line | {"digest": digest}) + b"\n"
    path.write_bytes(old)
    replay = replay_journal(path)
    assert (replay.schema, replay.lines, replay.state) == (1, journal.lines, state)
    assert not replay.ended
    assert not replay.incomplete


def test_a_changed_token_is_found_in_its_line_with_both_sides(tmp_path: Path) -> None:
    """The commands that follow from the changed event are not those on record."""
    path = tmp_path / "run.jsonl"
    _write(path, count=3)
    lines = path.read_bytes().split(b"\n")
    number = next(n for n, line in enumerate(lines) if b'"type":"EmitTokens"' in line)
    line = json.loads(lines[number])
    line["event"]["tokens"][0][0] += 1
    lines[number] = canonical(line)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TraceMismatch) as caught:
        replay_journal(path)
    mismatch = caught.value
    assert mismatch.line == number + 1
    assert mismatch.recorded == canonical(line["commands"]).decode()
    assert mismatch.replayed != mismatch.recorded
    assert str(mismatch) == (
        f"run.jsonl line {number + 1} is the first that differs\n"
        f"  recorded: {mismatch.recorded}\n"
        f"  replayed: {mismatch.replayed}"
    )


def test_a_changed_time_without_consequence_is_found_by_the_chain(tmp_path: Path) -> None:
    """The answer is the same, the digest is not."""
    path = tmp_path / "run.jsonl"
    _write(path, count=1)
    lines = path.read_bytes().split(b"\n")
    line = json.loads(lines[1])
    line["event"]["priority"] = 1
    lines[1] = canonical(line)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TraceMismatch, match="line 2 is the first that differs\n  recorded: digest"):
        replay_journal(path)


def test_an_event_that_cannot_have_happened_is_a_mismatch(tmp_path: Path) -> None:
    """A line was lost: the kernel refuses the next one and says why."""
    path = tmp_path / "run.jsonl"
    _write(path, count=1)
    lines = path.read_bytes().split(b"\n")
    lost = next(n for n, line in enumerate(lines) if b'"type":"BatchPrepared"' in line)
    path.write_bytes(b"\n".join(lines[:lost] + lines[lost + 1 :]))
    with pytest.raises(TraceMismatch) as caught:
        replay_journal(path)
    assert caught.value.line == lost + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "run.jsonl is no journal of schema 1 or 2; its first line says None"),
        (b'{"journal":2}', "run.jsonl is no journal of schema 1 or 2; its first line says None"),
        (b'{"journal":3}\n', "run.jsonl is no journal of schema 1 or 2; its first line says 3"),
        (b"[1]\n", "run.jsonl line 1 is no JSON object"),
        (
            b"[" * 100_000 + b"\n",
            (
                "run.jsonl line 1 is no JSON: maximum recursion depth exceeded while decoding a "
                "JSON array from a unicode string"
            ),
        ),
        (
            b"{]\n",
            (
                "run.jsonl line 1 is no JSON: Expecting property name enclosed in double quotes: "
                "line 1 column 2 (char 1)"
            ),
        ),
    ],
)
def test_what_is_no_journal_says_so(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, of another schema, no object, no JSON."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(JournalError) as caught:
        replay_journal(path)
    assert str(caught.value) == message


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """The same run in two interpreters with different seeds."""
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); "
        "import test_journal; test_journal._write(Path(sys.argv[1]))"
    )
    contents: list[bytes] = []
    for seed in ("0", "1"):
        path = tmp_path / f"{seed}.jsonl"
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        subprocess.run(
            [sys.executable, "-c", program, str(path), str(Path(__file__).parent)],
            check=True,
            env=environment,
        )
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


# -- codec ------------------------------------------------------------------------------------

EVENTS = (
    HostReady(at=5),
    RequestArrived(
        request_id="\u00e9\ud800",
        prompt_length=9,
        max_tokens=2,
        at=3,
        arrived_at=1,
        stop_token_ids=(4, 5),
        block_keys=np.array([1, 2]),
    ),
    RequestArrived(request_id="a", prompt_length=1, max_tokens=1, at=0, arrived_at=0),
    RequestCancelled(request_id="a", at=1, handle=None, reason=CancelReason.DEADLINE),
    BatchExecuted(batch_id=1, tokens=np.zeros((2, 0), dtype=np.int64), at=2),
    BatchExecuted(
        batch_id=1, tokens=np.array([[4], [4]]), at=9, turn_times=np.array([[5, 6, 7, 1]])
    ),
    BatchFailed(batch_id=1, scope=FailureScope.DEVICE, at=2),
)


@pytest.mark.parametrize("event", EVENTS, ids=range(len(EVENTS)))
def test_events_come_back_as_they_were(event: Event) -> None:
    """Through text, field by field, arrays with type and shape."""
    text = canonical(encode(event))
    again = decode_event(json.loads(text))
    assert canonical(encode(again)) == text
    assert type(again) is type(event)
    if isinstance(event, BatchExecuted) and isinstance(again, BatchExecuted):
        assert again.tokens.shape == event.tokens.shape
        assert again.tokens.dtype == np.int64


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**12), st.booleans())))
def test_dispatches_come_back_as_they_were(rows: list[tuple[int, int, bool]]) -> None:
    """Arrays of integers and of flags, also empty ones."""
    command = DispatchBatch(
        batch_id=3,
        fill_rows=np.array([row for row, _, _ in rows], dtype=np.int64),
        fill_tokens=np.array([token for _, token, _ in rows], dtype=np.int64),
        live=np.array([live for _, _, live in rows], dtype=bool),
    )
    again = decode_command(json.loads(canonical(encode(command))))
    assert isinstance(again, DispatchBatch)
    assert again.fill_tokens.tolist() == command.fill_tokens.tolist()
    assert again.live.dtype == np.bool_
    assert again.live.tolist() == command.live.tolist()


def test_ends_refusals_and_configurations_come_back_as_they_were() -> None:
    """Enums by value, equality of the whole."""
    end = FinishRequest(request_id="a", handle=1, reason=FinishReason.STOP, output_tokens=3)
    refusal = RefuseRequest(request_id="a", reason=RefusalReason.NEVER_FITS, detail="too long")
    for command in (end, refusal, AbandonBatch(batch_id=4)):
        assert decode_command(encode(command)) == command
    config = KernelConfig(num_blocks=3, order=WaitingOrder.PRIORITY)
    assert decode_config(json.loads(canonical(encode(config)))) == config


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "3 is no event; expected an object with a type"),
        (
            {"type": "HostReady"},
            "event HostReady lacks or does not know the fields at",
        ),
        (
            {"type": "HostReady", "at": 1, "by": 2},
            "event HostReady lacks or does not know the fields by",
        ),
        (
            {"type": "HostReady", "at": True},
            "event HostReady has at=True, which is not of its type",
        ),
        (
            {"type": "BatchFailed", "at": 1, "batch_id": 1, "scope": "rack"},
            "event BatchFailed has scope='rack', which is not of its type",
        ),
        (
            {
                "type": "BatchExecuted",
                "accepted": None,
                "at": 1,
                "batch_id": 1,
                "ended_at": 1,
                "turn_times": None,
                "tokens": [[1.5]],
            },
            "event BatchExecuted has tokens=[[1.5]], which is not of its type",
        ),
    ],
)
def test_what_is_no_event_says_what_is_wrong(value: object, message: str) -> None:
    """Missing and unknown fields, wrong types, booleans as integers."""
    with pytest.raises(JournalError) as caught:
        decode_event(value)
    assert str(caught.value) == message


def test_an_unknown_type_lists_the_known_ones() -> None:
    """The way out is one of these names."""
    with pytest.raises(JournalError) as caught:
        decode_config({"type": "Config"})
    assert str(caught.value) == (
        "'Config' is no type of configuration; expected one of KernelConfig"
    )
