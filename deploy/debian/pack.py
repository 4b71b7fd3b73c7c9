"""Builds the package of a backend pack: edge-serve-backend-openvino, and others (docs/packs.md).

dpkg's files are never run, as those of the server (docs/adr/0015): postinst copies them to a folder of their own, and
switches the link in the backend directory to it by a rename.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path

from deploy.debian.package import DOCUMENTS, PROVIDED, control_files, debian_version, kilobytes, pack_tree
from deploy.debian.releases import RELEASES, Release, target
from deploy.debian.texts import MAINTAINER, changelog, copyright_file
from deploy.program import CHECKOUT, Target, make_environment, pip, prune, readable_by_all
from deploy.requirements import INSTALLED
from deploy.version import identify
from deploy.wheels import read_wheels
from edge_serve.backends.packs import MANIFEST
from edge_serve.pack.install import GPU, find_lock, manifest

SOURCES = CHECKOUT / "packs"
#: where dpkg unpacks a pack, its running copies, and the links that the server follows
HOME = "opt/edge-serve-packs"
#: drop-in for the service, in the folder of a pack whose library makes code at run time
DROP_IN = "service.conf"
_UNITS = "usr/lib/systemd/system"
_SCRIPTS = ("postinst", "prerm", "postrm")


def packs() -> list[str]:
    """Return the packs that have locked wheels."""
    return sorted(path.parent.name for path in SOURCES.glob("*/requirements.in"))


@readable_by_all()
def build_pack(name: str, release_name: str, arch: str, out: Path, gpu: bool = False, level: int | None = None) -> Path:
    """Build the package of a pack for a release in `out`, for NVIDIA GPUs if `gpu` is true. Return its path.

    Args:
        level: of zstd, which dpkg-deb compresses with; None = that of a package that ships.

    Raises:
        InvalidArgument: the pack has no wheels for the release and the processor.
        VersionError: the version of these sources cannot be determined.
        subprocess.CalledProcessError: pip or dpkg-deb failed and printed the reason.
        OSError: `out` cannot be written.
    """
    release, made = RELEASES[release_name], identify()
    version, package = debian_version(made, release, GPU if gpu else ""), f"edge-serve-backend-{name}"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{package}-") as folder:
        root = Path(folder) / "root"
        place = root / HOME / "package" / name
        place.mkdir(mode=0o755, parents=True)
        _files(place, name, target(release, arch, gpu), version)
        _units(root, name)
        _documents(root, name, release_name, version, made.epoch)
        scripts = {one: _script(one, name) for one in _SCRIPTS}
        control_files(root, control(package, version, release, arch, kilobytes(root)), scripts)
        path = out / f"{package}_{version}_{arch}.deb"
        pack_tree(root, path, made.epoch, level or (3 if gpu else 9))
    return path


def control(package: str, version: str, release: Release, arch: str, size: int) -> str:
    """Return the control file (Debian policy, chapter 5)."""
    fields = {
        "Package": package,
        "Version": version,
        "Architecture": arch,
        "Maintainer": MAINTAINER,
        "Section": "net",
        "Priority": "optional",
        "Installed-Size": str(size),
        "Depends": f"python{release.python}, libc6 (>= 2.{release.glibc}), libstdc++6, edge-serve, {PROVIDED}",
        "Description": f"backend {package.rpartition('-')[2]} of edge-serve\n"
        " A backend of the inference server edge-serve, with libraries of its own.\n"
        " docs/packs.md in edge-serve's documentation lists the models that it serves.",
    }
    return "".join(f"{name}: {text}\n" for name, text in fields.items())


def _files(place: Path, name: str, for_target: Target, version: str) -> None:
    """Write the pack: its modules, its environment, and pack.json."""
    for file in (SOURCES / name).glob("*.py"):
        shutil.copy(file, place)
    lock = find_lock(SOURCES / name, for_target.python, for_target.machine, for_target.gpu)
    assert lock is not None, "a pack that has requirements.in has files of them"
    environment = place / "venv"
    packages = environment / "lib" / f"python{for_target.python}" / "site-packages"
    packages.mkdir(parents=True)
    arguments = ["--no-compile", "--target", str(packages), *for_target.wheels()]
    pip("install", *arguments, "--no-deps", "--require-hashes", "--requirement", str(lock))
    prune(packages)
    shutil.copy(lock, environment / INSTALLED)
    make_environment(environment, for_target)
    (place / MANIFEST).write_text(manifest(name, version, for_target.python, for_target.machine, lock))


def _units(root: Path, name: str) -> None:
    """Install the drop-in of a pack for the service, and for the trial of a release."""
    drop_in = SOURCES / name / DROP_IN
    for unit in ("edge-serve.service", "edge-ota-trial@.service") if drop_in.is_file() else ():
        folder = root / _UNITS / f"{unit}.d"
        folder.mkdir(parents=True)
        shutil.copy(drop_in, folder / f"20-backend-{name}.conf")


def _documents(root: Path, name: str, release_name: str, version: str, epoch: int) -> None:
    """Write /usr/share/doc: licences and changes."""
    package = f"edge-serve-backend-{name}"
    folder = root / DOCUMENTS.replace("edge-serve", package)
    folder.mkdir(parents=True)
    wheels = read_wheels(root / HOME / "package" / name / "venv", RELEASES[release_name].python)
    (folder / "copyright").write_text(copyright_file(wheels, f"{HOME}/package/{name}/venv/lib", f"{HOME}/versions"))
    changes = changelog((CHECKOUT / "docs/changes").glob("19-*.md"), version, release_name, epoch, package)
    (folder / "changelog.Debian.gz").write_bytes(gzip.compress(changes.encode(), 9, mtime=0))


def _script(script: str, name: str) -> str:
    text = (Path(__file__).parent / f"pack-{script}").read_text()
    return text.replace("@PACK@", name)
