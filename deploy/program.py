"""The program in a package: a virtual environment under /opt/edge-serve with everything that edge-serve imports.

A virtual environment is a link to an interpreter, a file with its path, and packages in a folder. Written file by
file, it may be for another Python or another processor than the build machine's, and it never contains the path of the
build folder.

    python -m deploy.program ROOT            for this machine's python3
    make install DESTDIR=ROOT                the same, with the units and the configuration
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import requirements
from deploy.version import CHECKOUT as CHECKOUT
from deploy.version import VersionError, base_version, identify

#: where the program is installed
HOME = "opt/edge-serve"

#: extras of edge-serve that the package has
EXTRAS = "onnx,nvml,ota"

#: the same for a PC with an NVIDIA GPU
GPU_EXTRAS = "onnx-gpu,ota"

#: files of wheels that no program loads
_UNUSED = (
    "bin/*",  # scripts that name the interpreter of this machine
    "onnxruntime/capi/libonnxruntime.so*",  # the library for C; the Python module contains the same code
    "numpy/**/tests",
    "numpy/conftest.py",
    "numpy/_core/_*_tests.*.so",
    "numpy/_core/_simd.*.so",  # processor instructions as functions, for NumPy's tests
    "numpy/**/*.a",
    "nvidia/*/include",  # for compilers
    "nvidia/**/*.a",
    "onnxruntime/capi/libonnxruntime_providers_tensorrt.so",  # loads TensorRT 10, which no extra of the package has
)

#: packages of the distribution that the program may import: python3-systemd; TensorRT of JetPack, which no wheel has
_OF_THE_SYSTEM = {
    "systemd": "/usr/lib/python3/dist-packages/systemd",
    "tensorrt": "/usr/lib/python{python}/dist-packages/tensorrt",
    "tensorrt_lean": "/usr/lib/python{python}/dist-packages/tensorrt_lean",
}

#: wheels are named `manylinux_2_N` from this minor number of glibc on; older ones have other names
_OLDEST_GLIBC = 17

#: of renameat2(2)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

#: the programs, and the module that each program starts
PROGRAMS = {"edge-serve": "edge_serve.cli", "edge-ota": "ota.cli"}

_START = """\
#!/opt/edge-serve/bin/python3 -I
import sys

from {module} import main

sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python, processor, and C library that a program is for.

    Attributes:
        python: `3.11`
        machine: `x86_64` or `aarch64`
        glibc: the minor number of glibc 2
        interpreter: its path on that system
        gpu: with CUDA 12 and onnxruntime-gpu (GPU_EXTRAS) in place of onnxruntime
    """

    python: str
    machine: str
    glibc: int
    interpreter: str
    gpu: bool = False

    def wheels(self) -> list[str]:
        """Return pip's arguments that choose wheels for this target, whichever Python runs pip."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, _OLDEST_GLIBC - 1, -1)]
        platforms.append(f"manylinux2014_{self.machine}")
        return [
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={self.python}",
            *(f"--platform={name}" for name in platforms),
        ]


def this_machine() -> Target:
    """Return the target of this system's python3, not of a virtual environment, which may be removed."""
    interpreter = os.path.realpath(shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable)
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([interpreter, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    return Target(version, platform.machine(), int(platform.libc_ver()[1].split(".")[1]), interpreter)


@contextlib.contextmanager
def readable_by_all() -> Iterator[None]:
    """Make new files readable by all users, the service's user among them, whatever umask the caller has."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@readable_by_all()
def install(root: Path, target: Target, version: str, place: str = HOME) -> None:
    """Write the program of a version to `place` below `root`. An older one stays there until the new one is complete.

    After a power cut, one of them is there as a whole.

    Raises:
        subprocess.CalledProcessError: pip failed and printed the reason.
        OSError: the program cannot be written there.
    """
    home = root / place
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".edge-serve-", dir=home.parent) as folder:
        fresh = Path(folder, "program")
        _write(fresh, target, version)
        os.sync()  # its files are durable before its name
        if home.exists():
            _exchange(fresh, home)
        else:
            fresh.rename(home)
        os.sync()  # its name is durable before the files of the old one are removed


def _exchange(fresh: Path, home: Path) -> None:
    """Exchange two folders in one step, so that a program is complete in its place at any moment.

    Raises:
        OSError: they cannot be exchanged; both are as they were.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(fresh), _AT_FDCWD, os.fsencode(home), _RENAME_EXCHANGE) == 0:
        return
    if (code := ctypes.get_errno()) != errno.EINVAL:
        raise OSError(code, os.strerror(code), str(home))
    # a file system without such a step, as NFS: a power cut between these two leaves the old program beside its place
    old = fresh.with_name("old")
    home.rename(old)
    try:
        fresh.rename(home)
    except BaseException:
        old.rename(home)
        raise


def _write(home: Path, target: Target, version: str) -> None:
    packages = home / "lib" / f"python{target.python}" / "site-packages"
    packages.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder), version)
        lock = requirements.lock_file(target.python, target.gpu)
        if lock.exists():
            wanted = ["--no-deps", "--require-hashes", "--requirement", str(lock)]
        else:
            print(f"install: no {lock.name} in deploy/, so pip chooses the newest wheels", file=sys.stderr)
            wanted = [f"{wheel}[{GPU_EXTRAS if target.gpu else EXTRAS}]"]
        report = Path(folder, "report.json")
        arguments = ["--no-compile", "--target", str(packages), "--report", str(report), *target.wheels()]
        pip("install", *arguments, *wanted)
        wheels = requirements.joined([json.loads(report.read_text())])
        about = "The wheels that this program was made of."
        (home / requirements.INSTALLED).write_text(requirements.write(about, wheels))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    prune(packages)
    for name, place in _OF_THE_SYSTEM.items():
        if not (packages / name).exists():  # Python ignores a link to a package that is not installed
            (packages / name).symlink_to(place.format(python=target.python))
    _environment(home, target)


