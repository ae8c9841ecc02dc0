"""Choose how hard Hypothesis searches.

Three profiles, chosen with ``--hypothesis-profile``; without it, ``ci`` where CI is set and ``dev``
elsewhere. Hypothesis itself derandomizes everything when it sees CI, so each profile states what it
wants: a nightly search that repeats the same examples every night would find nothing new.
"""

import os
import secrets

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

EXAMPLES = DirectoryBasedExampleDatabase(".hypothesis/examples")

settings.register_profile(
    "dev", derandomize=False, database=EXAMPLES, deadline=None, max_examples=50
)
settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, max_examples=100, print_blob=True
)
settings.register_profile(
    "nightly",
    derandomize=False,
    database=EXAMPLES,
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give a nightly run a seed of its own, before Hypothesis reads its options."""
    if config.option.hypothesis_profile == "nightly" and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbits(64))


def pytest_report_header(config: pytest.Config) -> str:
    """Say which search this is and, where it has a seed, how to repeat it."""
    name = settings.get_current_profile_name()
    # Hypothesis leaves the sentinel for "not set" without a type.
    fixed = settings.get_profile(name).derandomize  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    search = "derandomized" if fixed else "random"
    seed = config.option.hypothesis_seed
    repeat = "" if seed is None else f", repeat with --hypothesis-seed={seed}"
    return f"hypothesis search: profile {name}, {search}{repeat}"
