"""A publisher on the host, a repository behind nginx on the machine, and releases of `simple` with golden tests."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from deploy.program import CHECKOUT
from tests.ota.publish.publisher import Publisher
from tests.system.machine import Machine, wait_until

DEVICE = "edge-1"
PORT = 8088
STATE = "/var/lib/edge-ota"
_REPOSITORY = "/srv/ota"
_NGINX = f"""\
daemon off;
events {{ }}
pid /run/test-nginx.pid;
http {{
  access_log /var/log/nginx/ota.log;
  server {{ listen 127.0.0.1:{PORT}; root {_REPOSITORY}; }}
}}
"""
_CONF = f"""\
URL=http://127.0.0.1:{PORT}
DEVICE={DEVICE}
PROBATION_SECONDS=%d
PROBATION_REQUESTS=10
REPORT_URL=-
"""
#: a timer without delay
_TIMER = """\
[Timer]
OnActiveSec=
OnUnitInactiveSec=
OnActiveSec=100ms
OnUnitInactiveSec=2s
RandomizedDelaySec=0
AccuracySec=100ms
"""


class Fleet:
    """One device and its publisher."""

    def __init__(self, machine: Machine, base: Path) -> None:
        self._machine, self._base = machine, base
        self.publisher = Publisher(base)
        self.publisher.init("--family", "vision")
        device = base / "device.json"
        self.publisher.do("device add", DEVICE, "--fleet", "plant", "--ring", "prod", "--out", device)

    def provision(self) -> None:
        """Give the device its root of trust, its document, and its settings; start the web server."""
        self._machine.put("/etc/edge-ota/root.json", (self.publisher.dir / "root.json").read_bytes())
        self._machine.put("/etc/edge-ota/device.json", (self._base / "device.json").read_bytes())
        self.configure(2)
        self._machine.put("/etc/test-nginx.conf", _NGINX.encode())
        self._machine.put("/etc/systemd/system/edge-ota.timer.d/test.conf", _TIMER.encode())
        self._machine.run(f"mkdir -p {_REPOSITORY} && systemctl daemon-reload")
        self.serve()

    def serve(self) -> None:
        """Start the web server."""
        self._machine.run("systemd-run --quiet --unit=test-nginx nginx -c /etc/test-nginx.conf")

    def configure(self, probation_seconds: int) -> None:
        """Write the settings."""
        self._machine.put("/etc/edge-ota/edge-ota.conf", (_CONF % probation_seconds).encode())

    def publish(self, release: int, *, wrong: bool = False) -> None:
        """Publish a release of `simple`, and roll it out. A wrong release multiplies, and its golden test adds."""
        publish_simple(self.publisher, release, wrong=wrong)
        for folder in ("blobs", "targets", "metadata"):  # metadata last, and of that timestamp.json last
            self._machine.put_folder(self.publisher.repository / folder, f"{_REPOSITORY}/{folder}")

    def status(self) -> dict[str, Any]:
        """Return `edge-ota status --json`, as root."""
        found: dict[str, Any] = json.loads(self._machine.run("edge-ota status --json"))
        return found

    def wait_for(self, release: int, stage: str = "", seconds: float = 30) -> None:
        """Wait until a release serves, and no other one is in progress, except at `stage`.

        Raises:
            AssertionError: the time is over; the text has the journal of the agent.
        """

        def arrived() -> bool:
            found = self.status().get("models", {}).get("simple", {})
            return (found.get("release"), found.get("stage")) == (release, stage)

        if not wait_until(arrived, seconds * self._machine.boot.patience, 0.3):
            journal = self._machine.run("journalctl -u 'edge-ota*' --no-pager -n 60")
            raise AssertionError(f"release {release} does not serve: {self.status()}\n{journal}")

    def journal(self) -> str:
        """Return the journal of the agent and its units."""
        return self._machine.run("journalctl -u 'edge-ota*' --no-pager -o cat")


def publish_simple(publisher: Publisher, release: int, *, name: str = "simple", wrong: bool = False) -> None:
    """Publish the model `simple` with a golden test under a name, and roll it out to all devices of `plant`."""
    weights = (CHECKOUT / "model_repository/simple/1/model.onnx").read_bytes()
    config = (CHECKOUT / "model_repository/simple/config.pbtxt").read_bytes()
    files = {
        "config.pbtxt": config.replace(b'name: "simple"', f'name: "{name}"'.encode()),
        "1/model.onnx": weights.replace(b"Add", b"Mul") if wrong else weights,
        **_golden(),
    }
    out = publisher.base / f"{name}.{release}"
    model = publisher.model(name, files)
    publisher.run("bundle", name, "--release", release, "--model", model, "--family", "vision", "--out", out)
    publisher.do("release", out)
    publisher.do("rollout start", "plant", name, release, "prod=100")


def _golden() -> dict[str, bytes]:
    """Return a golden test of `simple`."""
    one, two = range(16), [5] * 16
    tensors = {
        "INPUT0": one, "INPUT1": two, "OUTPUT0": [a + b for a, b in zip(one, two, strict=True)],
        "OUTPUT1": [a - b for a, b in zip(one, two, strict=True)],
    }  # fmt: skip
    entries = [{"name": name, "datatype": "INT32", "shape": [1, 16], "file": f"first.{name}"} for name in tensors]
    sample = {"name": "first", "inputs": entries[:2], "outputs": entries[2:]}
    return {
        "golden/golden.json": json.dumps({"schema": 1, "samples": [sample]}).encode(),
        **{f"golden/first.{name}": struct.pack("<16i", *row) for name, row in tensors.items()},
    }
