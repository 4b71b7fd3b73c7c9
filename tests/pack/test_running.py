"""`edge-serve pack` beside a server that runs: half an installation is repaired, and a pack in use is replaced and
removed, without a restart and without a failed request."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pack.test_pack import make_source, make_wheel
from tests.server.running import PATIENCE, Running, python_model, running
from tests.server.test_packs import BACKEND, ask, index, make_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # makes virtual environments with pip

#: imports a part of itself and of its library with its first request, as large libraries do
_LATE = """
        import tiny_library as clash
        from .part import FACTOR
        y = """
LAZY = (
    BACKEND.replace("import clash\nfrom", "from")
    .replace("from .factor import FACTOR\n", "")
    .replace("\n        y = ", _LATE)
    .replace("clash.__version__", "clash.VERSION")
)


class Packs:
    """Versions of the pack `fil` with a library, and a backend directory that the command writes."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "backends"
        self._folder = folder

    def command(self, version: int) -> list[str]:
        """Write a version, whose library has this version and whose models multiply by it; what installs it."""
        place = self._folder / f"version{version}"
        wheels = place / "wheels"
        if not place.exists():
            source = make_source(place, make_wheel(wheels, str(version)), LAZY)
            (source / "part.py").write_text(f"FACTOR = {version}\n")
        return [*self._command("install"), f"--from={place / 'own'}", f"--wheels={wheels}"]

    def install(self, version: int) -> str:
        """Install a version; what the command prints."""
        return self._done(self.command(version))

    def remove(self) -> str:
        """Remove the pack; what the command prints."""
        return self._done(self._command("remove"))

    def cut_off(self, version: int) -> None:
        """Kill the installation of a version while its environment is made."""
        process = subprocess.Popen(self.command(version), start_new_session=True)
        end = time.monotonic() + PATIENCE
        while not list(self.root.glob(".fil-*/fil/venv/bin/python")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert len(self.versions()) == 1

    def versions(self) -> list[Path]:
        """Return the versions that lie in the backend directory, whole or not."""
        return sorted(self.root.glob(".fil-*/fil"))

    def _command(self, action: str) -> list[str]:
        return [sys.executable, "-m", "edge_serve", "pack", action, "fil", f"--backend-directory={self.root}"]

    def _done(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextlib.contextmanager
def served(folder: Path, mode: str = "explicit") -> Iterator[Running]:
    """Start a server with a model of the pack, and one that needs no pack."""
    make_model(folder / "models", "m", 'backend: "fil"')
    python_model(folder / "models", "add")
    arguments = [f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}"]
    arguments += [f"--model-control-mode={mode}", "--exit-on-error=false"]
    with running(*arguments, *(["--load-model=*"] if mode == "explicit" else [])) as server:
        yield server


def load(server: Running) -> tuple[int, str]:
    """Ask the server to load the model."""
    status, body = server.post("/v2/repository/models/m/load")
    return status, body.decode()


def answer(server: Running) -> tuple[list[float], str]:
    """Return the model's answer to [1, 3], and the version of its library."""
    y, _, version, _ = ask(server, "m")
    return y, version


def test_half_an_installation_is_repaired_while_the_server_runs(tmp_path: Path) -> None:
    packs = Packs(tmp_path)
    packs.cut_off(1)
    with served(tmp_path) as server:
        assert (
            "backend 'fil' of model 'm' is not available: install the pack: edge-serve pack install fil"
            in (index(server)["m"]["reason"])
        )
        (tmp_path / "backends/fil/venv").mkdir(parents=True)  # as a copy that was cut off
        (tmp_path / "backends/fil/backend.py").write_text(LAZY)
        status, text = load(server)
        assert status != 200
        assert "is half installed, it has no pack.json: edge-serve pack install fil" in text
        assert server.add_sub("add")[0] == 200

        assert "models that are loaded from now on use it" in packs.install(1)
        assert load(server) == (200, "")
        assert answer(server) == ([1, 3], "1")
        assert len(packs.versions()) == 1  # neither the copy nor the installation that was cut off is left
        assert server.add_sub("add")[0] == 200


def test_a_pack_is_replaced_and_removed_while_its_model_is_served(tmp_path: Path) -> None:
    packs, config = Packs(tmp_path), tmp_path / "models/m/config.pbtxt"
    packs.install(1)
    with served(tmp_path, "none") as server:
        assert re.search(r"/\.fil-\w+/fil is in use by a server or another command", packs.install(2))
        assert answer(server) == ([1, 3], "1")  # imported only now, from the version that the model was loaded with
        os.kill(int(ask(server, "m")[1]), signal.SIGKILL)
        server.wait_for_log("model m is back in worker fil")
        assert answer(server) == ([1, 3], "1")

        with asking(server) as failures:
            look_again(server, config)
            end = time.monotonic() + PATIENCE
            while answer(server) != ([2, 6], "2"):
                assert time.monotonic() < end, server.log()
                time.sleep(0.05)
        assert failures == []

        packs.remove()
        assert len(packs.versions()) == 1  # the second is in use, and the first is gone
        assert answer(server) == ([2, 6], "2")
        look_again(server, config)
        server.wait_for_log("failed to load 'm'.*install the pack: edge-serve pack install fil")
        assert answer(server) == ([2, 6], "2")  # the version that serves stays
        assert server.add_sub("add")[0] == 200


@contextlib.contextmanager
def asking(server: Running) -> Iterator[list[Exception]]:
    """Send requests without a pause inside the context. Yield the failures, which are complete after it."""
    failures: list[Exception] = []
    stop = threading.Event()

    def requests() -> None:
        while not stop.is_set():
            try:
                ask(server, "m")
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=requests)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join()


def look_again(server: Running, config: Path) -> None:
    """Make a server in mode `none` load the model once more, as docs/packs.md says."""
    config.touch()
    server.process.send_signal(signal.SIGHUP)
