"""When a run is called overloaded."""

import numpy as np
import pytest

from stepahead_tools.overload import grows, trend_growth

ARRIVALS = np.arange(0, 1000, 2, dtype=np.int64)


def test_a_line_that_grows_with_every_tenth_arrival_is_an_overload() -> None:
    """25 of the 250 arrivals of the second half stay in the line."""
    times = np.arange(0, 1000, 20, dtype=np.int64)
    assert grows(ARRIVALS, times, np.arange(len(times)))


def test_a_line_that_wanders_is_none() -> None:
    """A line between 10 and 17 has no trend, however long it is."""
    times = np.arange(0, 1000, 5, dtype=np.int64)
    assert not grows(ARRIVALS, times, 10 + np.arange(len(times)) % 8)


def test_a_line_that_grew_in_the_first_half_only_is_none() -> None:
    """What counts is whether the machine keeps up in the end."""
    times = np.arange(0, 500, 5, dtype=np.int64)
    assert not grows(ARRIVALS, times, np.arange(len(times)))


def test_a_few_requests_are_no_overload() -> None:
    """Of 20 requests, a line that grows by three says nothing."""
    arrivals = np.arange(0, 20, dtype=np.int64)
    assert not grows(arrivals, np.array([11, 14, 17]), np.array([1, 2, 3]))


def test_a_burst_has_no_second_half() -> None:
    """When all arrive at once there is nothing to keep up with."""
    assert not grows(np.zeros(50, dtype=np.int64), np.array([0]), np.array([50]))


def test_the_trend_is_that_of_least_squares() -> None:
    """The rise of the fitted line equals that of a fit to the line sampled densely."""
    times = np.array([0, 130, 350, 400, 720], dtype=np.int64)
    counts = np.array([3, 5, 4, 9, 2], dtype=np.int64)
    begin, end = 100, 900
    dense = np.arange(begin, end) + 0.5
    sampled = counts[np.searchsorted(times, dense, side="right") - 1]
    slope = np.polyfit(dense, sampled, 1)[0]
    assert float(trend_growth(times, counts, begin, end)) == pytest.approx(
        slope * (end - begin), rel=1e-5
    )
