"""Runs on the machine under test, as root, under its own Python: commands come in by POST, files by PUT.

Only the test's own network reaches it (nspawn.py, vm.py, disk.py). It stands for a technician at the machine's console.
"""

import base64
import json
import os
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 9000
#: folder of the booted machine for files of a test; a restart keeps it, and the device image can write there
KEPT = "/var/lib/test"


class Agent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Run {"command": shell, "timeout": seconds}. Answer {"status": exit status, "output": both streams}."""
        asked = json.loads(self._body())
        try:
            done = subprocess.run(
                asked["command"], shell=True, timeout=asked["timeout"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            status, output = 124, error.stdout or b""
        self._answer(json.dumps({"status": status, "output": output.decode(errors="replace")}).encode())

    def do_PUT(self) -> None:
        """Write the body to the file that the path names, in base64 (a path may have any character)."""
        path = base64.urlsafe_b64decode(self.path[1:]).decode()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(self._body())
        self._answer(b"{}")

    def do_GET(self) -> None:
        """Answer: the agent is ready."""
        self._answer(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the journal is for the service."""

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Agent).serve_forever()
