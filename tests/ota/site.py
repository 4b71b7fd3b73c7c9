"""A fleet of one device with the real programs: a publisher, an edge-serve, and `edge-ota` in this process."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ota.cli import main
from tests.ota.publish.publisher import PASSPHRASE, Publisher
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, Running, running

PROGRAM = str(Path(sys.executable).with_name("edge-serve"))
DEVICE = "dev-1"


class Site:
    """Directories below `base`, and what the commands said last."""

    def __init__(self, base: Path, server: Running) -> None:
        self.base, self.server = base, server
        self.publisher = Publisher(base)
        self.state, self.models = base / "state", base / "models"
        self.out = self.err = ""
        self.settings: dict[str, object] = {
            "url": self.publisher.repository,
            "root": self.publisher.dir / "root.json",
            "device": DEVICE,
            "device_file": base / "device.json",
            "state_dir": self.state,
            "floor_copy": base / "floors.json",
            "model_repository": self.models,
            "admin_socket": base / "admin.sock",
            "edge_serve": PROGRAM,
            "trial_socket": "",
            "build_socket": "",
            "probation_seconds": 0,
            "probation_requests": 0,
            "report_url": "-",
        }

    def publish(self, release: int, code: str = ADD_SUB, name: str = "det", want: bool = True) -> None:
        """Sign a release of a Python model, and have the fleet want it."""
        files = {"config.pbtxt": ADD_SUB_CONFIG.encode(), "1/model.py": f"# {release}\n{code}".encode()}
        model = self.publisher.model(name, files)
        self.publisher.run("bundle", name, "--release", release, "--model", model, "--family", "det")
        self.publisher.do("release", f"{name}.{release}", "--engines")
        if want:
            self.want(release, name)

    def want(self, release: int, name: str = "det", *flags: object) -> None:
        """Roll a release out to the device."""
        self.publisher.do("rollout start", "plant", name, release, "prod=100", *flags)

    def run(self, *arguments: object, status: int = 0, **settings: object) -> str:
        """Run a command on the device; its output."""
        flags = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {**self.settings, **settings}.items()
            if value is not None
        ]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main([*map(str, arguments), *flags])
        self.out, self.err = out.getvalue(), err.getvalue()
        assert found == status, f"{found}: {self.out}{self.err}"
        return self.out

    def json(self, *arguments: object, status: int = 0) -> Any:
        """Run a command with --json; its document."""
        return json.loads(self.run(*arguments, "--json", status=status))

    def serving(self, model: str = "det") -> str:
        """Return the version that answers a request."""
        status, found = self.server.add_sub(model)
        assert status == 200, found
        return str(found["model_version"])


@contextlib.contextmanager
def site(base: Path, environ: Mapping[str, str], *flags: str) -> Iterator[Site]:
    """Yield a site whose device is added, and whose server runs; no release is published."""
    (base / "models").mkdir()
    socket = ("--admin-socket", str(base / "admin.sock"))
    with running("--model-repository", str(base / "models"), *socket, *flags) as server:
        found = Site(base, server)
        found.publisher.init("--family", "det")
        found.publisher.do("device add", DEVICE, "--fleet", "plant", "--ring", "prod")
        yield found


ENVIRONMENT = {"EDGE_OTA_PUBLISH_PASSPHRASE": PASSPHRASE, "EDGE_OTA_CONFIG": "/nowhere"}
