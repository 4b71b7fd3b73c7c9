"""A fleet of simulated devices: they decide with the function that real ones use, and sign real reports.

Updates take no time; of each release, some devices fail their trial.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ota.decide.rollout import choose
from ota.documents.device import DeviceDocument
from ota.documents.names import rollout_target
from ota.documents.report import MOST_CHAIN, BundleReport, FailedRelease, Link, Report, encode_payload, seal
from ota.documents.rollout import BundleRollout, Rollout, read_rollout
from tests.ota.publish.publisher import Publisher, device

FLEET = "plant"
BUNDLE = "det"
Fails = Callable[[str, int], bool]
#: of a large fleet
DEVICES = 1000


def unlucky(name: str, release: int) -> bool:
    """Two of a hundred devices fail each release."""
    return int(name[-2:]) in (13, 64)


def share(names: set[str]) -> float:
    """Return the percentage of a large fleet."""
    return 100 * len(names) / DEVICES


@dataclass
class Simulated:
    """A device: what it runs, since when, and what failed on it."""

    document: DeviceDocument
    key: Ed25519PrivateKey
    release: int
    previous: int = 0
    since: int = 0
    wanted: int = 0
    bad: tuple[FailedRelease, ...] = ()
    chain: tuple[Link, ...] = ()

    @property
    def name(self) -> str:
        return self.document.device

    @property
    def pem(self) -> str:
        public = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.key.public_key().public_bytes(serialization.Encoding.PEM, public).decode()

    def update(self, rollout: Rollout, fails: Fails, now: float, since: float) -> None:
        """Do what the rollout says; a release that fails is bad for good."""
        target = choose(rollout.models[BUNDLE], self.document, self.release, now)
        self.wanted = target.release
        if target.release == self.release or any(one.release == target.release for one in self.bad):
            return
        if fails(self.name, target.release):
            self.bad += (FailedRelease(BUNDLE, target.release, "", "trial", int(now), True),)
            return
        self.release, self.previous, self.since = target.release, self.release, int(since)

    def report(self, now: float, nonce: str = "") -> Report:
        """Return the next report."""
        failed = self.wanted != self.release
        result = "failure" if failed else "success"
        one = BundleReport(
            BUNDLE, self.release, self.previous, 0, "", self.wanted, self.since, "closed", result,
            "trial" if failed else "",
        )  # fmt: skip
        counter = self.chain[-1][0] + 1 if self.chain else 1
        found = Report(
            self.name, self.document.fleet, self.document.ring, int(now), counter,
            nonce or f"{self.name}/{counter}", self.chain, bundles={BUNDLE: one}, bad=self.bad,
        )  # fmt: skip
        self.chain = (*self.chain, found.link)[-MOST_CHAIN:]
        return found

    def seal(self, report: Report, key: Ed25519PrivateKey | None = None) -> bytes:
        """Return a report as it is sent."""
        payload = encode_payload(report)
        return seal(payload, (key or self.key).sign(payload), self.pem)


@dataclass
class Fleet:
    """The devices, and the publisher that they belong to."""

    publisher: Publisher
    devices: list[Simulated] = field(default_factory=list)

    @property
    def place(self) -> Path:
        """Where reports are put."""
        return self.publisher.base / "reports"

    def add(self, count: int, ring: str = "prod", release: int = 1) -> None:
        """Make devices, and have the publisher sign them."""
        first = len(self.devices)
        rows = ["device,fleet,ring,fingerprint"]
        for number in range(first, first + count):
            one = Simulated(DeviceDocument(f"dev-{number:04}", FLEET, ring), Ed25519PrivateKey.generate(), release)
            self.devices.append(one)
            rows.append(f"{one.name},{FLEET},{ring},{fingerprint(one.key)}")
        table = self.publisher.base / f"devices-{first}.csv"
        table.write_text("\n".join(rows) + "\n")
        self.publisher.do("device import", table)

    def rollout(self) -> Rollout:
        """Return the rollout document, as a device verifies it."""
        trust = device(self.publisher, "reader", time.time())
        return read_rollout(trust.document(rollout_target(FLEET), 1 << 20), FLEET)

    def wish(self) -> BundleRollout:
        return self.rollout().models[BUNDLE]

    def update(self, fails: Fails = lambda name, release: False, *, age: float = 90_000.0) -> set[str]:
        """Have every device update and report; the names of those that were to get the release that is wanted.

        Args:
            age: for how many seconds those that update now say to have been good.
        """
        now, rollout = time.time(), self.rollout()
        self.place.mkdir(exist_ok=True)
        want = rollout.models[BUNDLE].want
        for one in self.devices:
            one.update(rollout, fails, now, now - age)
            path = self.place / f"{one.name}.{fingerprint(one.key)[:8]}.json"
            path.write_bytes(one.seal(one.report(now)))
        return {one.name for one in self.devices if want in (one.wanted, one.release)}

    def report(self, *flags: object) -> dict[str, Any]:
        """Return what `edge-ota publish report` says."""
        found: dict[str, Any] = json.loads(self.publisher.do("report", self.place, "--json", *flags))
        return found


def fingerprint(key: Ed25519PrivateKey) -> str:
    """Return the fingerprint of a device's key."""
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_key().public_bytes(serialization.Encoding.DER, public)).hexdigest()
