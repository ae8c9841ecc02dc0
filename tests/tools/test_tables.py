"""What people read: a table with the change per metric, and sentences."""

import io
import re
from pathlib import Path

from rich.console import Console

from stepahead_tools.tables import show_sentence
from stepahead_tools.testing import run


def test_labels_begin_together_and_figures_end_together(tiny_trace: Path) -> None:
    """A blank line stands between two sections, two spaces at least between two columns."""
    done = run("compare", str(tiny_trace), "--device", "fast", "--num-blocks", "400")
    assert done.exit_code == 0, done.stderr
    head, rule, *lines = done.stdout[done.stdout.index(" metric") :].splitlines()
    table = lines[: lines.index(" " * len(head))]
    assert re.fullmatch(r" metric +eager  overlap +change ", head)
    assert re.fullmatch(r" ─+ ", rule)
    assert table[0].startswith(" requests completed  ")
    assert {len(line) for line in (head, rule, *table)} == {len(head)}
    assert all(re.fullmatch(r" .{18,}  +[\d.,-]+  +[\d.,-]+  .* ", line) for line in table)


def test_a_number_and_its_percent_sign_stay_together() -> None:
    """A line that begins with a percent sign is read twice."""
    target = io.StringIO()
    show_sentence(Console(file=target, width=19), "mean TPOT by -12.1 % at p50")
    assert target.getvalue() == "mean TPOT by\n-12.1 % at p50\n"
