"""Statistics of weighted integer samples."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead_tools.distribution import PERCENTILES, distribution, weighted_sum

WEIGHTED = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 6)), min_size=1, max_size=40
).filter(lambda entries: any(weight for _, weight in entries))


@given(WEIGHTED)
def test_percentiles_are_those_of_numpy_on_the_expanded_sample(
    entries: list[tuple[int, int]],
) -> None:
    """Every percentile is NumPy's, which is inexact in the last digits, rounded to a whole ns."""
    values, weights = (np.array(column, dtype=np.int64) for column in zip(*entries, strict=True))
    found = distribution(values, weights)
    assert found is not None
    expected = np.percentile(np.repeat(values, weights), PERCENTILES)
    assert np.all(np.abs(expected - np.array(found.percentiles_ns)) <= 0.5 + 0.05)


@given(WEIGHTED)
def test_the_mean_is_exact_and_rounded_once(entries: list[tuple[int, int]]) -> None:
    """The mean is the rational mean of the expanded sample, rounded half to even."""
    values, weights = (np.array(column, dtype=np.int64) for column in zip(*entries, strict=True))
    found = distribution(values, weights)
    assert found is not None
    count = sum(weight for _, weight in entries)
    total = sum(value * weight for value, weight in entries)
    assert (found.count, found.mean_ns) == (count, round(Fraction(total, count)))


@given(WEIGHTED)
def test_without_weights_each_value_stands_once(entries: list[tuple[int, int]]) -> None:
    """No weights are weights of one."""
    values = np.array([value for value, _ in entries], dtype=np.int64)
    assert distribution(values) == distribution(values, np.ones(len(values), dtype=np.int32))


@given(
    seed=st.integers(0, 1 << 20),
    spread=st.sampled_from([1, 1 << 10, 1 << 40, (1 << 62) - 1]),
    weighted=st.booleans(),
)
@settings(max_examples=10)
def test_a_large_sample_has_the_percentiles_of_a_sorted_one(
    seed: int, spread: int, *, weighted: bool
) -> None:
    """Its values are only counted in bins; most stand close together, and some far off."""
    random = np.random.Generator(np.random.PCG64(seed))
    values = random.integers(0, spread, 70_000) >> random.integers(0, 63, 70_000)
    weights = random.integers(0, 3, 70_000, dtype=np.int32) if weighted else None
    found = distribution(values, weights)
    ordered = np.sort(values if weights is None else np.repeat(values, weights))
    assert found is not None
    for percent, at in zip(PERCENTILES, found.percentiles_ns, strict=True):
        rank, part = divmod((len(ordered) - 1) * percent, 100)
        around = [int(value) for value in ordered[rank : rank + 2]]
        assert at == round(Fraction(around[0] * (100 - part) + around[-1] * part, 100))


def test_an_empty_sample_has_no_statistics() -> None:
    """Neither no value nor values of weight 0 have a mean."""
    nothing = np.zeros(0, dtype=np.int64)
    assert distribution(nothing) is None
    assert distribution(np.array([5]), np.array([0])) is None


def test_sums_beyond_64_bits_are_exact() -> None:
    """A long run's pooled gaps may sum to more than an int64 holds."""
    values = np.full(3, (1 << 44) + 1, dtype=np.int64)
    weights = np.full(3, 1 << 20, dtype=np.int64)
    assert weighted_sum(values, weights) == 3 * ((1 << 44) + 1) << 20
