"""The site of a device, on this host: a laptop that writes its boot partition, a publisher, and nginx with releases."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ota.publish.publisher import Publisher
from tests.system.fleet import DEVICE, publish_simple
from tests.system.image.esp import Esp
from tests.system.vm import free_port

#: this host, as QEMU's user network shows it to the device
HOST = "10.0.2.2"
_NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/temp; proxy_temp_path {folder}/temp; fastcgi_temp_path {folder}/temp;
  uwsgi_temp_path {folder}/temp; scgi_temp_path {folder}/temp;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""
_SETTINGS = """\
schema = 1

[host]
name = "{name}"

[ota]
url = ["http://{host}:{port}"]
root = "root.json"
device = "device.json"
"""


class Site:
    """A publisher with one device in its fleet `plant`, and the port of its web server.

    The environment needs EDGE_OTA_PUBLISH_PASSPHRASE.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.port = free_port()
        self.publisher = Publisher(base)
        self.publisher.init("--family", "vision")
        self.publisher.do("device add", DEVICE, "--fleet", "plant", "--ring", "prod", "--out", base / "device.json")

    def provision(self, disk: Path) -> None:
        """Write edge-serve.toml and its files to the boot partition, as the owner's laptop does after flashing."""
        esp = Esp(disk)
        settings = _SETTINGS.format(name=DEVICE, host=HOST, port=self.port)
        esp.write("edge-serve.toml", settings.encode())
        esp.write("root.json", (self.publisher.dir / "root.json").read_bytes())
        esp.write("device.json", (self._base / "device.json").read_bytes())

    def publish(self, name: str, release: int) -> None:
        """Publish a release of a copy of the model `simple`, and roll it out."""
        publish_simple(self.publisher, release, name=name)

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve the repository by nginx."""
        folder = self._base / "nginx"
        folder.mkdir()
        folder.chmod(0o777)
        self._base.chmod(0o755)
        conf = folder / "nginx.conf"
        conf.write_text(_NGINX.format(folder=folder, port=self.port, root=self.publisher.repository))
        process = subprocess.Popen(["nginx", "-c", str(conf), "-g", "user root;"], stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)

    def requests(self) -> str:
        """Return the access log of nginx."""
        return (self._base / "nginx/access.log").read_text()


def why_not() -> str:
    """Return why this host has no site; "" = it can have one."""
    return "" if shutil.which("nginx") else "nginx is not installed: apt-get install nginx-light"


class Clock:
    """Prints the seconds since it was made, at each step."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)
