"""Virtual environments for tests, made offline: NumPy is the one of the interpreter that runs the tests."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np


def make_environment(root: Path, *, numpy: bool = True, **packages: str) -> Path:
    """An environment in `root` with tiny packages, whose `__version__` is given; its directory."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(root)], check=True, timeout=60)
    (site,) = root.glob("lib/python*/site-packages")
    if numpy:
        installed = Path(np.__file__).parent
        for name in ("numpy", "numpy.libs"):
            if (source := installed.with_name(name)).is_dir():
                (site / name).symlink_to(source)
    for name, version in packages.items():
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return root


def pack(root: Path, archive: Path) -> Path:
    """An archive of an environment. As conda-pack makes it: no link leads out, so the interpreter is a script here."""
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(root.rglob("*")):
            if not (path.is_symlink() and path.readlink().is_absolute()):
                tar.add(path, path.relative_to(root), recursive=False)
        python = root / "python.sh"
        (site,) = root.glob("lib/python*/site-packages")
        inner = site.relative_to(root)
        numpy = Path(np.__file__).parent.parent
        python.write_text(
            '#!/bin/sh\nhere=$(dirname "$(dirname "$0")")\n'
            f'PYTHONPATH="$here/{inner}:{numpy}" exec {sys.executable} -S "$@"\n'
        )
        python.chmod(0o755)
        tar.add(python, "bin/python")
    return archive
