"""mkosi: gets it from Debian's archive, gives it the sources of packages, and runs it with its progress.

Debian 13 has the version that builds the image; older releases and package indexes of Python have not. It is unpacked
into the work folder and runs from there, so nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from image.errors import ImageError

RELEASE = "trixie"
#: newer versions may build other bytes: change it together with image/packages.txt
VERSION = "25.3-7"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: a mirror of Debian for machines whose own sources name none
MIRROR = "EDGE_IMAGE_MIRROR"

_PACKAGES = "usr/lib/python3/dist-packages"
#: lines of a failed build that are printed
_TAIL = 40


def sources(targets: str, mirror: str | None = None, components: str = "main") -> str:
    """Return apt's sources of the image's release, in deb822 format.

    Args:
        targets: lines `URI SUITE` of this machine's own sources, as `apt-get indextargets` prints them.
        mirror: URI of a mirror of Debian, in place of this machine's sources.
        components: parts of the archive that the image's packages come from.

    Raises:
        ImageError: no source has Debian.
    """
    found: dict[tuple[str, str], None] = {}
    for line in targets.splitlines():
        uri, _, suite = line.strip().partition(" ")
        _, dash, kind = suite.partition("-")
        if _is_debian(uri, suite) and kind in ("", "updates", "security"):
            found[uri.rstrip("/"), f"{RELEASE}{dash}{kind}"] = None
    if mirror:
        base = mirror.rstrip("/")
        found = {(base, RELEASE): None, (base, f"{RELEASE}-updates"): None}
        found[f"{base}-security", f"{RELEASE}-security"] = None
    if not any(suite == RELEASE for _, suite in found):
        raise ImageError(
            "this machine's apt sources have no archive of Debian, which the image is made of:"
            f" set {MIRROR}=<URI of a mirror>, such as the one in a Debian machine's /etc/apt/sources.list"
        )
    stanza = "Types: deb\nURIs: {}\nSuites: {}\nComponents: {}\nSigned-By: {}\n"
    return "\n".join(stanza.format(uri, suite, components, KEYRING) for uri, suite in found)


def _is_debian(uri: str, suite: str) -> bool:
    """Tell whether a source is Debian's archive, and not another one for the same release."""
    words = uri.rstrip("/").rsplit("/", 1)[-1]
    return words in ("debian", "debian-security") and not suite.endswith("-backports")


def host_sources(components: str = "main") -> str:
    """Return the sources of the image's release from this machine's own.

    Raises:
        ImageError: there are none.
    """
    if not Path(KEYRING).exists():
        raise ImageError(
            f"{KEYRING} is missing, which Debian's archive is checked with: apt-get install debian-archive-keyring"
        )
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True)
    return sources(done.stdout, os.environ.get(MIRROR), components)


def fetch(work: Path, apt_sources: str) -> Path:
    """Return the folder with mkosi's Python package. Download it if this version is not there yet.

    Raises:
        ImageError: the archive cannot be reached, or has another version.
    """
    home = work / f"mkosi-{VERSION}"
    if (home / _PACKAGES / "mkosi").is_dir():
        return home / _PACKAGES
    apt = work / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "mkosi.sources").write_text(apt_sources)
    options = {
        "Dir::Etc::sourcelist": apt / "mkosi.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _apt(
        ["apt-get", *flags, "--error-on=any", "-q", "update"],
        apt,
        f"{RELEASE} cannot be read from this machine's apt sources",
    )
    _apt(["apt-get", *flags, "-q", "download", f"mkosi={VERSION}"], apt, f"the archive has no mkosi {VERSION}")
    fresh = work / "mkosi.new"
    shutil.rmtree(fresh, ignore_errors=True)
    package = next(apt.glob("mkosi_*.deb"))
    subprocess.run(["dpkg", "-x", str(package), str(fresh)], check=True)
    fresh.rename(home)
    return home / _PACKAGES


def _apt(command: Sequence[str], folder: Path, problem: str) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.startswith(("E:", "W:", "Err"))]
        detail = "\n".join(lines[:6])
        raise ImageError(
            f"{problem}: check the network and the sources (apt-get update), or set {MIRROR}=<URI>;"
            f" apt-get says:\n{detail}"
        )


def run(packages: Path, arguments: Sequence[str], log: Path) -> None:
    """Run mkosi. Print its steps with the seconds since the start; everything else goes to `log`.

    Raises:
        ImageError: mkosi failed; its last lines are printed.
    """
    command = [sys.executable, "-m", "mkosi", *arguments]
    environ = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": os.environ.get("HOME", "/root"),
        "PYTHONPATH": str(packages),
    }
    environ |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    began, last = time.monotonic(), deque[str](maxlen=_TAIL)
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environ
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            last.append(line)
            if line.startswith("‣ "):
                print(f"  {time.monotonic() - began:4.0f} s  {line[2:].strip()}", flush=True)
    if process.returncode:
        sys.stderr.writelines(last)
        raise ImageError(
            f"mkosi failed with status {process.returncode}; its last lines are above, all of them are in {log}"
        )
