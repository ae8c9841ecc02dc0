"""Every limit of the kernel: what is taken, what is refused, and in which words."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from stepahead import ConfigError, KernelConfig
from stepahead.config import BatchPreference, SelectionTiming, WaitingOrder

PLAIN = KernelConfig(num_blocks=8)
#: Every number: its least and its greatest value.
RANGES = {
    "num_blocks": (1, 2**30),
    "block_size": (1, 2**20),
    "max_concurrency": (1, 2**16),
    "max_num_batched_tokens": (1, 2**30),
    "max_tokens_per_row": (1, 2**30),
    "max_model_len": (2, 2**30),
    "lookahead": (0, 8),
    "num_speculative_tokens": (0, 64),
    "late_share_ppm": (1, 500_000),
    "host_pages": (0, 2**30),
    "load_deadline_ns": (0, 2**62),
    "max_waiting": (1, 2**30),
}
#: Numbers that may be missing: their least value.
OPTIONAL = {"eos_token_id": 0, "write_through_threshold": 1}
#: Every choice: what it is one of, and another value than the default.
CHOICES: dict[str, tuple[str, object]] = {
    "order": ("WaitingOrder", WaitingOrder.PRIORITY),
    "preference": ("BatchPreference", BatchPreference.PREFILL_FIRST),
    "timing": ("SelectionTiming", SelectionTiming.JUST_IN_TIME),
    "late_joiners": ("bool", True),
    "prune": ("bool", True),
    "prefix_caching": ("bool", False),
    "write_back": ("bool", True),
    "layerwise_reload": ("bool", True),
    "remote": ("bool", True),
}
#: What an option needs of another: with what it is refused, and in which words.
NEEDS: list[tuple[str, object, dict[str, Any], str]] = [
    ("host_pages", 4, {"prefix_caching": False}, "0 without prefix_caching"),
    ("remote", True, {"prefix_caching": False}, "False without prefix_caching"),
    ("write_back", True, {"host_pages": 0}, "False without host_pages"),
    ("layerwise_reload", True, {"host_pages": 0}, "False without host_pages"),
    ("remote", True, {"lookahead": 1}, "False with lookahead above 0"),
    (
        "num_speculative_tokens",
        2,
        {"lookahead": 1},
        "0 with lookahead above 0, or lookahead=0 to speculate",
    ),
]


def changed(**options: Any) -> KernelConfig:  # noqa: ANN401 - options of the kernel
    """Return a configuration with what the options need."""
    tiers = {"write_back", "layerwise_reload"} & options.keys()
    return replace(PLAIN, **({"host_pages": 1} if tiers else {}) | options)


def refusal(options: dict[str, Any]) -> str:
    """Return the sentence with which the options are refused."""
    with pytest.raises(ConfigError) as caught:
        replace(PLAIN, **options)
    return str(caught.value)


def test_every_option_has_its_rule_here() -> None:
    """An option that nobody checks takes anything."""
    names = {field.name for field in fields(KernelConfig)}
    assert names == RANGES.keys() | OPTIONAL.keys() | CHOICES.keys()


@pytest.mark.parametrize("name", RANGES)
def test_a_number_is_taken_in_its_range_and_refused_outside(name: str) -> None:
    """Both ends belong to it; what only looks like an integer does not."""
    low, high = RANGES[name]
    for value in (low, low + 1, high):
        assert getattr(changed(**{name: value}), name) == value
    for wrong in (low - 1, high + 1, float(low + 1), True, "1", None):
        expected = f"{name}={wrong!r} is not usable; give an integer from {low} to {high}"
        assert refusal({name: wrong}) == expected


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_number_that_may_be_missing_has_a_range_as_well(name: str) -> None:
    """None is a value; so is what fits into 64 bits."""
    low = OPTIONAL[name]
    for value in (None, low, low + 1, 2**63 - 1):
        assert getattr(changed(**{name: value}), name) == value
    for wrong in (low - 1, float(low + 1), True, "1"):
        expected = f"{name}={wrong!r} is not usable; give None or an integer >= {low}"
        assert refusal({name: wrong}) == expected
    expected = f"{name}={2**63} is not usable; give None or an integer below 2**63"
    assert refusal({name: 2**63}) == expected


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_takes_nothing_but_its_kind(name: str) -> None:
    """The word for a choice is not the choice, and 1 is not True."""
    kind, other = CHOICES[name]
    assert getattr(changed(**{name: other}), name) is other
    for wrong in (1, "priority", None):
        assert refusal({name: wrong}) == f"{name}={wrong!r} is not usable; give a {kind}"


@pytest.mark.parametrize(("name", "value", "beside", "rule"), NEEDS)
def test_an_option_without_what_it_needs_is_refused(
    name: str, value: object, beside: dict[str, Any], rule: str
) -> None:
    """The sentence names the option to change; without the option, the other one is taken."""
    assert refusal({name: value} | beside) == f"{name}={value!r} is not usable; give {rule}"
    replace(PLAIN, **beside)
    assert getattr(changed(**{name: value}), name) == value
