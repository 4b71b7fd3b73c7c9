"""The folder that mkosi reads: image/mkosi, with the programs of the device, the demo models, and apt's sources added.

mkosi writes beside its configuration, and copies the modes of files. So it gets a copy with the same modes whichever
umask the checkout has, and the checkout stays clean.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from image.errors import ImageError

CHECKOUT = Path(__file__).resolve().parents[1]

#: where the programs of the device are, in the root and (its shell scripts) in the initrd
DEVICE = "usr/lib/edge-device"
MODELS = "usr/share/edge-serve/models"
#: in the root: the form of the data partition that the initrd reads and writes. mkosi.finalize puts it into os-release
STATE_SCHEMA = f"{DEVICE}/state-schema"
#: one model of each backend. Each has a worker process, and each further one would add two emulated seconds to a boot
_DEMO = ("simple", "simple_identity")

_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def stage(folder: Path, apt_sources: str, checkout: Path = CHECKOUT) -> None:
    """Write mkosi's configuration to `folder`, which is emptied first.

    Raises:
        ImageError: the checkout has no demo models, or no form of the data partition.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkout / "image/mkosi", folder, symlinks=True, ignore=_IGNORED)
    extra, initrd = folder / "mkosi.extra", folder / "mkosi.images/initrd/mkosi.extra"
    device = extra / DEVICE / "image"
    shutil.copytree(checkout / "image/device", device / "device", ignore=_IGNORED)
    shutil.copy(checkout / "image/__init__.py", device)
    scripts = device / "device/initrd"
    if scripts.is_dir():
        shutil.copytree(scripts, initrd / DEVICE, dirs_exist_ok=True)
        # edge-slot-failed.service runs it in the root, too
        for script in scripts.glob("edge-root-failed"):
            shutil.copy(script, extra / DEVICE)
        shutil.rmtree(scripts)
        (extra / STATE_SCHEMA).write_text(f"{state_schema(checkout)}\n")
    _models(checkout / "model_repository", extra / MODELS)
    file = folder / "mkosi.sandbox/etc/apt/sources.list.d/mkosi.sources"
    file.parent.mkdir(parents=True)
    file.write_text(apt_sources)
    _normalize(folder)


def state_schema(checkout: Path = CHECKOUT) -> int:
    """Return the form of the data partition that `edge-state` of a checkout reads and writes.

    Raises:
        ImageError: the script has no such line.
    """
    script = checkout / "image/device/initrd/edge-state"
    found = re.findall(r"^SCHEMA=([1-9][0-9]*)$", script.read_text(), re.MULTILINE)
    if len(found) != 1:
        raise ImageError(f"{script} has {len(found)} lines SCHEMA=<number>, expected one")
    return int(found[0])


def _models(repository: Path, target: Path) -> None:
    for name in _DEMO:
        if not (repository / name).is_dir():
            raise ImageError(f"{repository} has no model {name}: the checkout is not complete")
        shutil.copytree(repository / name, target / name, ignore=_IGNORED)


def _normalize(folder: Path) -> None:
    """Set the modes that git knows: 755 for folders and programs, 644 for other files."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            programs = path.is_dir() or os.access(path, os.X_OK)
            path.chmod(0o755 if programs else 0o644)
