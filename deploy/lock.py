"""Writes deploy/requirements-*.txt with the newest wheels that pyproject.toml allows: `make lock`.

The files of the packs, packs/*/requirements-*.txt, have the newest wheels that packs/*/requirements.in allows; those
for NVIDIA GPUs come from requirements-cuda13.in. Each file has the wheels for one Python and all processors.
`requirements-build.txt` has the wheels that build edge-serve itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.debian.releases import GPU_RELEASE, GPU_WHEELS, MACHINES, RELEASES, Release, target
from deploy.program import CHECKOUT, EXTRAS, GPU_EXTRAS, build_wheel, pip, why
from deploy.requirements import BUILD, FOLDER, Locked, joined, lock_file, write

#: requirements of onnxruntime 1.23 (the last for Python 3.10) that only its conversion tools import
_UNNEEDED = {"coloredlogs", "humanfriendly", "mpmath", "sympy"}
#: openvino needs the first for its conversion tools only, which report to their maker; treelite needs the others for
#: its module of Python, which the pack fil does not import
_UNWANTED = {"openvino-telemetry", "packaging", "scipy"}

_HINT = "Written by `make lock`: run it again to get newer ones, and review the difference."


def main() -> int:
    """Write the lock files. Return the exit status."""
    try:
        entries = joined([_resolve("--only-binary=:all:", "setuptools")])
        _write(BUILD, "The wheels that build edge-serve's own", entries)
        with tempfile.TemporaryDirectory() as folder:
            wheel = build_wheel(Path(folder), "0")
            for release in RELEASES.values():
                _lock_program(release, list(MACHINES), f"{wheel}[{EXTRAS}]", *release.wheels)
            _lock_program(RELEASES[GPU_RELEASE], ["amd64"], f"{wheel}[{GPU_EXTRAS}]", *GPU_WHEELS, gpu=True)
            for pack in sorted((CHECKOUT / "packs").glob("*/requirements*.in")):
                lock_pack(pack)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"lock: {why(error, FOLDER)}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    return 0


def _lock_program(release: Release, processors: Sequence[str], *wanted: str, gpu: bool = False) -> None:
    """Write the lock file of the package for a release, or of the one for NVIDIA GPUs."""
    reports = [_resolve(*target(release, arch, gpu).wheels(), *wanted) for arch in processors]
    devices = " and NVIDIA GPUs (CUDA 12, x86-64)" if gpu else ""
    about = f"The program's wheels for Python {release.python}{devices}"
    _write(lock_file(release.python, gpu), about, joined(reports, without=_UNNEEDED))


def lock_pack(wanted: Path) -> None:
    """Write the lock files of a pack beside `wanted`, one for each Python."""
    kind = wanted.stem.removeprefix("requirements")
    devices = " and NVIDIA GPUs" if kind else ""
    for release in RELEASES.values():
        reports = [_resolve(*target(release, arch).wheels(), "--requirement", str(wanted)) for arch in MACHINES]
        about = f"The wheels of the pack {wanted.parent.name} for Python {release.python}{devices}"
        file = wanted.with_name(f"requirements-{release.python}{kind}.txt")
        _write(file, about, joined(reports, without=_UNWANTED))


def _write(file: Path, about: str, entries: list[Locked]) -> None:
    file.write_text(write(f"{about}. {_HINT}", entries))
    print(file.relative_to(CHECKOUT))


def _resolve(*arguments: str) -> dict[str, Any]:
    """Return pip's report about the distributions that it would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        pip("install", "--dry-run", "--ignore-installed", "--report", str(report), "--target", folder, *arguments)
        resolved: dict[str, Any] = json.loads(report.read_text())
        return resolved


if __name__ == "__main__":
    sys.exit(main())
