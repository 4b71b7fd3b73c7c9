"""Power cuts at every operation of a download: a blob is absent or right, and a later run completes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ota.documents.manifest import FileEntry
from ota.fetch.directory import DirectorySource
from ota.layout import StateLayout
from tests.ota.powercut import Disk, crash_states, put, recorded

from .steps import blobs, entry_of, noise, repository, sha256

DATA = noise(1000, 1)
ENTRIES = {"whole": entry_of(DATA), "chunked": entry_of(DATA, 300)}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DirectorySource]:
    folder = tmp_path / "stick"
    (folder / "metadata").mkdir(parents=True)
    for path, data in repository((DATA, 0), (DATA, 300)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(data, bytes)
        (folder / path).write_bytes(data)
    with DirectorySource(folder) as source:
        yield source


def violations(
    root: Path, source: DirectorySource, entry: FileEntry, torn: bytes, forgetful: Callable[[str], bool]
) -> Iterator[str]:
    """Yield "" for each state after which all is well, else what is wrong.

    Args:
        torn: what an earlier download left.
    """
    layout = StateLayout(root)
    root.mkdir()
    layout.partial.mkdir()
    (layout.partial / entry.sha256).write_bytes(torn)
    disk = Disk(root, forgetful)
    with recorded(layout.status) as operations:
        blobs(root, [source]).fetch([entry])
    blob = layout.blob(entry.sha256)
    for count, tree in crash_states(root, operations, disk):
        put(tree, root)
        if blob.exists() and sha256(blob.read_bytes()) != entry.sha256:
            yield f"after {count}: the blob is wrong"
        else:
            blobs(root, [source]).fetch([entry])
            yield "" if sha256(blob.read_bytes()) == entry.sha256 else f"after {count}: the next run fetched it wrong"
    for tree in disk.states():
        yield "" if tree.get(str(blob.relative_to(root))) == DATA else "after the end: the blob does not exist"


@pytest.mark.fault("C2")
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("torn", [b"", DATA[:400], DATA[:350] + bytes(350), bytes(1000), DATA], ids=len)
def test_after_each_power_cut_a_blob_is_absent_or_right(
    tmp_path: Path, source: DirectorySource, entry: FileEntry, torn: bytes
) -> None:
    found = list(violations(tmp_path / "state", source, entry, torn, lambda path: False))

    assert [one for one in found if one] == []
    assert len(found) > 5


@pytest.mark.fault("C2")
@pytest.mark.parametrize("place", ["/partial/[0-9a-f]{64}$", "/blobs/sha256/[0-9a-f]{2}$", "/blobs/sha256$"])
def test_an_fsync_that_is_left_out_is_found(tmp_path: Path, source: DirectorySource, place: str) -> None:
    found = violations(
        tmp_path / "state", source, ENTRIES["chunked"], b"", lambda path: re.search(place, path) is not None
    )
    assert any(found)
