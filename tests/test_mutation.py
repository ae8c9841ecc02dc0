"""The judge of mutants: who is asked, how a mutant ends, what is remembered and what is told."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mutation import judge as judging
from mutation.changes import Change, changes, modules
from mutation.judge import Verdict, judge
from mutation.killers import Killer, relevant
from mutation.report import report
from mutation.results import Judgement, Results
from stepahead.timing import Estimate

LEARN = '''def learn(self, observed: int) -> None:
    """Move towards ``observed``."""
    error = observed - self.mean
    self.mean += error // 8
    self.deviation += (abs(error) - self.deviation) // 4
'''


def change(old: str, new: str, *, words: bool = False) -> Change:
    """Return a mutant of `Estimate.learn`."""
    after = LEARN.replace(old, new)
    return Change("timing", "Estimate.learn", LEARN, after, frozenset({35, 36}), words)


def moves(far: int) -> Callable[[], bool]:
    """Return one who notices when the mean does not move by ``far`` of 80."""

    def notices() -> bool:
        estimate = Estimate(0, 0)
        estimate.learn(80)
        return estimate.mean != far

    return notices


def dies() -> bool:
    """Take the whole process down, once the kernel is not what it was."""
    if moves(10)():
        os._exit(3)
    return False


BLIND = Killer("blind", lambda: False)
SEES = Killer("sees", moves(10))


def test_who_notices_first_is_named() -> None:
    """And nobody after it is asked; this process keeps the kernel as it is."""
    verdict = judge(change("// 8", "// 4"), [BLIND, SEES, Killer("never", dies)], 9.0)
    assert (verdict.how, verdict.killer, verdict.tried, verdict.among) == ("noticed", "sees", 2, 3)
    assert not SEES.notices()


def test_what_nobody_notices_lives() -> None:
    """Nobody looks at the deviation; of a budget that is spent, the rest is not asked."""
    mutant = change("// 4", "// 5")
    verdict = judge(mutant, [BLIND, SEES], 9.0)
    assert (verdict.how, verdict.killer, verdict.tried) == ("survives", "", 2)
    verdict = judge(mutant, [BLIND, SEES, SEES], -1.0)
    assert (verdict.how, verdict.tried, verdict.among) == ("survives", 1, 3)
    assert judge(mutant, [], 9.0).how == "unseen"


def test_a_mutant_that_raises_is_noticed_and_one_that_is_no_program_is_not_asked_for() -> None:
    """An error that only the mutant raises is as good as a failing test."""
    assert judge(change("// 8", "// 0"), [SEES], 9.0).how == "noticed"
    assert judge(change("// 8", "// )"), [SEES], 9.0).how == "no program"


def test_a_mutant_that_hangs_or_takes_its_process_down_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The judge itself goes on."""
    monkeypatch.setattr(judging, "_PATIENCE_S", 0.05)
    endless = change("    error", "    while True: pass\n    error")
    verdict = judge(endless, [BLIND, SEES], 9.0)
    assert (verdict.how, verdict.killer) == ("hangs", "sees")
    assert judge(change("// 8", "// 4"), [Killer("dies", dies)], 9.0).how == "crash"


def test_only_those_are_asked_who_run_a_changed_line() -> None:
    """Lines are those of one module; another one may have the same numbers."""
    killers = [
        Killer("here", lambda: False, {"timing": 1 << 35}),
        Killer("elsewhere", lambda: False, {"timing": 1 << 34, "blocks": 1 << 35}),
        Killer("also here", lambda: False, {"timing": 1 << 36 | 1 << 2}),
        Killer("nowhere", lambda: False),
    ]
    assert relevant(killers, "timing", {35, 36}) == [0, 2]
    assert relevant(killers, "blocks", {35, 36}) == [1]


def test_a_verdict_is_remembered_until_its_function_changes(tmp_path: Path) -> None:
    """The newest one counts."""
    path = tmp_path / "deep" / "results.jsonl"
    mutant = change("// 8", "// 4")
    first = Verdict("survives", "", 3, 3, 0.5)
    second = Verdict("noticed", "sees", 1, 3, 0.1)
    results = Results(path)
    assert results.of(mutant) is None
    results.add(mutant, first)
    results.add(mutant, second)
    again = Results(path)
    assert again.of(mutant) == second
    assert again.of(change("// 8", "// 9")) is None
    moved = Change("timing", mutant.place, "\n" + LEARN, mutant.after, frozenset(), words=False)
    assert again.of(moved) is None


def test_the_page_counts_each_mutant_once_and_gives_the_reason(tmp_path: Path) -> None:
    """Words need no judgement; a judgement that fits no mutant is named."""
    noticed, same, gap, words, left, due = (
        change("// 8", f"// {number}", words=number == 4) for number in range(1, 7)
    )
    results = Results(tmp_path / "results.jsonl")
    results.add(noticed, Verdict("noticed", "sees", 1, 1, 0.1))
    for mutant in (same, gap, words, left):
        results.add(mutant, Verdict("survives", "", 1, 1, 0.1))
    judgements = [
        Judgement("it is the same", equivalent=True, changes=(str(same), "gone: a => b")),
        Judgement("nobody looks", equivalent=False, changes=(str(gap),)),
    ]
    page = report([noticed, same, gap, words, left, due], results, judgements)
    assert "| timing | 6 | 1 | 1 | 1 | 1 | 1 | 1 | 33.3 % |" in page
    assert "| all | 6 | 1 | 1 | 1 | 1 | 1 | 1 | 33.3 % |" in page
    assert "**It is the same** (1)" in page
    assert "**Nobody looks** (1)" in page
    assert "## Lives, and is not judged\n\n- `Estimate.learn: self.mean += error // 8 => " in page
    assert "## Judged, and not there any more\n\n- `gone: a => b`" in page


def test_every_mutant_changes_one_function_of_the_kernel_in_its_lines() -> None:
    """They are programs, but for a few; each has a key of its own."""
    pytest.importorskip("mutmut", reason="mutmut makes the mutants: pip install mutmut")
    every = list(changes("timing"))
    assert "timing" in modules()
    assert len({mutant.key for mutant in every}) == len(every)
    assert {"Estimate.learn", "Estimate.low"} <= {mutant.place for mutant in every}
    source = Path(str(Estimate.learn.__code__.co_filename)).read_text(encoding="utf-8").splitlines()
    for mutant in every:
        assert mutant.before != mutant.after
        assert any(source[line - 1].strip() in mutant.before for line in mutant.lines)
