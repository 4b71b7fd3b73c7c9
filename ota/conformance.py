"""The client that TUF's conformance suite runs: `python -m ota.conformance`, with the protocol of its CLIENT-CLI.md.

The client is that of a device: `ota.trust` with its floors and its clock floor, over `ota.fetch.http`. The suite is a
source checkout (theupdateframework/tuf-conformance) and is run by hand; docs/ota_trust.md says how.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from ota import files
from ota.errors import OtaError
from ota.fetch.http import HttpOptions, HttpSource
from ota.trust.client import TrustClient
from ota.trust.floors import Floors
from ota.trust.roots import MOST_METADATA, factory_root

MOST_TARGET = 64 * 1024 * 1024


class _TwoServers:
    """A repository with separate URLs for metadata and targets."""

    def __init__(self, metadata_url: str, targets_url: str) -> None:
        options = HttpOptions(timeout=10.0)
        self._metadata = HttpSource(metadata_url, options)
        self._targets = HttpSource(targets_url or metadata_url, options)

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a file. Characters that a URL does not allow are quoted."""
        kind, _, name = path.partition("/")
        if kind == "metadata":
            return self._metadata.get(name, most_bytes)
        return self._targets.get(quote(name, "/%"), most_bytes)

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Raise NotImplementedError: blobs are not part of the suite."""
        raise NotImplementedError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the suite."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "init":
            _init(arguments.metadata_dir, Path(arguments.trusted_root))
        else:
            _update(arguments)
    except OtaError as error:
        print(f"ota.conformance: {error.reason}: {error.message}", file=sys.stderr)
        return 1
    return 0


def _init(metadata_dir: Path, root: Path) -> None:
    files.make_directory(metadata_dir)
    data = factory_root(root)
    files.write_durably(metadata_dir / "factory_root", data)
    files.write_durably(metadata_dir / "root.json", data)


def _update(arguments: argparse.Namespace) -> None:
    directory: Path = arguments.metadata_dir
    floors = Floors([directory / "floors" / "first.json", directory / "floors" / "second.json"])
    source = _TwoServers(arguments.metadata_url, arguments.target_base_url)
    trust = TrustClient(directory, factory_root(directory / "factory_root"), source, floors, time.time())
    trust.refresh()
    for name in arguments.target_name if arguments.command == "download" else []:
        data = trust.document(name, MOST_TARGET)
        target = Path(arguments.target_dir, quote(name, ""))
        if files.read(target, MOST_METADATA) != data:
            files.write_durably(target, data)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ota.conformance", description=__doc__)
    parser.add_argument("--metadata-dir", type=Path, required=True)
    parser.add_argument("--metadata-url", default="")
    parser.add_argument("--target-name", action="append", default=[])
    parser.add_argument("--target-dir", default="")
    parser.add_argument("--target-base-url", default="")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("trusted_root")
    commands.add_parser("refresh")
    commands.add_parser("download")
    return parser


if __name__ == "__main__":
    sys.exit(main())
