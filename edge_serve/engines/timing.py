"""The timing cache of TensorRT: measured times of kernels, in a file that builds share.

A second build of a similar network does not measure again. A file that does not fit (another TensorRT, another device,
damaged) is replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge_serve.files import write_durably
from edge_serve.messages.line import one_line


def load(path: Path, config: Any) -> str:
    """Give a builder configuration the timing cache. Return why it starts empty, for the log; "" = it does not."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        return f"timing cache {path} cannot be read ({error.strerror}): measuring all kernels"
    if content and _use(config, content):
        return ""
    _use(config, b"")
    return f"timing cache {path} is of another TensorRT or device, or damaged: it is replaced" if content else ""


def save(path: Path, config: Any) -> str:
    """Write the timing cache of a builder configuration back. Return why it could not, for the log; "" = it could.

    Another build may have written the file meanwhile, so its entries are added.
    """
    try:
        cache = config.get_timing_cache()
        if cache is None:
            return ""
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if path.exists():
                other = config.create_timing_cache(path.read_bytes())
                if other is not None:
                    cache.combine(other, False)
            write_durably(path, [memoryview(cache.serialize())])
    except Exception as error:  # the engine is built: a cache that cannot be kept costs time only
        return f"timing cache {path} cannot be written ({one_line(str(error))}): the next build measures again"
    return ""


def _use(config: Any, content: bytes) -> bool:
    try:
        cache = config.create_timing_cache(content)
        return cache is not None and bool(config.set_timing_cache(cache, False))
    except Exception:  # pybind's TypeError for a cache that it cannot read
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
