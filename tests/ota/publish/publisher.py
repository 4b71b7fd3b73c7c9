"""A publisher at its terminal: runs `edge-ota publish` in this process; and a reader that is a device."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from ota.cli import main
from ota.errors import NotInRepository
from ota.trust.client import TrustClient
from ota.trust.floors import Floors

PASSPHRASE = "correct horse battery staple"
CONFIG = b'name: "det"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
#: public keys whose algorithm or curve the library does not know
UNKNOWN_KEYS = {
    name: f"-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n"
    for name, key in {
        "algorithm": "MC0wCAYGKoUDAgITAyEAa2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=",
        "curve": "MEIwFAYHKoZIzj0CAQYJKyQDAwIIAQEBAyoABGtra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=",
    }.items()
}


class Publisher:
    """A publisher's directory below `base`, the current directory, and what its commands said last."""

    def __init__(self, base: Path) -> None:
        self.base, self.dir = base, base / "publisher"
        self.out = self.err = ""

    @property
    def repository(self) -> Path:
        """The directory that a web server serves."""
        return self.dir / "repository"

    def run(self, *arguments: object, status: int = 0) -> str:
        """Run a command; its output."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main(["publish", *map(str, arguments)])
        self.out, self.err = out.getvalue(), err.getvalue()
        assert found == status, f"{found}: {self.out}{self.err}"
        return self.out

    def status(self, *arguments: object) -> int:
        """Run a command on this publisher's directory; its exit status."""
        first, *rest = arguments
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main(["publish", *str(first).split(), *map(str, rest), "--dir", str(self.dir)])
        self.out, self.err = out.getvalue(), err.getvalue()
        return found

    def do(self, *arguments: object, status: int = 0) -> str:
        """Run a command on this publisher's directory; a word of two parts, `rollout start`, comes first."""
        first, *rest = arguments
        return self.run(*str(first).split(), *rest, "--dir", self.dir, status=status)

    def refused(self, *arguments: object, status: int = 2) -> str:
        """Run a command that fails; its one sentence."""
        self.do(*arguments, status=status)
        return one_sentence(self.err)

    def init(self, *arguments: object, preset: str = "small") -> None:
        """Make the repository."""
        self.run("init", self.dir, "--preset", preset, *arguments)

    def model(self, name: str = "det", files: Mapping[str, bytes] | None = None) -> Path:
        """Write a model directory."""
        files = {"config.pbtxt": CONFIG, "1/model.onnx": b"weights"} if files is None else files
        for path, data in files.items():
            (self.base / name / path).parent.mkdir(parents=True, exist_ok=True)
            (self.base / name / path).write_bytes(data)
        return self.base / name

    def release(self, number: int, name: str = "det", weights: bytes = b"", *flags: object) -> None:
        """Bundle and publish a release of a model that this writes."""
        config = CONFIG.replace(b"det", name.encode())
        self.model(name, {"config.pbtxt": config, "1/model.onnx": weights or f"{name} {number}".encode()})
        self.run("bundle", name, "--release", number, "--model", name, "--family", "det", *flags)
        self.do("release", f"{name}.{number}")


def one_sentence(err: str) -> str:
    """Return what a command complained, which is one line and no traceback."""
    assert (err[:10], err.count("\n")) == ("edge-ota: ", 1), err
    return err.removeprefix("edge-ota: ").rstrip()


class Files:
    """The repository's files as a device reads them."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a file."""
        try:
            return (self._repository / path).read_bytes()
        except FileNotFoundError:
            raise NotInRepository(path) from None

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield a file."""
        yield self.get(path, length)[offset:]


def device(publisher: Publisher, name: str, now: float, root: bytes | None = None) -> TrustClient:
    """Return a device that has refreshed; it keeps its metadata below its name."""
    place = publisher.base / name
    floors = Floors([place / "floors.json", place / "other" / "floors.json"])
    root = (publisher.dir / "root.json").read_bytes() if root is None else root
    trust = TrustClient(place / "metadata", root, Files(publisher.repository), floors, now)
    trust.refresh()
    return trust
