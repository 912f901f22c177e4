"""Arrays to measure on. It needs NumPy only: bench/engines.py runs it beside older builds of the package."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def on_huge_pages(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array that begins on a huge page, where the system gives them: reading a peer's memory is up to three times
    slower without, and whether small sizes have them must not depend on the largest size.

    Raises:
        MemoryError: the system does not give so much.
    """
    page = 2 << 20
    # NumPy asks for huge pages from 4 MiB on.
    raw = np.empty(max(count * dtype.itemsize, page) + page, np.uint8)
    begin = -raw.ctypes.data % page
    return raw[begin : begin + count * dtype.itemsize].view(dtype)
