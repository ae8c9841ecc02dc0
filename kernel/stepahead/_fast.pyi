# NumPy for a handful of numbers, written in C: `_fast.c` says what it does, `_plain` is its twin.

from typing import TypeVar

import numpy as np
from numpy import arange as arange
from numpy import concatenate as concatenate
from numpy import count_nonzero as count_nonzero
from numpy import maximum as maximum
from numpy import minimum as minimum
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", np.int64, np.bool_)

class FastArray(NDArray[np.int64]): ...

def ints(count: int) -> NDArray[np.int64]: ...
def quick(array: NDArray[_Scalar]) -> NDArray[_Scalar]: ...
