"""The real parts, out of the settings. Heavy libraries are imported here, when a command needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ota import files
from ota.agent.parts import Parts, Progress, Tell
from ota.agent.tell import Printer
from ota.clock import Clock, SystemClock
from ota.documents.manifest import FileEntry, Manifest, Variant
from ota.errors import Unsuitable, UsageError
from ota.fetch.blobs import Blobs
from ota.fetch.chunks import ChunkIndex
from ota.fetch.mirrors import Mirrors, open_mirrors
from ota.fetch.pace import Pace
from ota.layout import Layout
from ota.settings import Settings

_MOST_ROOT = 1024 * 1024


@contextlib.contextmanager
def opened(
    settings: Settings, *, by_hand: bool, directory: Path | None = None, tell: Tell | None = None
) -> Iterator[Parts]:
    """Yield the parts of a run.

    Args:
        by_hand: an operator asked: download hours and metered links do not count.
        directory: a copy of the repository, in place of the web servers.

    Raises:
        UsageError: this device is not set up; with what is missing.
        StoreError: the state cannot be read.
        FetchError: the directory has no repository.
    """
    try:
        parts = _parts(settings, directory, tell or Printer(), by_hand=by_hand)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("tuf", "securesystemslib", "cryptography", "urllib3"):
            raise UsageError(f"{error.name} is not installed: pip install 'edge-serve[ota]'") from None
        raise
    yield parts


def _parts(settings: Settings, directory: Path | None, tell: Tell, *, by_hand: bool) -> Parts:
    from ota.agent.identity import load_identity
    from ota.agent.probation import StatusProbation
    from ota.agent.this_device import ThisDevice
    from ota.fetch.directory import DirectorySource
    from ota.server.administration import Administration
    from ota.server.trial import UnitTrial
    from ota.trust.client import Trust
    from ota.trust.floors import Floors

    root = files.read(settings.root, _MOST_ROOT)
    if root is None:
        raise UsageError(
            f"{settings.root} is not there: copy root.json from the publisher ('edge-ota publish init' made it) to it"
        )
    layout, clock = Layout(settings.state_dir), SystemClock()
    mirrors = Mirrors([DirectorySource(directory)], clock) if directory else open_mirrors(settings, clock)
    if not mirrors.sources:
        raise UsageError("URL is not set: name the repository in /etc/edge-ota/edge-ota.conf (URL=https://...)")
    floors = Floors([layout.floors, settings.floor_copy])
    server = Administration(settings.admin_socket)
    return Parts(
        layout=layout,
        settings=settings,
        clock=clock,
        trust=Trust(layout.metadata, root, mirrors.sources, floors, clock.now()),
        fetcher=Download(layout, settings, mirrors, clock, by_hand=by_hand or directory is not None),
        device=ThisDevice(settings, load_identity(layout.identity)),
        trial=UnitTrial(settings.trial_socket, settings.edge_serve),
        builder=NoBuilder(),
        server=server,
        probation=StatusProbation(server, settings),
        tell=tell,
    )


class Download:
    """Implements `parts.Fetcher` with `fetch.blobs`."""

    def __init__(self, layout: Layout, settings: Settings, mirrors: Mirrors, clock: Clock, *, by_hand: bool) -> None:
        self._layout, self._settings, self._mirrors = layout, settings, mirrors
        self._clock, self._by_hand = clock, by_hand

    def missing(self, entries: Sequence[FileEntry]) -> int:
        """Return the bytes that the store lacks.

        Raises:
            NoSpace: the disk or the quota has no room for them.
        """
        return sum(one.size for one in self._blobs(lambda done, total: None).missing(entries))

    def fetch(self, entries: Sequence[FileEntry], progress: Progress) -> None:
        """Bring files into the store."""
        self._blobs(progress).fetch(entries)

    def _blobs(self, progress: Progress) -> Blobs:
        pace = Pace(
            self._settings,
            self._clock,
            apply=self._by_hand,
            progress=lambda done, total, rate: progress(done, total),
        )
        return Blobs(self._layout, self._mirrors, pace, ChunkIndex.stored(self._layout))


class NoBuilder:
    """Refuses variants that are built on the device: `server.build` is not there yet."""

    def build(self, manifest: Manifest, variant: Variant, releases: Mapping[str, Path]) -> None:
        """Refuse."""
        raise Unsuitable(f"the variant {variant.id} is built on the device, which this edge-ota cannot do")
