"""The genuine package `nvidia-ml-py` in the cache of the tests: `python -m tests.observe.metrics.nvml.genuine`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-serve" / "nvidia-ml-py"
#: the first one that our extra [nvml] permits, and a present one
VERSIONS = OLDEST, NEWEST = "12.535.77", "13.615.71"
COMMAND = ".venv/bin/python -m tests.observe.metrics.nvml.genuine"


def install(version: str) -> None:
    """Install a release of the package, unless it is there.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    if (CACHE / version).is_dir():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / "made"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(made), f"nvidia-ml-py=={version}"], check=True, timeout=120)
        made.rename(CACHE / version)


if __name__ == "__main__":
    for each in VERSIONS:
        install(each)
