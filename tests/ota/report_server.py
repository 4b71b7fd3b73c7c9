"""A web server that takes reports by PUT, as nginx with `dav_methods PUT` does, and misbehaves as a test asks."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ReportServer:
    """Keeps what was PUT.

    Attributes:
        files: path -> the last body. puts: every path, in order. headers: of the last request.
        status: of replies; 0 = it hangs and never answers.
    """

    def __init__(self, status: int = 201) -> None:
        self.files: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.headers: dict[str, str] = {}
        self.status = status
        self.stopped = threading.Event()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/reports"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> ReportServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ReportServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.owner.puts.append(self.path)
        self.owner.headers = dict(self.headers.items())
        if not self.owner.status:
            self.owner.stopped.wait(30)
            self.close_connection = True
            return
        if self.owner.status < 300:
            self.owner.files[self.path] = body
        self.send_response(self.owner.status)
        self.send_header("Content-Length", "0")
        self.end_headers()
