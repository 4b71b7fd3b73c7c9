"""A web server for tests: serves the repository's files with Range, and accepts PUT of reports. In production, use
nginx.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from ota import files
from ota.errors import StoreError

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_REPORT = re.compile(r"/reports/([A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json)")
_MOST_REPORT = 512 * 1024
_PATH = re.compile(r"(?:metadata|targets|blobs)(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)+")


class RepositoryServer(ThreadingHTTPServer):
    """Serves a repository.

    Attributes:
        repository: the directory. ranges: whether Range is answered. log: whether requests are printed.
        reports: where `PUT /reports/<name>.json` goes; None = it is refused.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        repository: Path,
        *,
        ranges: bool = True,
        log: bool = False,
        reports: Path | None = None,
    ) -> None:
        super().__init__(address, _Handler)
        self.repository, self.ranges, self.log, self.reports = repository, ranges, log, reports

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors of this program only. A device that disconnects is not an error: it resumes."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The URL of this server."""
        host, port = self.server_address[:2]
        name = str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


class _Handler(BaseHTTPRequestHandler):
    """Handles GET and HEAD of regular files below the three directories."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: RepositoryServer

    def do_GET(self) -> None:
        """Send a file, or a part of it."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self._answer(body=False)

    def do_PUT(self) -> None:
        """Store a report. `edge-ota publish report` verifies it later."""
        asked, length = _REPORT.fullmatch(self.path), self.headers.get("Content-Length", "")
        self.close_connection = True  # the body may be unread
        if self.server.reports is None or asked is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not length.isdecimal() or int(length) > _MOST_REPORT:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif len(data := self.rfile.read(int(length))) == int(length):
            try:
                files.write_durably(self.server.reports / asked[1], data)
                self.send_response(HTTPStatus.CREATED)
            except StoreError:
                self.send_response(HTTPStatus.INSUFFICIENT_STORAGE)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print a request if logging is on."""
        if self.server.log:
            super().log_message(format, *arguments)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        file = self._open(path)
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            tag = f'"{_tag(path, file)}"'
            part = self._range(size, tag)
            if part is None:
                self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, end, partial = part
            self.send_response(HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK)
            if partial:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            if self.server.ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", tag)
            mutable = path.endswith("/timestamp.json")
            self.send_header("Cache-Control", "no-cache" if mutable else "public, max-age=31536000, immutable")
            self.send_header(
                "Content-Type", "application/json" if path.endswith(".json") else "application/octet-stream"
            )
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            if body:
                self._send(file, start, end)

    def _send(self, file: BinaryIO, start: int, end: int) -> None:
        file.seek(start)
        if end == os.fstat(file.fileno()).st_size:
            shutil.copyfileobj(file, self.wfile)
            return
        while start < end:
            piece = file.read(min(256 * 1024, end - start))
            self.wfile.write(piece)
            start += len(piece)

    def _open(self, path: str) -> BinaryIO | None:
        """Open a regular file; None = no such file."""
        if not _PATH.fullmatch(path):
            return None
        try:
            file = open(self.server.repository / path, "rb")  # noqa: SIM115 (the caller closes it)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        return None

    def _range(self, size: int, tag: str) -> tuple[int, int, bool] | None:
        """Return start, end, and whether it is a part; None = the part is outside of the file."""
        asked = _RANGE.fullmatch(self.headers.get("Range", "").strip())
        if not asked or not self.server.ranges or self.headers.get("If-Range", tag) != tag or not any(asked.groups()):
            return 0, size, False
        if not asked[1]:
            return max(0, size - int(asked[2])), size, True
        start, end = int(asked[1]), min(size, int(asked[2]) + 1 if asked[2] else size)
        return (start, end, True) if start < end else None


def _tag(path: str, file: BinaryIO) -> str:
    """Return a strong ETag. Blobs are named after their content."""
    found = os.fstat(file.fileno())
    return (
        path.rpartition("/")[2]
        if path.startswith("blobs/")
        else f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    )
