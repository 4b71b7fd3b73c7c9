"""The program as a package carries it: a virtual environment under /opt/edge-serve with all that edge-serve imports.

A virtual environment is a link to an interpreter, a file that says where that is, and packages in a folder. Written
like this it can be made for another release of Python, or another processor, than those of the machine that makes it,
and never mentions the folder it was made in.

    python -m deploy.program ROOT            for this machine's python3
    make install DESTDIR=ROOT                the same, with the units and the configuration
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

#: where it is installed
HOME = "opt/edge-serve"

#: extras of edge-serve that the package has
EXTRAS = "onnx"

#: wheels for Linux are built for a C library of some release or newer; before this one they were named otherwise
_OLDEST_GLIBC = 17

_START = """\
#!/opt/edge-serve/bin/python3 -I
import sys

from edge_serve.cli import main

sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What the program is to run on.

    Attributes:
        python: `3.11`
        machine: `x86_64` or `aarch64`
        glibc: the minor number of glibc 2
        interpreter: as that system has it
    """

    python: str
    machine: str
    glibc: int
    interpreter: str

    def wheels(self) -> list[str]:
        """pip's arguments that choose wheels for this target, whatever runs pip."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, _OLDEST_GLIBC - 1, -1)]
        platforms.append(f"manylinux2014_{self.machine}")
        return [
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={self.python}",
            *(f"--platform={name}" for name in platforms),
        ]


def this_machine() -> Target:
    """The python3 of this system: not one of a virtual environment, which does not last."""
    interpreter = os.path.realpath(shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable)
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([interpreter, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    return Target(version, platform.machine(), int(platform.libc_ver()[1].split(".")[1]), interpreter)


@contextlib.contextmanager
def readable_by_all() -> Iterator[None]:
    """What is written meanwhile can be read by everybody, the service's user too, whatever umask the caller has."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@readable_by_all()
def install(root: Path, target: Target, place: str = HOME) -> None:
    """Write the program to `place` below `root`. An older one there stays until the new one is complete.

    Raises:
        subprocess.CalledProcessError: pip failed; it has said why.
        OSError: it cannot be written there.
    """
    home = root / place
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".edge-serve-", dir=home.parent) as folder:
        fresh, old = Path(folder, "fresh"), Path(folder, "old")
        _write(fresh, target)
        if home.exists():
            home.rename(old)
        fresh.rename(home)


def _write(home: Path, target: Target) -> None:
    packages = home / "lib" / f"python{target.python}" / "site-packages"
    packages.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = _wheel(Path(folder))
        _pip("install", "--no-compile", "--target", str(packages), *target.wheels(), f"{wheel}[{EXTRAS}]")
    shutil.rmtree(packages / "bin", ignore_errors=True)  # scripts that name the interpreter of this machine
    # the distribution's python3-systemd, where it is installed; a link to nothing is no module, and we do without
    (packages / "systemd").symlink_to("/usr/lib/python3/dist-packages/systemd")
    _environment(home, target)


def _wheel(folder: Path) -> Path:
    """edge-serve itself, built from a copy: nothing is left in the checkout, and nothing old of it gets in."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(CHECKOUT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(CHECKOUT / "edge_serve", source / "edge_serve", ignore=ignored)
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    return next(folder.glob("*.whl"))


def _environment(home: Path, target: Target) -> None:
    programs = home / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(target.interpreter)
    (programs / "python").symlink_to("python3")
    start = programs / "edge-serve"
    start.write_text(_START)
    start.chmod(0o755)
    (home / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(target.interpreter)}\n"
        "include-system-site-packages = false\n"
        f"version = {target.python}\n"
    )


def _pip(*arguments: str) -> None:
    """What pip says is shown when it fails: it warns of packages beside it that have no part in this."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", *arguments[:1], *quiet, *arguments[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise subprocess.CalledProcessError(done.returncode, command)


def why(error: subprocess.CalledProcessError | OSError, place: Path) -> str:
    """Of an `install` that failed, or of what is made with it in `place`: one line."""
    if isinstance(error, OSError):
        return f"cannot write '{error.filename or place}': {error.strerror or error}"
    return f"{' '.join(map(str, error.cmd[:4]))} ... failed, see above"


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m deploy.program ROOT`; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.program", description="write /opt/edge-serve below ROOT")
    parser.add_argument("root", type=Path)
    root = parser.parse_args(argv).root
    try:
        install(root, this_machine())
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"install: {why(error, root / HOME)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
