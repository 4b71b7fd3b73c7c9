"""Other data that servers and mirrors may send instead of metadata: T2, T6, T14, N5, N10."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ota.errors import FetchError, OtaError, RolledBack, Untrusted
from ota.fetch.failures import RequestFailed
from ota.fetch.http import HttpOptions, HttpSource
from tests.ota.faulty_server import FaultyServer
from tests.ota.simulator import Repository
from tests.ota.trust.device import MANIFEST, Device, refused

FILES = {
    "root": "metadata/2.root.json",
    "timestamp": "metadata/timestamp.json",
    "snapshot": "metadata/3.snapshot.json",
    "targets": "metadata/3.targets.json",
    "models-det": "metadata/3.models-det.json",
}


class _Endless:
    """A source that ignores the limit that it is given."""

    def __init__(self, repository: Repository, path: str) -> None:
        self.repository, self.path = repository, path
        self.asked = 0

    def get(self, path: str, most_bytes: int) -> bytes:
        if path.startswith(self.path):
            self.asked = most_bytes
            return b" " * (most_bytes + 1)
        return self.repository.get(path, most_bytes)

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        return self.repository.stream(path, offset, length)


@pytest.mark.fault("T2")
@pytest.mark.parametrize("path", [*FILES.values(), "targets/bundles"])
def test_endless_data_is_cut(repository: Repository, device: Device, path: str) -> None:
    """Each file has a limit that is known before it is fetched; `fetch/` cuts slow ones by time."""
    device.run(repository).document(MANIFEST, 1000)
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    source = _Endless(repository, path)

    refused(device, source, FetchError, "has more than .* bytes, which is what signed metadata allows")
    assert 0 < source.asked <= 5_000_000
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'


@pytest.mark.fault("T2")
@pytest.mark.parametrize("role", ["snapshot", "targets", "models-det"])
def test_a_signed_length_does_not_raise_the_limit(repository: Repository, device: Device, role: str) -> None:
    """The thief has the keys of timestamp and snapshot: one of them sufficed to have a device read endless metadata."""
    device.run(repository).document(MANIFEST, 1000)
    repository.publish()
    if role == "snapshot":
        repository.signed["timestamp"].snapshot_meta.length = 10**12
        repository.write("timestamp")
    else:
        repository.signed["snapshot"].meta[f"{role}.json"].length = 10**12
        repository.write("snapshot")
        repository.publish_timestamp(raise_version=False)
    with FaultyServer(repository.files) as server:
        server.fault(path=FILES[role], endless=True)

        refused(device, HttpSource(server.url, HttpOptions()), RequestFailed, "sends more than 5000000 bytes")
        assert server.sent < 20_000_000


def _deep(levels: int) -> bytes:
    return b'{"signed": {"version": 1, "x": ' + b"[" * levels + b"]" * levels + b'}, "signatures": []}'


NONSENSE = [
    b"",
    b"<html>Please log in</html>",
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"{}",
    b'{"signed": 5, "signatures": []}',
    b'{"signed": {"_type": "root"}, "signatures": []}',
    b'{"signed": {"version": NaN}, "signatures": []}',
    b'{"signed": {"version": 1e999}, "signatures": []}',
    b'{"signed": {"version": ' + b"9" * 5000 + b'}, "signatures": []}',
    b'{"signatures": [], "signatures": [], "signed": {}}',
    _deep(17),
    _deep(7000),
]


@pytest.mark.fault("T14", "N5")
@pytest.mark.parametrize(
    ("role", "data"),
    [("timestamp", data) for data in NONSENSE] + [(role, data) for role in FILES for data in NONSENSE[1::5]],
    ids=lambda value: repr(value[:34]),
)
def test_documents_that_are_no_metadata(repository: Repository, device: Device, role: str, data: bytes) -> None:
    device.run(repository).document(MANIFEST, 1000)
    repository.publish()
    good = dict(repository.files)
    repository.files[FILES[role]] = data
    if role == "snapshot":
        repository.signed["snapshot"].version = 3
        repository.publish_timestamp()

    refused(device, repository, Untrusted, "not JSON|not a JSON|no strict|nested|not trusted|twice|number")
    repository.files = good
    repository.publish()
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("T14")
@pytest.mark.parametrize(
    "change",
    [
        {"spec_version": "2.0.0"},
        {"spec_version": "1"},
        {"spec_version": 1},
        {"version": 0},
        {"version": -1},
        {"version": "7"},
        {"version": 1.5},
        {"version": True},
        {"expires": "2026-11-30"},
        {"expires": "9999-99-99T00:00:00Z"},
        {"expires": 5},
        {"_type": "snapshot"},
        {"meta": {}},
        {"meta": None},
    ],
    ids=str,
)
def test_well_signed_nonsense(repository: Repository, device: Device, change: dict[str, Any]) -> None:
    """Signed by the right key: a faulty publisher, or a thief who probes the parser."""
    value = repository.signed["timestamp"].to_dict() | {"version": 9} | change
    repository.files["metadata/timestamp.json"] = _signed(repository, value)

    with pytest.raises((Untrusted, RolledBack)):
        device.run(repository)
    repository.publish()
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("T14")
def test_unknown_members_are_ignored(repository: Repository, device: Device) -> None:
    repository.signed["timestamp"].unrecognized_fields["x-later"] = {"a": [1]}
    repository.publish()

    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("N1")
@pytest.mark.parametrize("error", [ConnectionResetError("cut"), ValueError("odd"), EOFError(), MemoryError()])
def test_any_error_of_a_source_is_a_failed_fetch(repository: Repository, device: Device, error: Exception) -> None:
    def fail(path: str) -> None:
        raise error

    repository.before_get = fail
    refused(device, repository, FetchError, f"cannot fetch .*: {type(error).__name__}")


@pytest.mark.fault("N10")
@pytest.mark.parametrize("moment", list(FILES.values()))
def test_a_publication_during_a_run(repository: Repository, device: Device, moment: str) -> None:
    """A device sees the state before or the one after, whole, whatever the moment."""
    device.run(repository).document(MANIFEST, 1000)
    repository.publish()

    def publish(path: str) -> None:
        if path == moment:
            repository.before_get = None
            repository.add(MANIFEST, b'{"release": 2}')
            repository.publish()

    repository.before_get = publish
    assert device.run(repository).document(MANIFEST, 1000) in (b'{"release": 1}', b'{"release": 2}')
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'


@pytest.mark.fault("N10")
@pytest.mark.parametrize("missing", [path for role, path in FILES.items() if role not in ("root", "timestamp")])
def test_a_publisher_that_puts_the_timestamp_first(repository: Repository, device: Device, missing: str) -> None:
    """The files that it names come later: this run fails, and the next one has them."""
    device.run(repository).document(MANIFEST, 1000)
    repository.publish()
    late = repository.files.pop(missing)

    refused(device, repository, FetchError, f"lacks {missing}: check its address, or wait until it is published")
    repository.files[missing] = late
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("N10")
def test_a_document_that_is_listed_and_not_there_yet(repository: Repository, device: Device) -> None:
    (path,) = (path for path in repository.files if path.startswith("targets/"))
    late = repository.files.pop(path)

    with pytest.raises(FetchError, match=path):
        device.run(repository).document(MANIFEST, 1000)
    repository.files[path] = late
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


def _dead(mirror: Repository) -> None:
    def fail(path: str) -> None:
        raise FetchError("no route to the mirror")

    mirror.before_get = fail


def _empty(mirror: Repository) -> None:
    mirror.files.clear()


def _lying(mirror: Repository) -> None:
    mirror.files = dict.fromkeys(mirror.files, b"<html>hello</html>")


def _forging(mirror: Repository) -> None:
    for role in ("timestamp", "snapshot"):
        mirror.rotate(role)
    mirror.publish()


def _half(mirror: Repository) -> None:
    for path in [path for path in mirror.files if path.startswith("targets/") or "snapshot" in path]:
        del mirror.files[path]


@pytest.mark.fault("T6")
@pytest.mark.parametrize("bad", [_dead, _empty, _lying, _forging, _half])
def test_a_bad_mirror_does_not_block_a_good_one(repository: Repository, device: Device, bad: Any) -> None:
    device.run(repository)
    mirror = repository.copy()
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    mirror = repository.copy()
    bad(mirror)

    assert device.run([mirror, repository]).document(MANIFEST, 1000) == b'{"release": 2}'


@pytest.mark.fault("T6")
def test_an_old_mirror_does_not_block_a_good_one(repository: Repository, device: Device) -> None:
    old = repository.copy()
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    device.run(repository)

    assert device.run([old, repository]).document(MANIFEST, 1000) == b'{"release": 2}'


@pytest.mark.fault("T6")
def test_a_mirror_with_good_metadata_and_bad_documents(repository: Repository, device: Device) -> None:
    mirror = repository.copy()
    (path,) = (path for path in mirror.files if path.startswith("targets/"))
    mirror.files[path] = b'{"release": 6}'

    assert device.run([mirror, repository]).document(MANIFEST, 1000) == b'{"release": 1}'
    mirror.files.pop(path)
    device.lose_metadata()
    assert device.run([mirror, repository]).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("T6")
def test_only_bad_mirrors(repository: Repository, device: Device) -> None:
    dead, lying = repository.copy(), repository.copy()
    _dead(dead)
    _lying(lying)

    with pytest.raises(OtaError, match=r"not JSON.*\(all 2 mirrors failed\)") as caught:
        device.run([dead, lying])
    assert type(caught.value) is Untrusted


def _signed(repository: Repository, value: dict[str, Any]) -> bytes:
    """Sign any JSON as the timestamp: numbers that tuf would not write are signed as the text that they are."""
    from securesystemslib.exceptions import FormatError
    from securesystemslib.formats import encode_canonical

    try:
        data = encode_canonical(value)
    except FormatError:
        data = json.dumps(value)
    signature = repository.signers["timestamp"][0].sign((data or "").encode())
    return json.dumps({"signatures": [signature.to_dict()], "signed": value}).encode()
