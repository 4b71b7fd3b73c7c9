"""The service on a machine under test: its ports from outside, its state in systemd, its models on disk."""

from __future__ import annotations

import http.client
import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.program import CHECKOUT
from tests.system.agent import KEPT
from tests.system.machine import UNREACHABLE, Machine, wait_until

MODELS = "/var/lib/edge-serve/models"
CONF_D = "/etc/edge-serve/conf.d"
HTTP, METRICS = 8000, 8002

_ROW = [list(range(16))]
_SIMPLE = {
    "inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": _ROW} for name in ("INPUT0", "INPUT1")]
}

#: prints the worker processes; the device image has no pgrep
_WORKERS = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes().decode().split("\\0")
    except OSError:  # it has just ended
        continue
    if "edge_serve.workers.child.main" in words:
        print(path.parent.name, *words)
"""


class Service:
    """edge-serve.service on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.patience = machine.boot.patience
        self.installation = ""
        self._since = ""

    # ---- from inside --------------------------------------------------------------------------------------------

    def install(self, package: Path) -> None:
        """Run `dpkg -i` without a network; `installation` is its output."""
        path = f"{KEPT}/{package.name}"
        self.machine.put(path, package.read_bytes())
        self.installation = self.machine.run(f"dpkg -i {path}", 300)

    def add_model(self, source: Path, name: str = "") -> None:
        """Add a model's directory to the repository."""
        self.machine.put_folder(source, f"{MODELS}/{name or source.name}")

    def add_python_model(self, name: str, source: str, config: str = "") -> None:
        """Add a model with one output, from the text of its model.py."""
        folder = f"{MODELS}/{name}"
        io = "".join(f'{kind} [{{name: "{kind.upper()}0" data_type: TYPE_INT32 dims: [16]}}]\n' for kind in IO)
        self.machine.put(f"{folder}/config.pbtxt", f'backend: "python"\nmax_batch_size: 8\n{io}{config}'.encode())
        self.machine.put(f"{folder}/1/model.py", source.encode())

    def add_shipped_models(self, *names: str) -> None:
        """Add some models of model_repository/."""
        for name in names:
            self.add_model(self.shipped(name))

    @staticmethod
    def shipped(name: str) -> Path:
        """Return the directory of a model of model_repository/."""
        return CHECKOUT / "model_repository" / name

    def start(self) -> None:
        """Run `systemctl start`, which returns when the service is ready."""
        done = self.machine.try_run("systemctl start edge-serve", 120)
        assert done.status == 0, f"{done.output}\n{self.journal()[-4000:]}"

    def override(self, text: str) -> None:
        """Write a drop-in for the unit; `clean` removes it, and so does a restart of the machine."""
        self.machine.put("/run/systemd/system/edge-serve.service.d/90-test.conf", text.encode())
        self.machine.run("systemctl daemon-reload")

    def configure(self, **settings: str) -> None:
        """Write settings to a file of /etc/edge-serve/conf.d."""
        lines = "".join(f"EDGE_SERVE_{name.upper()}={value}\\n" for name, value in settings.items())
        self.machine.run(f"printf '{lines}' >> {CONF_D}/90-test.conf")

    def show(self, prop: str) -> str:
        """Return a property of the unit."""
        return self.machine.run(f"systemctl show --value -p {prop} edge-serve").strip()

    def main_pid(self) -> int:
        """Return the PID of the front end; 0 = none."""
        return int(self.show("MainPID"))

    def workers(self) -> dict[int, str]:
        """Return the command lines of the worker processes by PID."""
        found = self.machine.run(f"python3 -c {shlex.quote(_WORKERS)}")
        return {int(line.split()[0]): line for line in found.splitlines()}

    def journal(self, arguments: str = "-o cat") -> str:
        """Return the journal of the service, with systemd's entries about it, since `clean`."""
        after = f"--after-cursor='{self._since}'" if self._since else ""
        return self.machine.run(f"journalctl -u edge-serve --no-pager {after} {arguments}")

    def clean(self) -> None:
        """Stop the service and restore the state after installation."""
        self.machine.run(
            "systemctl stop edge-serve.socket edge-serve-grpc.socket edge-serve-metrics.socket edge-serve;"
            f" systemctl reset-failed; rm -rf {MODELS}/* /etc/systemd/system/edge-serve*.d"
            " /run/systemd/system/edge-serve.service.d;"
            " find /var/lib/edge-serve -mindepth 1 -maxdepth 1 ! -name models -exec rm -rf {} +;"
            f" rm -f {CONF_D}/* /etc/edge-serve/edge-serve.conf /etc/edge-serve/credentials/*;"
            " : > /etc/edge-serve/tokens;"
            " systemctl daemon-reload",
            120,
        )
        last = self.machine.run("journalctl -n 1 --show-cursor --no-pager -o cat")
        self._since = last.rpartition("-- cursor: ")[2].strip()

    # ---- from outside -------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        port: int = HTTP,
        timeout: float = 10,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Send one request on a connection of its own. Return (status, body).

        Raises:
            OSError, http.client.HTTPException: no answer.
        """
        connection = http.client.HTTPConnection(*self.machine.boot.address(port), timeout=timeout * self.patience)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def status_of(self, method: str, path: str, body: Any = None, timeout: float = 10) -> int:
        """Return the status of one request; 0 = no answer."""
        try:
            return self.ask(method, path, body, timeout=timeout)[0]
        except UNREACHABLE:
            return 0

    def infer(self, model: str = "simple", timeout: float = 10) -> int:
        """Return the status of an inference with 16 numbers; 0 = no answer."""
        body = _SIMPLE if model.startswith("simple") else {"inputs": _SIMPLE["inputs"][:1]}
        return self.status_of("POST", f"/v2/models/{model}/infer", body, timeout)

    def infers(self, model: str = "simple") -> bool:
        """Return whether an inference succeeds within two seconds."""
        return self.infer(model, 2) == 200

    def metrics(self) -> str:
        """Return the metrics page."""
        return self.ask("GET", "/metrics", port=METRICS)[1]

    def recovered_in(self, condition: str, seconds: float) -> float:
        """Wait until the model `condition` infers. Return the seconds that it took.

        Raises:
            AssertionError: the model does not infer within `seconds`.
        """
        started = time.monotonic()
        if not wait_until(lambda: self.infers(condition), seconds * self.patience, 0.1):
            raise AssertionError(
                f"{condition} does not infer after {seconds} s; the journal:\n{self.journal()[-4000:]}"
            )
        return time.monotonic() - started


IO = ("input", "output")
