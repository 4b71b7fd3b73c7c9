"""Repositories of many small models, and a control group that limits a server's memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.backends.onnx_models import identity
from tests.server.running import python_model

_MEMORY = Path("/sys/fs/cgroup/memory")


def small_models(root: Path, onnx: int = 0, python: int = 0) -> None:
    """ONNX models of some hundred bytes, and Python models, each of which needs a worker process."""
    for number in range(onnx):
        identity(root / f"onnx{number:04d}" / "1" / "model.onnx")
    for number in range(python):
        python_model(root, f"python{number:04d}")


def can_limit_memory() -> bool:
    """Whether memory control groups of version 1 can be made here."""
    return os.access(_MEMORY / "memory.limit_in_bytes", os.W_OK)


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[tuple[str, ...]]:
    """Make a memory control group; yields the command that runs another command in it."""
    group = _MEMORY / f"edge-serve-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(nbytes))
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    finally:
        group.rmdir()
