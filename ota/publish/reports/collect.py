"""Reads reports from directories and web servers, and verifies them by the keys that `device add` signed."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ota import files
from ota.decide.report_chain import sort_reports
from ota.documents.device import DeviceDocument
from ota.documents.report import MOST_BYTES, Report, SealedReport, read_report, report_path
from ota.errors import NotInRepository, OtaError, Untrusted, UsageError
from ota.fetch.http import HttpOptions, HttpSource, check_url

#: a report with its signature and key
_MOST_FILE = 2 * MOST_BYTES
#: seconds for one report of a web server
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class VerifiedReport:
    """A report with a valid signature."""

    report: Report
    fingerprint: str


@dataclass(slots=True)
class CollectedReports:
    """The collected reports.

    Attributes:
        newest: device -> its newest report, for devices whose key is the one that was signed.
        genuine: fingerprint -> every report of such a device, the oldest first.
        keys: device -> fingerprints of the keys that reported under its name, if that is more than its own.
        keyless: devices that report, and were added without a key: their reports do not count.
        strangers: names that report, and are no devices of this repository.
        problems: a sentence for each file that is no report.
    """

    newest: dict[str, Report] = field(default_factory=dict)
    genuine: dict[str, list[Report]] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)
    keyless: set[str] = field(default_factory=set)
    strangers: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def collect(places: Sequence[str], devices: Mapping[str, DeviceDocument]) -> CollectedReports:
    """Return the reports of all places.

    Args:
        places: directories; and URLs, as devices have them in REPORT_URL.

    Raises:
        UsageError: a place is neither. FetchError: a web server does not answer.
    """
    found = CollectedReports()
    for place in places:
        for where, data in _read(place, devices):
            try:
                one = verify_report(read_report(data, where), where)
            except OtaError as error:
                found.problems.append(error.message)
                continue
            _sort_in(found, one, devices.get(one.report.device))
    for fingerprint, reports in found.genuine.items():
        found.genuine[fingerprint] = sort_reports(reports)
        found.newest.update((one.device, one) for one in found.genuine[fingerprint])
    return found


def _sort_in(found: CollectedReports, one: VerifiedReport, document: DeviceDocument | None) -> None:
    device = one.report.device
    if document is None:
        found.strangers.add(device)
    elif not document.fingerprint:
        found.keyless.add(device)
    elif document.fingerprint != one.fingerprint:
        found.keys.setdefault(device, {document.fingerprint}).add(one.fingerprint)
    else:
        found.genuine.setdefault(one.fingerprint, []).append(one.report)


def verify_report(sealed: SealedReport, where: str) -> VerifiedReport:
    """Return a report if its signature is valid.

    Raises:
        Untrusted: it does not.
    """
    key, fingerprint = _key(sealed.public_key)
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(sealed.signature, sealed.payload)
        elif isinstance(key, EllipticCurvePublicKey):
            key.verify(sealed.signature, sealed.payload, ECDSA(hashes.SHA256()))
        else:
            raise Untrusted(f"{where}: the key is neither Ed25519 nor ECDSA, expected a device's key")
    except InvalidSignature:
        raise Untrusted(f"{where}: the signature does not fit: the file was changed after it was signed") from None
    return VerifiedReport(sealed.report, fingerprint)


@functools.lru_cache(maxsize=20_000)
def _key(pem: str) -> tuple[object, str]:
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        return None, ""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key, hashlib.sha256(der).hexdigest()


def _read(place: str, devices: Mapping[str, DeviceDocument]) -> Iterator[tuple[str, bytes]]:
    if place.startswith(("http://", "https://")):
        return _read_web(place, devices.values())
    directory = Path(place)
    if not directory.is_dir():
        raise UsageError(f"{place} is neither a directory of reports nor an http(s) URL")
    return _read_directory(directory)


def _read_directory(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a directory that may be reports. Links are not followed."""
    for path in sorted(directory.rglob("*.json")):
        if path.is_file() and not path.is_symlink():
            try:
                yield str(path), files.read(path, _MOST_FILE) or b""
            except OtaError:
                yield str(path), b""  # unreadable, or too long: read_report raises the error


def _read_web(url: str, devices: Iterable[DeviceDocument]) -> Iterator[tuple[str, bytes]]:
    """Yield the newest report of each device. A web server has no listing, so reports of other keys are not found."""
    parts = check_url(url, "DIR|URL", "https://reports.example/fleet", query=True)
    root = parts._replace(path="/", query="", fragment="").geturl()
    source = HttpSource(root, HttpOptions(timeout=_TIMEOUT))
    for one in devices:
        if one.fingerprint:
            path = address_of(parts.path, one.device, one.fingerprint).lstrip("/")
            try:
                yield f"{source}{path}", source.get(path, _MOST_FILE)
            except NotInRepository:
                continue


def address_of(path: str, device: str, fingerprint: str) -> str:
    """Return the path of a device's newest report, below a URL's path."""
    if "{counter}" in path:
        raise UsageError("a URL with {counter} has no name for the newest report: name a directory with the files")
    return report_path(path, device, fingerprint)