def prune(packages: Path) -> None:
    """Remove files that no program loads, and files that pip writes about this build. Update the lists of files."""
    for pattern in (*_UNUSED, "*.dist-info/direct_url.json", "*.dist-info/REQUESTED"):
        for path in sorted(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for record in packages.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if (packages / line.split(",")[0]).exists()))


def copy_source(target: Path) -> None:
    """Copy what a wheel is built from to a new folder, so that no build folder is left in the checkout."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for package in ("edge_serve", "ota"):
        shutil.copytree(CHECKOUT / package, target / package, ignore=ignored)
    modules = [path.name for path in CHECKOUT.glob("*_backend_utils.py")]
    (target / "deploy").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "deploy/build_py.py", *modules):
        shutil.copy(CHECKOUT / name, target / name)


def build_wheel(folder: Path, version: str) -> Path:
    """Build the wheel of edge-serve from a copy: no file stays in the checkout, and no old file gets into the wheel.

    Raises:
        subprocess.CalledProcessError: pip failed and printed the reason.
        OSError: the program cannot be written there.
    """
    source, tools = folder / "source", folder / "tools"
    copy_source(source)
    for file, name in ((source / "pyproject.toml", "version"), (source / "edge_serve/__init__.py", "__version__")):
        line = f'{name} = "{version}"'
        file.write_text(re.sub(rf'^{name} = ".*"$', line, file.read_text(), count=1, flags=re.MULTILINE))
    pip("install", "--target", str(tools), "--no-deps", "--require-hashes", "--requirement", str(requirements.BUILD))
    arguments = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    pip("wheel", *arguments, path=str(tools))
    return next(folder.glob("*.whl"))


def _environment(home: Path, target: Target) -> None:
    make_environment(home, target)
    for name, module in PROGRAMS.items():
        start = home / "bin" / name
        start.write_text(_START.format(module=module))
        start.chmod(0o755)


def make_environment(home: Path, target: Target) -> None:
    """Make a folder of packages a virtual environment: a link to the interpreter, and a file with its path."""
    programs = home / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(target.interpreter)
    (programs / "python").symlink_to("python3")
    (home / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(target.interpreter)}\n"
        "include-system-site-packages = false\n"
        f"version = {target.python}\n"
    )


def pip(*arguments: str, path: str = "") -> None:
    """Run pip, with `path` before its own modules. Print its output only if it fails: it warns of unrelated packages.

    Raises:
        subprocess.CalledProcessError: pip failed and printed the reason.
    """
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", *arguments[:1], *quiet, *arguments[1:]]
    environ = {**os.environ, "PYTHONPATH": path} if path else None
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise subprocess.CalledProcessError(done.returncode, command)


def why(error: subprocess.CalledProcessError | OSError, place: Path) -> str:
    """Return one line about a failed `install`, or a failure to make `place`."""
    if isinstance(error, OSError):
        return f"cannot write '{error.filename or place}': {error.strerror or error}"
    return f"{' '.join(map(str, error.cmd[:4]))} ... failed, see above"


def _version() -> str:
    """Return the build's version, or the plain version where it is unknown, as in an unpacked archive."""
    try:
        return identify().version
    except VersionError:
        return base_version()


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m deploy.program ROOT`. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.program", description="write /opt/edge-serve below ROOT")
    parser.add_argument("root", type=Path)
    root = parser.parse_args(argv).root
    try:
        install(root, this_machine(), _version())
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"install: {why(error, root / HOME)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
