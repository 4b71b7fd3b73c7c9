"""Builds an image: `make image`. The package, then mkosi, then the files in dist/."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.debian.package import build as build_package
from deploy.debian.releases import MACHINES
from deploy.program import why
from deploy.version import Build, VersionError, identify
from image import artifacts, bill, machine, mkosi_tool, packages
from image.errors import ImageError
from image.stage import stage, state_schema

#: profile -> the components of Debian's archive that it needs
PROFILES = {"base": "main", "nvidia": "main contrib non-free non-free-firmware"}
#: processor, in the words of systemd -> in those of Debian
ARCHES = {"x86-64": "amd64", "arm64": "arm64"}

_ZSTD = ("zstd", "--quiet", "--force", "-T0", "-9", "--long=27", "--sparse")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a build makes.

    Attributes:
        build: version and date of the checkout
        number: the version of the system, which rises with every release
        profile: a name of PROFILES
        out: the folder for finished files
        arch: a name of ARCHES
        fresh: build without the cached trees of Debian's packages
    """

    build: Build
    number: int
    profile: str
    out: Path
    fresh: bool = False
    arch: str = "x86-64"

    @property
    def name(self) -> str:
        """The start of file names that tell the package's version, the profile, and the processor."""
        return f"edge-serve_{self.build.version}_{self._variant}"

    @property
    def system(self) -> str:
        """The label of an update's partitions, and the start of the names that mkosi gives to its files."""
        return f"edge_{self.number}"

    @property
    def update(self) -> str:
        """The start of the names of an update's files in `out`, which may have those of other profiles too."""
        return self.system if self._variant == "base" else f"{self.system}_{self._variant}"

    @property
    def _variant(self) -> str:
        return self.profile if self.arch == "x86-64" else f"{self.profile}-{self.arch}"


def wish(profile: str, out: Path, fresh: bool, arch: str = "x86-64") -> Wish:
    """Return the build of this checkout. IMAGE_VERSION overrides its number, the number of commits.

    Raises:
        ImageError: the version cannot be determined.
    """
    try:
        build = identify()
    except VersionError as error:
        raise ImageError(str(error)) from None
    text = os.environ.get("IMAGE_VERSION", "")
    counted = re.search(r"\+git(\d+)", build.version)
    if not text and counted is None:
        raise ImageError(f"version {build.version} has no number of commits: set IMAGE_VERSION=<number above the last>")
    text = text or (counted[1] if counted else "")
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise ImageError(f"IMAGE_VERSION is {text!r}, expected a number from 1 to 999999999")
    return Wish(build, int(text), profile, out, fresh, arch)


def build(asked: Wish) -> list[Path]:
    """Build an image. Return the files that were written to `asked.out`, the compressed disk first.

    Raises:
        ImageError: with the reason and the way out.
    """
    work = machine.work_folder()
    machine.check(work)
    machine.check_processor(MACHINES[ARCHES[asked.arch]])
    with machine.only_build(work):
        sources = mkosi_tool.host_sources(PROFILES[asked.profile])
        say("mkosi and the sources of packages")
        tool = mkosi_tool.fetch(work, sources)
        stage(work / "config", sources)
        say("the package edge-serve")
        package = _package(work / "package", asked)
        say(f"image {asked.number} ({asked.profile}); the first one fetches 1 GB of tools and packages")
        remove_earlier(work)
        mkosi_tool.run(tool, arguments(asked, work), work / "build.log")
        raw = _only(work / "out", f"{asked.system}.raw")
        found = packages.read_manifests(manifests(work))
        if (asked.profile, asked.arch) == ("base", "x86-64"):
            packages.check(found)
            check_tools(work)
        say("files for dist/")
        return _finish(asked, raw, package, found)


def say(text: str) -> None:
    """Print one line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def remove_earlier(work: Path) -> None:
    """Remove the files of earlier builds, because names of partitions have the hash of their content."""
    for path in (work / "out").glob("edge_*"):
        path.unlink()


def check_tools(work: Path) -> None:
    """Compare the tools that packed the image with the list.

    Raises:
        ImageError: they differ.
    """
    older = f". Where those of this machine are older than the list, remove {work / 'cache/tools.cache'} instead"
    packages.check(packages.read_tools(tools(work)), packages.LOCK_OF_TOOLS, older)


def tools(work: Path) -> Path:
    """Return mkosi's tree of tools."""
    return work / "out/tools"


def manifests(work: Path) -> list[Path]:
    """Return the lists of packages that the last build wrote: of the root, and of the initrd."""
    images = sorted((work / "out").glob("edge_*.manifest"), key=lambda path: path.stat().st_mtime)
    if not images:
        raise ImageError("no image was built yet: make image")
    return [images[-1], work / "out/initrd.manifest"]


def arguments(asked: Wish, work: Path) -> list[str]:
    """Return mkosi's arguments: all that the committed configuration cannot know."""
    options = {
        "directory": work / "config",
        "architecture": asked.arch,
        "image-version": asked.number,
        "source-date-epoch": asked.build.epoch,
        "output-directory": work / "out",
        "workspace-directory": work / "tmp",
        "cache-directory": work / "cache",
        "package-cache-directory": work / "packages",
        "volatile-package-directory": work / "package",
    }
    for name in ("out", "tmp", "cache", "packages"):
        (work / name).mkdir(exist_ok=True)
    profile = [] if asked.profile == "base" else [f"--profile={asked.profile}"]
    force = "-ff" if asked.fresh else "-f"
    return [*(f"--{name}={value}" for name, value in options.items()), *profile, force, "build"]


