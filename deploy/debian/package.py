"""The tree of a package, its control files, and the .deb made of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy.debian.releases import MACHINES, RELEASES, Release, target
from deploy.program import CHECKOUT, HOME, install, readable_by_all

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")

#: where dpkg unpacks the program; postinst makes the tree that runs of it
PACKED = f"{HOME}/package"


def version() -> str:
    """edge-serve's own, as pyproject.toml has it."""
    found = re.search(r'^version = "(.+)"$', (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError('pyproject.toml has no line like: version = "0.1.0"')
    return found[1]


def control(release: Release, arch: str, kilobytes: int) -> str:
    """The control file (Debian policy, chapter 5)."""
    fields = {
        "Package": "edge-serve",
        "Version": f"{version()}-1+{release.tag}",
        "Architecture": arch,
        "Maintainer": "edge-serve <edge-serve@localhost>",
        "Section": "net",
        "Priority": "optional",
        "Installed-Size": str(kilobytes),
        # venvs link to the interpreter: the one of this release, with the whole standard library
        "Depends": f"python{release.python}, libc6 (>= 2.{release.glibc}), libstdc++6, systemd",
        # journal fields and notifications by systemd's own library; without it ours serve
        "Recommends": "python3-systemd",
        "Description": "inference server for one device\n"
        " Serves models (ONNX, Python) over HTTP and gRPC with Triton's protocol and configuration,\n"
        " as a supervised and locked-down systemd service.",
    }
    return "".join(f"{name}: {text}\n" for name, text in fields.items())


@readable_by_all()
def build(name: str, arch: str, out: Path) -> Path:
    """Make the package for a release in `out`; its path.

    Raises:
        subprocess.CalledProcessError: make, pip or dpkg-deb failed; it has said why.
        OSError: `out` cannot be written.
    """
    release = RELEASES[name]
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", _changed())  # the same sources give the same times in the archive
    with tempfile.TemporaryDirectory(prefix="edge-serve-deb-") as folder:
        root = Path(folder) / "root"
        root.mkdir(mode=0o755)
        _system(root, release, arch)
        install(root, target(release, arch), PACKED)
        (root / HOME / "bin").mkdir()
        (root / HOME / "bin/edge-serve").symlink_to("../current/bin/edge-serve")
        _control_files(root, release, arch)
        path = out / f"edge-serve_{version()}-1+{release.tag}_{arch}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z9", "--build", str(root), str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def _system(root: Path, release: Release, arch: str) -> None:
    """Units, configuration and pages."""
    arguments = [f"DESTDIR={root}", f"SYSTEMD={release.systemd}", f"MACHINE={MACHINES[arch]}"]
    subprocess.run(["make", "--silent", "--no-print-directory", "install-system", *arguments], cwd=CHECKOUT, check=True)


def _control_files(root: Path, release: Release, arch: str) -> None:
    """DEBIAN/: what dpkg is told, in place of what debhelper would write."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    kilobytes = sum(max(1, path.stat().st_size // 1024) for path in files)
    folder = root / "DEBIAN"
    folder.mkdir()
    (folder / "control").write_text(control(release, arch, kilobytes))
    settings = [path for path in files if (root / "etc") in path.parents]
    (folder / "conffiles").write_text("".join(f"/{path.relative_to(root)}\n" for path in settings))
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
    (folder / "md5sums").write_text("".join(sums))
    for name in SCRIPTS:
        shutil.copy(Path(__file__).parent / name, folder / name)
        (folder / name).chmod(0o755)


def _changed() -> str:
    """When the sources were last changed, in seconds of UNIX; 0 where git does not know."""
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or "0"
    except (OSError, subprocess.CalledProcessError):
        return "0"
