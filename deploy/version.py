"""The version of a build: pyproject.toml's, the number of commits, and the commit.

Each commit has more ancestors than the commits before it, so a version rises with every commit, whatever its date.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

#: file with the version where there is no git, as in an unpacked archive of the sources
FILE = "VERSION"

#: a file of every checkout; in an archive made by git its time is the commit's
_DATED = "pyproject.toml"


class VersionError(Exception):
    """The version of these sources cannot be determined; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Build:
    """The identity of what is built.

    Attributes:
        version: `0.1.0+git484.1cac580`; `.modified` follows where files differ from the commit
        epoch: UNIX time of every file in a package, so that the same commit gives the same bytes
    """

    version: str
    epoch: int


def base_version(checkout: Path = CHECKOUT) -> str:
    """Return edge-serve's version from pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (checkout / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise VersionError('pyproject.toml has no line like: version = "0.1.0"')
    return found[1]


def identify(checkout: Path = CHECKOUT) -> Build:
    """Return the build of a checkout, from git or from the file VERSION. SOURCE_DATE_EPOCH overrides the commit's date.

    Raises:
        VersionError: there is neither.
    """
    file = checkout / FILE
    if file.exists():
        version, epoch = file.read_text().strip(), str(int((checkout / _DATED).stat().st_mtime))
        if not re.fullmatch(r"[0-9][A-Za-z0-9.+~]*", version):
            raise VersionError(f"{FILE} has {version!r}, expected one like {base_version(checkout)}+git484.1cac580")
    else:
        version, epoch = _by_git(checkout)
    return Build(version, int(os.environ.get("SOURCE_DATE_EPOCH", epoch)))


def _by_git(checkout: Path) -> tuple[str, str]:
    # an archive may be unpacked inside another project's git checkout
    if not (checkout / ".git").exists():
        raise VersionError(
            f"'{checkout}' is no git checkout, which a version is made from: write one that is higher than"
            f" the last into the file {FILE}, such as {base_version(checkout)}+git484.1cac580"
        )
    if _git(checkout, "rev-parse", "--is-shallow-repository") == "true":
        raise VersionError("this clone has no history to count commits in: git fetch --unshallow")
    count = _git(checkout, "rev-list", "--count", "HEAD")
    commit, epoch = _git(checkout, "log", "-1", "--format=%H %ct").split()
    modified = ".modified" if _git(checkout, "status", "--porcelain") else ""
    return f"{base_version(checkout)}+git{count}.{commit[:7]}{modified}", epoch


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise VersionError(f"git is not installed: install it, or write a version into the file {FILE}") from None
    except subprocess.CalledProcessError as error:
        raise VersionError(f"git {arguments[0]} failed: {error.stderr.strip()}") from error
    return done.stdout.strip()