def _package(folder: Path, asked: Wish) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return build_package(mkosi_tool.RELEASE, ARCHES[asked.arch], folder, gpu=asked.profile == "nvidia")
    except VersionError as error:
        raise ImageError(str(error)) from None
    except (subprocess.CalledProcessError, OSError) as error:
        raise ImageError(f"the package edge-serve: {why(error, folder)}") from None


def _finish(asked: Wish, raw: Path, package: Path, found: list[tuple[str, str, str]]) -> list[Path]:
    """Write the files of dist/: first beside them, so that a build that is cut off leaves those of an earlier one.

    Waits while a build with another work folder does the same: both share `.unfinished` and SHA256SUMS.
    """
    asked.out.mkdir(parents=True, exist_ok=True)
    with machine.lock(asked.out):
        unfinished = asked.out / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            made = _write(asked, raw, package, found, unfinished)
            sums = artifacts.write_sums(asked.out, made)
            return [*(path.replace(asked.out / path.name) for path in made), sums]
        finally:
            shutil.rmtree(unfinished)


def _write(asked: Wish, raw: Path, package: Path, found: list[tuple[str, str, str]], out: Path) -> list[Path]:
    """Write the files of dist/ but for their sums. Return their paths, that of the compressed disk first."""
    source = raw.parent
    root = _only(source, f"{asked.system}.root-{asked.arch}.*.raw")
    verity = _only(source, f"{asked.system}.root-{asked.arch}-verity.*.raw")
    kernel = _only(source, f"{asked.system}.efi").read_bytes()
    artifacts.check_credentials(kernel)
    check_identity(asked, artifacts.release(kernel))
    hashed = artifacts.root_hash(kernel)
    with verity.open("rb") as file:
        extent = artifacts.used(file.read(512))
    disk = out / f"{asked.name}.img.zst"
    _compress(raw, disk)
    update = {name: out / f"{asked.update}.{name}" for name in ("root", "verity", "efi")}
    artifacts.copy_start(root, update["root"], extent.root)
    artifacts.copy_start(verity, update["verity"], extent.verity)
    update["efi"].write_bytes(kernel)
    licences = (source / "licences.txt").read_text(errors="replace")
    texts = {
        "packages.txt": packages.write(found),
        "licences.txt": licences + _from_package(package, "copyright"),
        "cdx.json": bill.bill_of_materials(
            f"edge-serve-image-{asked.profile}",
            str(asked.number),
            found,
            licences,
            _from_package(package, "sbom.cdx.json"),
        ),
    }
    beside = [disk, *update.values()]
    for name, text in texts.items():
        beside.append(out / f"{asked.name}.{name}")
        beside[-1].write_text(text)
    facts = out / f"{asked.update}.build.json"
    facts.write_text(_facts(asked, hashed, update))
    return [*beside, facts]


def check_identity(asked: Wish, release: Mapping[str, str]) -> None:
    """Compare os-release of a kernel image with what was asked for: the publisher and the devices read it.

    Raises:
        ImageError: it names another system, so devices of another profile would take it.
    """
    expected = {"IMAGE_ID": "edge", "IMAGE_VERSION": str(asked.number), "VARIANT_ID": asked.profile}
    expected["EDGE_STATE_SCHEMA"] = str(state_schema())
    for name, value in expected.items():
        if (found := release.get(name, "")) != value:
            raise ImageError(
                f"the kernel image has {name} {found!r}, expected {value!r}: see mkosi.finalize, and build it again"
            )


def _facts(asked: Wish, hashed: str, update: dict[str, Path]) -> str:
    """Return the description of an update, which `edge-ota publish` signs in its own form."""
    document = {
        "schema": 1,
        "product": "edge-serve",
        "profile": asked.profile,
        "arch": asked.arch,
        "version": asked.number,
        "package": asked.build.version,
        "root_hash": hashed,
        "state_schema": state_schema(),
        "files": {
            name: {"name": path.name, "length": path.stat().st_size, "sha256": artifacts.sha256(path)}
            for name, path in update.items()
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _compress(raw: Path, target: Path) -> None:
    done = subprocess.run([*_ZSTD, str(raw), "-o", str(target)], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise ImageError(f"{target} cannot be written: {done.stderr.strip() or f'zstd failed ({done.returncode})'}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ImageError(
            f"found {len(found)} files {pattern} in {folder}, expected one: remove the folder and build again"
        )
    return found[0]


def _from_package(package: Path, name: str) -> str:
    """Return the text of a document of the package edge-serve."""
    archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], check=True, stdout=subprocess.PIPE).stdout
    path = f"./usr/share/doc/edge-serve/{name}"
    text = subprocess.run(["tar", "--extract", "--to-stdout", path], input=archive, check=True, stdout=subprocess.PIPE)
    return text.stdout.decode()


def accept() -> list[Path]:
    """Write the packages of the last build, and those of its tools, to the lists. Return their paths.

    Raises:
        ImageError: there was no build.
    """
    work = machine.work_folder()
    built = {
        packages.LOCK: packages.read_manifests(manifests(work)),
        packages.LOCK_OF_TOOLS: packages.read_tools(tools(work)),
    }
    for lock, found in built.items():
        told = packages.differences(lock.read_text() if lock.exists() else "", found)
        lock.write_text(packages.write(found, lock))
        print(f"{lock}: {len(told)} differences accepted", *told, sep="\n  ", file=sys.stderr)
    return list(built)
