"""The two array types of the kernel, and what they are made with.

A batch has a handful of rows, and NumPy spends most of its time on finding out what to do with
them. Where the C module `_fast` was built, the functions here return arrays of a subclass that does
the same in a tenth of the time, and so does whatever is computed from them; where not, they are
NumPy's. Nobody can tell the difference by the results.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

try:
    from stepahead._fast import (
        arange,
        concatenate,
        count_nonzero,
        ints,
        maximum,
        minimum,
        quick,
    )
except ModuleNotFoundError:  # it was not built
    from stepahead._plain import (
        arange,
        concatenate,
        count_nonzero,
        ints,
        maximum,
        minimum,
        quick,
    )

__all__ = [
    "EMPTY",
    "ONE",
    "ZERO",
    "Ints",
    "Mask",
    "arange",
    "concatenate",
    "count_nonzero",
    "ints",
    "maximum",
    "minimum",
    "quick",
]

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

EMPTY: Final[Ints] = ints(0)
EMPTY.flags.writeable = False

# Beside a short array, a number that is an array without axes costs half of what a Python one does.
ZERO: Final[Ints] = np.array(0)
ONE: Final[Ints] = np.array(1)
