"""The README's programs run, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_embedding_example_runs_and_serves_both_requests() -> None:
    """The program that an engine author copies first works as it stands."""
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[1 2] [[7 7]]"] * 4


def test_the_demo_says_what_the_readme_promises() -> None:
    """The first figures that a newcomer sees are those of the run."""
    loops = ("--loops", "eager,overlap,just-in-time", "--unchecked")
    done = subprocess.run(
        [sys.executable, "-m", "stepahead_tools", "compare", "demo", *loops],
        capture_output=True,
        text=True,
        check=True,
    )
    words = " ".join(done.stdout.split())
    promised = re.findall(r"^    (.* on this load: .*)$", README, flags=re.MULTILINE)
    assert len(promised) == 2
    for sentence in promised:
        assert sentence in words


def test_every_file_that_the_readme_names_exists() -> None:
    """A link to nowhere costs a newcomer more than no link."""
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).exists(), target
