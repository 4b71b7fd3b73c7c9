"""Packages made from the package under test: another version, and the layout of versions up to 0.1.0-1."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKED = "opt/edge-serve/package"
#: appended to a module, so that two versions differ in what runs
_MARK = '\n__version__ = "{version}"\n'


@dataclass(frozen=True, slots=True)
class Package:
    """A .deb.

    Attributes:
        sums: of the program's files, as `md5sum -c` reads them in the program's folder
    """

    path: Path
    version: str
    sums: str


def describe(path: Path, folder: Path) -> Package:
    """Unpack a .deb into `folder` and return its facts."""
    _unpack(path, folder)
    return _package(path, folder)


def changed(original: Path, version: str, folder: Path) -> Package:
    """Make the package of another version, whose program differs."""
    tree = folder / "tree"
    _unpack(original, tree)
    _set_version(tree, version)
    init = next((tree / PACKED).glob("lib/python*/site-packages/edge_serve/__init__.py"))
    init.write_text(init.read_text() + _MARK.format(version=version))
    return _package(_pack(tree, folder / f"edge-serve_{version}_amd64.deb"), tree)


def before(original: Path, folder: Path) -> Package:
    """Make a package with the layout of 0.1.0-1: the program and its byte code are in /opt/edge-serve itself."""
    tree = folder / "tree"
    _unpack(original, tree)
    _set_version(tree, "0.1.0-1")
    home = tree / "opt/edge-serve"
    shutil.rmtree(home / "bin")
    for path in (tree / PACKED).iterdir():
        path.rename(home / path.name)
    (tree / PACKED).rmdir()
    (home / "wheels.txt").unlink()
    (home / "bin/edge-serve").write_text(
        (home / "bin/edge-serve").read_text().replace("/opt/edge-serve/current/", "/opt/edge-serve/")
    )
    socket = tree / "usr/lib/systemd/system/edge-serve.socket"
    socket.write_text(socket.read_text().replace("ListenStream=8000", "ListenStream=0.0.0.0:8000"))
    for name in ("preinst", "postrm", "prerm"):
        (tree / "DEBIAN" / name).unlink()
    (tree / "DEBIAN/postinst").write_text(
        "#!/bin/sh\nset -e\n/opt/edge-serve/bin/python3 -I -m compileall -q --invalidation-mode unchecked-hash"
        " /opt/edge-serve/lib\nsystemctl daemon-reload\nsystemctl try-restart edge-serve\n"
    )
    return _package(_pack(tree, folder / "edge-serve_0.1.0-1_amd64.deb"), tree)


def _unpack(path: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "-R", path, folder], check=True)


def _pack(tree: Path, path: Path) -> Path:
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def _set_version(tree: Path, version: str) -> None:
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("^Version: .*$", f"Version: {version}", control.read_text(), flags=re.MULTILINE))


def _package(path: Path, tree: Path) -> Package:
    version = re.search("^Version: (.*)$", (tree / "DEBIAN/control").read_text(), re.MULTILINE)
    assert version is not None
    folder = tree / PACKED if (tree / PACKED).exists() else tree / "opt/edge-serve"
    files = sorted(file.relative_to(folder) for file in folder.glob("lib/**/*") if file.is_file())
    command = ["md5sum", *(str(file) for file in files)]
    done = subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return Package(path, version[1], done.stdout)
