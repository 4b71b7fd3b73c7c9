"""Runs the steps of a page as a new user would: in a fresh clone and one terminal, and servers in their own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.docs.pages import ROOT, Step, as_shown

#: the ports in the pages, and the settings with which a server listens on others (9090 is Prometheus's)
PORTS = {
    "8000": "EDGE_SERVE_HTTP_PORT", "8001": "EDGE_SERVE_GRPC_PORT", "8002": "EDGE_SERVE_METRICS_PORT", "9090": "",
}  # fmt: skip
#: seconds that Ctrl-C may take: the server's own limit is 30
STOP_SECONDS = 40.0
_READY = re.compile(rb"edge-serve \S+ ready in")
#: of our own environment: the settings of make, pytest, Python and this server are not a new user's
_OURS = ("EDGE_SERVE", "VIRTUAL_ENV", "PYTEST", "PYTHON", "MAKE", "MFLAGS", "GNUMAKE", "NOTIFY_SOCKET")


def copy_checkout(folder: Path, models: bool) -> None:
    """Copy the files that git tracks or would add, as a clone has them; with `models`, also those of `make models`."""
    listed = _listed("--cached", "--others")
    fetched = _listed("--others", "--ignored", "--", "model_repository/*/*.txt", "model_repository/*.onnx")
    for name in {*listed, *(fetched if models else ())} - {""}:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _listed(*arguments: str) -> list[str]:
    command = ["git", "ls-files", "-z", "--exclude-standard", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")


def layer(base: Path, folder: Path) -> None:
    """Make a virtual environment on top of another one: an installation into it does not change the other."""
    subprocess.run([base / "bin/python", "-m", "venv", "--without-pip", folder], check=True)
    inner, outer = (next(venv.glob("lib/python3*/site-packages")) for venv in (folder, base))
    (inner / "base.pth").write_text(f"import site; site.addsitedir({str(outer)!r})\n")
    for script in (base / "bin").iterdir():
        text = script.read_bytes() if script.is_file() else b""
        if text.startswith(b"#!" + str(base).encode()) and not (folder / "bin" / script.name).exists():
            copy = folder / "bin" / script.name
            copy.write_bytes(text.replace(str(base).encode(), str(folder).encode(), 1))
            copy.chmod(0o755)


@contextlib.contextmanager
def ports() -> Iterator[dict[str, str]]:
    """Return a port for each port of the pages: the same, unless it is busy or another test run uses it."""
    with open(Path(tempfile.gettempdir()) / "edge-serve-docs.lock", "w") as lock, contextlib.ExitStack() as sockets:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for port in PORTS:
                sockets.enter_context(socket.create_server(("127.0.0.1", int(port))))
            found = {port: port for port in PORTS}
        except OSError:
            opened = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
            found = {port: str(sock.getsockname()[1]) for port, sock in zip(PORTS, opened, strict=True)}
        sockets.close()
        yield found


class Terminal:
    """Runs the commands of one page. `cd`, exported variables and functions last; a server has a terminal of its own.

    Args:
        folder: an empty directory, which gets the clone and the home directory
        base: a virtual environment whose packages the clone's `.venv` has; None: the page makes one
        ports: the port to use for each port of the page
        seconds: how long a command may take
    """

    def __init__(self, folder: Path, base: Path | None, ports: dict[str, str], seconds: float) -> None:
        self._clone, self._state, self._seconds = folder / "edge-serve", folder / "state", seconds
        self._ports = ports
        self._groups: list[subprocess.Popen[bytes]] = []
        self._servers: list[subprocess.Popen[bytes]] = []
        self._clone.mkdir()
        (folder / "home").mkdir()
        copy_checkout(self._clone, models=base is not None)
        path = [entry for entry in os.environ["PATH"].split(":") if not entry.startswith(sys.prefix)]
        if base is not None:
            layer(base, self._clone / ".venv")
            (self._clone / ".venv/serve").touch()
            path.insert(0, f"{self._clone}/.venv/bin")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
            **{PORTS[port]: use for port, use in ports.items() if use != port and PORTS[port]},
            # `edge-serve status` asks the server of this page, although another one has port 8000
            **({} if ports["8000"] == "8000" else {"EDGE_SERVE_ADMIN_SOCKET": str(folder / "admin.sock")}),
            "PATH": ":".join(path), "HOME": str(folder / "home"), "PIP_CACHE_DIR": str(Path.home() / ".cache/pip"),
            "PIP_CONFIG_FILE": str(Path.home() / ".config/pip/pip.conf"),
            "PIP_REQUIRE_VIRTUALENV": "true",  # no page may install into this machine's Python
        }  # fmt: skip

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        while self._servers:
            self._stop()
        for process in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def do(self, step: Step) -> None:
        """Run a step.

        Raises:
            AssertionError: the command failed, took too long, or printed something else than the page shows.
        """
        text = self._here(step.text)
        if step.kind == "file":
            path = self._directory() / step.detail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif step.kind == "stop":
            assert self._servers, f"line {step.line}: no server is running"
            self._stop()
        elif step.kind == "command":
            printed = self._run(step.line, text)
            shown = None if step.shown is None else self._here(step.shown)
            same = shown is None or as_shown(shown, printed, step.vary)
            assert same, f"line {step.line} printed:\n{printed}\nthe page shows:\n{shown}"

    def _here(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda match: self._ports[match[1]], text)

    def _directory(self) -> Path:
        """Return the directory after the last `cd`."""
        moved = re.findall(r"^cd (.*)$", self._state.read_text(), re.MULTILINE) if self._state.exists() else []
        return Path(moved[-1]) if moved else self._clone

    def _run(self, line: int, command: str) -> str:
        """Run a command until it ends, or until it is a server that is ready."""
        left = self._state.with_suffix(".left")
        leave = f"{{ declare -px | grep -v '^declare -[a-z]*r'; declare -f; echo \"cd $PWD\"; }} >{left}"
        script = f"[ ! -f {self._state} ] || . {self._state}\nset -euo pipefail\ntrap {_quoted(leave)} EXIT\n{command}"
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self._clone, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            self._groups.append(process)
            end = time.monotonic() + self._seconds
            while process.poll() is None:
                if _READY.search(_content(log)):
                    self._servers.append(process)
                    break
                assert time.monotonic() < end, f"line {line} takes longer than {self._seconds} s:\n{_text(log)}"
                time.sleep(0.02)
            assert not process.returncode, f"line {line} ended with status {process.returncode}:\n{_text(log)}"
            if process.returncode == 0:
                left.replace(self._state)
            return _text(log)

    def _stop(self) -> None:
        """Press Ctrl-C in the terminal of the last server."""
        server = self._servers.pop()
        os.killpg(server.pid, signal.SIGINT)
        server.wait(STOP_SECONDS)


def _content(log: IO[bytes]) -> bytes:
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0)


def _text(log: IO[bytes]) -> str:
    return _content(log).decode(errors="replace")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
