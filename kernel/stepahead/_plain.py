"""What `_fast` has, in plain NumPy: for where it was not built, and to tell what it has to do."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy import arange, concatenate, count_nonzero, maximum, minimum
from numpy.typing import NDArray

__all__ = ["arange", "concatenate", "count_nonzero", "ints", "maximum", "minimum", "quick"]

_Scalar = TypeVar("_Scalar", np.int64, np.bool_)


def ints(count: int) -> NDArray[np.int64]:
    """Return an array for ``count`` numbers, with anything in it."""
    return np.empty(count, dtype=np.int64)


def quick(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Return the array."""
    return array
