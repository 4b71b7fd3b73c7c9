"""The demo of edge-ota, `make ota-demo`: a publisher, its web server, and a device, all on this machine.

It runs the commands of docs/ota.md in a directory of its own while clients send requests, checks the result of each
command, and removes everything at the end. It needs no root and no systemd, and takes about a minute.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

CHECKOUT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
#: seconds that a command, or the start of a server, may take
PATIENCE = 120.0
CLIENTS = 4
#: seconds between two requests of a client: a small machine needs its two cores for the update, too
PAUSE_SECONDS = 0.01
#: environment variables that would change the result of this demo
_OURS = ("EDGE_SERVE_", "EDGE_OTA_")


class Failed(Exception):
    """A step of the demo had another result than expected."""


class Load:
    """Clients that send requests to `simple`, check each answer, and count them by version."""

    def __init__(self, port: int) -> None:
        self._port, self._ended, self._lock = port, threading.Event(), threading.Lock()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        number = 0
        while not self._ended.wait(PAUSE_SECONDS):
            number += 1
            try:
                version = _ask(connection, number)
            except (OSError, http.client.HTTPException, ValueError, Failed) as error:
                connection.close()
                with self._lock:
                    self.failures.append(f"{type(error).__name__}: {error}")
            else:
                with self._lock:
                    self.answers[version] += 1
        connection.close()

    def wait_for_answers(self, count: int) -> None:
        """Wait for more answers."""
        wanted, end = self.answers.total() + count, time.monotonic() + PATIENCE
        while self.answers.total() < wanted:
            if self.failures or time.monotonic() > end:
                raise Failed(
                    f"fewer than {count} requests were answered in {PATIENCE:.0f} s, or one failed: {self.report()}"
                )
            time.sleep(0.05)

    def report(self) -> str:
        """Return the counts as a line."""
        by_version = ", ".join(f"{count} by release {version}" for version, count in sorted(self.answers.items()))
        failed = f"{len(self.failures)} failed" + (f", the first: {self.failures[0]}" if self.failures else "")
        return f"{self.answers.total()} requests answered ({by_version}), {failed}"


def _ask(connection: http.client.HTTPConnection, number: int) -> str:
    """Send a request, and return the version that answered it.

    Raises:
        Failed: the status is not 200, or the sum is wrong.
    """
    rows = [[number] * 16, [3] * 16]
    inputs = [
        {"name": f"INPUT{which}", "datatype": "INT32", "shape": [1, 16], "data": row} for which, row in enumerate(rows)
    ]
    connection.request("POST", "/v2/models/simple/infer", json.dumps({"inputs": inputs}))
    reply = connection.getresponse()
    body = reply.read()
    if reply.status != 200:
        raise Failed(f"status {reply.status}: {body.decode(errors='replace')[:200]}")
    document = json.loads(body)
    outputs = {one["name"]: one["data"] for one in document["outputs"]}
    if outputs["OUTPUT0"] != [number + 3] * 16 or outputs["OUTPUT1"] != [number - 3] * 16:
        raise Failed(f"release {document['model_version']} answered wrongly: {outputs}")
    return str(document["model_version"])


class Demo:
    """The directory of the demo, and the processes that it started."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)} | {
            "PATH": f"{PROGRAMS}:{os.environ.get('PATH', '')}",
            "EDGE_OTA_CONFIG": "edge-ota.conf",
            "EDGE_OTA_PUBLISH_DIR": "publisher",
        }

    def ota(self, command: str, status: int = 0) -> str:
        """Run `edge-ota COMMAND`, print it, and return its output.

        Raises:
            Failed: its exit status is not `status`.
        """
        return self._run(f"edge-ota {command}", status)

    def publish(self, command: str) -> None:
        """Run `edge-ota publish COMMAND` with the keys' passphrase; as `ota`."""
        self.ota(f"publish {command} --passphrase-file passphrase")

    def serve(self, command: str) -> str:
        """Run `edge-serve COMMAND`; as `ota`."""
        return self._run(f"edge-serve {command}", 0)

    def _run(self, command: str, status: int) -> str:
        print(f"$ {command}", flush=True)
        process, lines = self._start(command.split(), subprocess.PIPE), []
        limit = threading.Timer(PATIENCE, _end, [process])
        limit.start()
        try:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    lines.append(line.decode(errors="replace"))
                    print(lines[-1], end="", flush=True)
            process.wait()
        finally:
            limit.cancel()
            _end(process)
        if process.returncode != status:
            raise Failed(f"'{command}' ended with status {process.returncode}, expected {status}")
        return "".join(lines)

    def _start(self, command: list[str], out: IO[bytes] | int) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own: Ctrl-C reaches this demo only, which ends the others in order."""
        return subprocess.Popen(
            [str(PROGRAMS / command[0]), *command[1:]], cwd=self.base, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    @contextlib.contextmanager
    def server(self, command: str, name: str, ready: str) -> Iterator[str]:
        """Run a server. Yield the word that follows the text `ready` in its log.

        Raises:
            Failed: the server ended, or did not start in time; the text has its log.
        """
        path = self.base / f"{name}.log"
        print(f"$ {command} &", flush=True)
        with open(path, "wb") as log:
            process = self._start(command.split(), log)
        try:
            end = time.monotonic() + PATIENCE
            while not (found := path.read_text(errors="replace").partition(ready)[2].split()):
                if process.poll() is not None or time.monotonic() > end:
                    raise Failed(f"'{command}' did not start:\n{path.read_text(errors='replace')}")
                time.sleep(0.05)
            yield found[0]
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)


def run(demo: Demo) -> None:
    """Run all steps.

    Raises:
        Failed: a step had another result than expected.
    """
    _title("The publisher makes keys, and serves the repository")
    shutil.copytree(CHECKOUT / "model_repository/simple", demo.base / "lab/simple")
    (demo.base / "models").mkdir()
    (demo.base / "passphrase").write_text("a long passphrase for this demo\n")
    (demo.base / "passphrase").chmod(0o600)
    demo.publish("init publisher --preset small --family demo")
    ports = "--http-port 0 --metrics-port 0 --allow-grpc false"
    lab = f"edge-serve --model-repository lab {ports} --admin-socket lab.sock"
    device = f"edge-serve --model-repository models {ports} --admin-socket admin.sock"
    device += " --ota-status-file state/status.json"
    address = "HTTP on 127.0.0.1:"
    with demo.server("edge-ota publish serve --port 0", "repository", "repository at ") as url:
        demo.publish("device add edge-1 --fleet demo --ring prod --out device.json")
        with demo.server(lab, "lab", address) as golden, demo.server(device, "device", address) as port:
            _wait_until_ready(int(golden))
            _write_settings(demo.base, url)
            _first_release(demo, golden)
            with Load(int(port)) as load:
                _second_release(demo, golden, load)
                _third_release(demo, golden, load)


def _first_release(demo: Demo, golden: str) -> None:
    _title("Release 1: golden outputs come from a server in the lab; the device installs it, tries it, and serves it")
    _publish(demo, golden, 1)
    demo.publish("rollout start demo simple 1 prod=100")
    demo.ota("apply")
    _expect(demo, 1)


def _second_release(demo: Demo, golden: str, load: Load) -> None:
    _title("Release 2, while clients send requests: first for 0 % of the fleet, then for 100 %")
    load.wait_for_answers(50)
    config = demo.base / "lab/simple/config.pbtxt"
    config.write_text(config.read_text() + "dynamic_batching { }\n")
    _publish(demo, golden, 2)
    demo.publish("rollout start demo simple 2 prod=0")
    demo.ota("check")
    demo.publish("rollout step demo simple prod=100")
    demo.ota("apply")
    _expect(demo, 2)
    _check_load(load)


def _third_release(demo: Demo, golden: str, load: Load) -> None:
    _title("Release 3 has a wrong model: it fails its golden test, and no client ever sees it")
    wrong = demo.base / "lab/simple/1/model.onnx"
    wrong.write_bytes(wrong.read_bytes().replace(b"Add", b"Mul"))
    _publish(demo, golden, 3)
    demo.publish("rollout start demo simple 3 prod=100")
    demo.ota("apply", status=7)
    _expect(demo, 2)
    demo.ota("history")
    demo.serve("status --admin-socket admin.sock")
    _check_load(load)
    if "3" in load.answers:
        raise Failed(f"clients saw release 3: {load.report()}")


def _publish(demo: Demo, golden: str, release: int) -> None:
    options = f"--family demo --model lab/simple --golden-from http://127.0.0.1:{golden}"
    demo.ota(f"publish bundle simple --release {release} {options}")
    demo.publish(f"release simple.{release}")


def _expect(demo: Demo, release: int) -> None:
    shown = demo.ota("status")
    if f"simple: release {release} serves" not in shown:
        raise Failed(f"the device does not serve release {release}")


def _check_load(load: Load) -> None:
    load.wait_for_answers(50)
    print(f"clients: {load.report()}", flush=True)


def _wait_until_ready(port: int) -> None:
    """Wait until the lab's server has loaded the model."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/v2/models/simple/ready")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise Failed("the lab's server has no model 'simple'")


def _write_settings(base: Path, url: str) -> None:
    settings = {
        "URL": url, "ROOT": "publisher/root.json", "DEVICE": "edge-1", "DEVICE_FILE": "device.json",
        "STATE_DIR": base / "state", "FLOOR_COPY": "floors/floors.json", "MODEL_REPOSITORY": "models",
        "ADMIN_SOCKET": "admin.sock", "EDGE_SERVE": PROGRAMS / "edge-serve", "TRIAL_SOCKET": "", "BUILD_SOCKET": "",
        "PROBATION_SECONDS": 4, "PROBATION_REQUESTS": 50, "REPORT_URL": "-",
    }  # fmt: skip
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    (base / "edge-ota.conf").write_text(text)
    print(f"edge-ota.conf:\n{text}", end="")


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def main() -> int:
    """Run the demo; 0, 1 when a step failed, 130 after Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    begun = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="ota-demo-"))
    try:
        run(Demo(base))
    except Failed as error:
        print(f"\nota-demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nota-demo: stopped", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"\nota-demo passed in {time.monotonic() - begun:.0f} s; everything that it made is removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
