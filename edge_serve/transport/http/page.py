"""The files of the status page: those of the directory `ui/`, each read at the first request for it.

`index.html` is the page. It loads the other files, and nothing from other servers. See docs/status.md.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cached_property
from pathlib import Path

from edge_serve.transport.door.exchange import Exchange

Headers = tuple[tuple[str, str], ...]

_DIRECTORY = Path(__file__).with_name("ui")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

#: only the page's own files run, the page connects to this server only, and text never becomes markup
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


class PageFile:
    """A file of the page, with its header fields."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content_type = f"{_TYPES[path.suffix]}; charset=utf-8"

    @cached_property
    def body(self) -> bytes:
        """The content of the file."""
        return self._path.read_bytes()

    @cached_property
    def compressed(self) -> bytes:
        """The content for clients that accept gzip, as all browsers do."""
        packer = zlib.compressobj(wbits=31)  # 31: in the gzip format
        return packer.compress(self.body) + packer.flush()

    @cached_property
    def etag(self) -> str:
        """A tag that changes with the file; weak, because both encodings have the same one (RFC 9110 8.8.1)."""
        return f'W/"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    @cached_property
    def headers(self) -> Headers:
        """The header fields of every answer; browsers ask each time whether the file has changed."""
        return (
            ("ETag", self.etag),
            ("Cache-Control", "no-cache"),
            ("Vary", "Accept-Encoding"),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        )

    def reply(self, exchange: Exchange) -> None:
        """Send the file, compressed if the client accepts that; only the head if the client has the file."""
        if self.etag in (exchange.head.get("if-none-match") or ""):
            exchange.reply(304, content_type=None, headers=self.headers)
        elif "gzip" in (exchange.head.get("accept-encoding") or ""):
            headers = (*self.headers, ("Content-Encoding", "gzip"))
            exchange.reply(200, (self.compressed,), content_type=self.content_type, headers=headers)
        else:
            exchange.reply(200, (self.body,), content_type=self.content_type, headers=self.headers)


def page_files() -> dict[str, PageFile]:
    """Return the files by name; "" is the page itself."""
    found = {path.name: PageFile(path) for path in _DIRECTORY.iterdir() if path.suffix in _TYPES}
    return {"": found.pop("index.html"), **found}
