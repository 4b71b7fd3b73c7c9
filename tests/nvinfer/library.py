"""The stand-in libnvinfer that the bindings of this process have loaded."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any


def loaded(version: str) -> Any:
    """Return the library, for the version of TensorRT that it stands in for."""
    folder = Path(sys.modules["tensorrt_bindings"].__file__ or "").parent
    return ctypes.CDLL(str(folder / f"libnvinfer.so.{version.partition('.')[0]}"))


def living(version: str) -> int:
    """Return its objects that are not deleted; 0 with the Python stand-in, which has none."""
    if "tensorrt_bindings" not in sys.modules:
        return 0
    count = loaded(version).standInLiving
    count.restype = ctypes.c_long
    return int(count())
