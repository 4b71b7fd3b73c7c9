"""Builds a package: its tree, its control files, and the .deb."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.bill import bill_of_materials
from deploy.debian.releases import MACHINES, RELEASES, Release, target
from deploy.debian.texts import MAINTAINER, changelog, copyright_file
from deploy.program import CHECKOUT, HOME, PROGRAMS, install, readable_by_all
from deploy.requirements import GPU
from deploy.version import Build, identify
from deploy.wheels import read_wheels
from edge_serve.backends.packs import INTERFACE

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")

#: where dpkg unpacks the program; postinst makes the running copy of it
PACKED = f"{HOME}/package"
DOCUMENTS = "usr/share/doc/edge-serve"
#: by the package of the server, for the packages of packs
PROVIDED = f"edge-serve-backend-api-{INTERFACE}"


def debian_version(build: Build, release: Release, gpu: str = "") -> str:
    """Return the version of the package."""
    return f"{build.version}-1+{release.tag}{gpu and f'+{gpu}'}"


def control(version: str, release: Release, arch: str, kilobytes: int) -> str:
    """Return the control file (Debian policy, chapter 5)."""
    fields = {
        "Package": "edge-serve",
        "Version": version,
        "Architecture": arch,
        "Maintainer": MAINTAINER,
        "Section": "net",
        "Priority": "optional",
        "Installed-Size": str(kilobytes),
        # venvs link to the interpreter: the one of this release, with the whole standard library
        "Depends": f"python{release.python}, libc6 (>= 2.{release.glibc}), libstdc++6, systemd",
        "Provides": PROVIDED,
        # systemd's own library for journal fields and notifications; without it the server uses its own code
        "Recommends": "python3-systemd",
        "Description": "inference server for one device\n"
        " Serves models (ONNX, Python) over HTTP and gRPC with Triton's protocol\n"
        " and configuration, as a supervised and locked-down systemd service.",
    }
    return "".join(f"{name}: {text}\n" for name, text in fields.items())


@readable_by_all()
def build(name: str, arch: str, out: Path, gpu: bool = False) -> Path:
    """Build the package for a release in `out`, with CUDA for NVIDIA GPUs if `gpu` is true. Return its path.

    Raises:
        VersionError: the version of these sources cannot be determined.
        subprocess.CalledProcessError: make, pip or dpkg-deb failed and printed the reason.
        OSError: `out` cannot be written.
    """
    release, made = RELEASES[name], identify()
    version = debian_version(made, release, GPU if gpu else "")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="edge-serve-deb-") as folder:
        root = Path(folder) / "root"
        root.mkdir(mode=0o755)
        _system(root, release, arch)
        install(root, target(release, arch, gpu), made.version, PACKED)
        (root / HOME / "bin").mkdir()
        for program in PROGRAMS:
            (root / HOME / "bin" / program).symlink_to(f"../current/bin/{program}")
        _documents(root, name, version, made.epoch)
        scripts = {name: (Path(__file__).parent / name).read_text() for name in SCRIPTS}
        control_files(root, control(version, release, arch, kilobytes(root)), scripts)
        path = out / f"edge-serve_{version}_{arch}.deb"
        pack_tree(root, path, made.epoch, level=3 if gpu else 9)  # gigabytes of code for GPUs hardly shrink more
    return path


def pack_tree(root: Path, path: Path, epoch: int, level: int = 9) -> None:
    """Write the package of a tree: the same commit gives the same bytes."""
    command = ["dpkg-deb", "--root-owner-group", "-Zzstd", f"-z{level}", "--build", str(root), str(path)]
    # fixed times, and the same compression on any number of cores
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "DPKG_DEB_THREADS_MAX": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)


def _system(root: Path, release: Release, arch: str) -> None:
    """Install units, configuration and pages."""
    arguments = [f"DESTDIR={root}", f"SYSTEMD={release.systemd}", f"MACHINE={MACHINES[arch]}"]
    subprocess.run(["make", "--silent", "--no-print-directory", "install-system", *arguments], cwd=CHECKOUT, check=True)


def _documents(root: Path, name: str, version: str, epoch: int) -> None:
    """Write /usr/share/doc: licences, changes, and the bill of materials."""
    folder = root / DOCUMENTS
    folder.mkdir(parents=True, exist_ok=True)
    wheels = read_wheels(root / PACKED, RELEASES[name].python)
    (folder / "copyright").write_text(copyright_file(wheels))
    changes = changelog((CHECKOUT / "docs/changes").glob("*-*.md"), version, name, epoch)
    (folder / "changelog.Debian.gz").write_bytes(gzip.compress(changes.encode(), 9, mtime=0))
    (folder / "sbom.cdx.json").write_text(bill_of_materials(wheels, version, epoch))


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def kilobytes(root: Path) -> int:
    """Return the size of a tree."""
    return sum(max(1, path.stat().st_size // 1024) for path in _files(root))


def control_files(root: Path, control_file: str, scripts: Mapping[str, str]) -> None:
    """Write DEBIAN/, the files for dpkg that debhelper would write otherwise.

    Args:
        scripts: name of a maintainer script -> its text.
    """
    files = _files(root)
    folder = root / "DEBIAN"
    folder.mkdir()
    (folder / "control").write_text(control_file)
    settings = [path for path in files if (root / "etc") in path.parents]
    (folder / "conffiles").write_text("".join(f"/{path.relative_to(root)}\n" for path in settings))
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
    (folder / "md5sums").write_text("".join(sums))
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
