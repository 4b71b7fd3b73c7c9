"""A system over a real nginx: the server dies in the middle of the download, and the next run resumes it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ota.publish.publisher import Publisher
from tests.ota.system.images import write_image
from tests.ota.system.root_side import ARCH, root_side
from tests.ota.system.test_commands import Fleet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed: apt-get install nginx-light"),
]
_CONF = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
  log_format short '$request_method $uri $status $bytes_sent';
  access_log {folder}/access.log short;
  client_body_temp_path {folder}/temp; proxy_temp_path {folder}/temp; fastcgi_temp_path {folder}/temp;
  uwsgi_temp_path {folder}/temp; scgi_temp_path {folder}/temp;
  server {{ listen 127.0.0.1:{port}; root {root}; limit_rate {rate}; }}
}}
"""


class Nginx:
    """An nginx below a directory. Its folder is readable for its worker's user."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        folder.mkdir()
        for one in (folder, folder.parent):
            one.chmod(0o777)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]

    @contextlib.contextmanager
    def serving(self, rate: str) -> Iterator[subprocess.Popen[bytes]]:
        """Serve with a limit of the rate of each connection."""
        conf = self._folder / "nginx.conf"
        conf.write_text(_CONF.format(folder=self._folder, port=self.port, root=self._root, rate=rate))
        process = subprocess.Popen(["nginx", "-c", str(conf), "-g", "user root;"], stdin=subprocess.DEVNULL)
        try:
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                    break
                assert process.poll() is None, (self._folder / "error.log").read_text()
                time.sleep(0.01)
            yield process
        finally:
            process.terminate()
            process.wait(10)

    def log(self) -> list[str]:
        """Return the lines of the access log: method, path, status, bytes."""
        return (self._folder / "access.log").read_text().splitlines()


def test_a_download_that_was_cut_is_resumed(publisher: Publisher) -> None:
    fleet = Fleet(publisher)
    files = write_image(fleet.base / "dist", 2, arch=ARCH, blocks=2000)
    publisher.do("system", *files)
    publisher.do("rollout start", "plant", "system", 2, "prod=100")
    web = Nginx(fleet.base / "nginx", publisher.repository)
    fleet.settings |= {"url": f"http://127.0.0.1:{web.port}", "timeout": 2, "most-minutes": 0.08}
    partial = fleet.base / "state/partial"

    def stop_in_the_middle(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            if any(one.stat().st_size > 2_000_000 for one in partial.glob("*")):
                process.terminate()
            time.sleep(0.01)

    with root_side(fleet.image.root) as asked:
        with web.serving("4m") as process:
            killer = threading.Thread(target=stop_in_the_middle, args=(process,))
            killer.start()
            assert "the next run resumes where it stopped" in fleet.run("system", "apply")
            killer.join()
        assert asked == []
        began = max(one.stat().st_size for one in partial.glob("*"))
        assert 2_000_000 < began < files[0].stat().st_size
        fleet.settings["most-minutes"] = 5
        with web.serving("0"):
            fleet.run("system", "apply")
    assert asked == [{"op": "install", "version": 2}]
    assert (fleet.base / "state/system/2/edge_2.root").read_bytes() == files[0].read_bytes()
    resumed = [int(line.split()[-1]) for line in web.log() if line.split()[-2] == "206"]
    assert len(resumed) == 1
    assert resumed[0] < files[0].stat().st_size - began + 10_000
