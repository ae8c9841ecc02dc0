"""The two array types of the kernel."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

EMPTY: Final[Ints] = np.empty(0, dtype=np.int64)
EMPTY.flags.writeable = False

# Beside a short array, a number that is an array without axes costs half of what a Python one does.
ZERO: Final[Ints] = np.array(0)
ONE: Final[Ints] = np.array(1)
