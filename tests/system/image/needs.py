"""What this host needs for `make test-image`. Its tests would be skipped without it, and the image would not be proven.

`python -m tests.system.image.needs` prints what is missing, before minutes are spent on the build.
"""

from __future__ import annotations

import shutil
import sys

from tests.system import disk
from tests.system.image import cable, esp, site

#: programs that the tests look for by themselves -> their packages
_PROGRAMS = {"prometheus": "prometheus", "chromium": "chromium", "zstd": "zstd"}


def missing() -> list[str]:
    """Return what is missing, with the way to install it."""
    programs = [
        f"{name} is not installed: apt-get install {package}"
        for name, package in _PROGRAMS.items()
        if not shutil.which(name)
    ]
    return [why for why in (disk.why_not(), site.why_not(), esp.why_not(), cable.why_not(), *programs) if why]


if __name__ == "__main__":
    found = missing()
    print(*(f"make test-image: {why}" for why in found), sep="\n", file=sys.stderr)
    sys.exit(bool(found))
