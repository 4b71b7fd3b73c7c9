"""The report of a device: signed JSON with its releases and the results of its updates. docs/ota_rollout.md.

All numbers are integers, so that the canonical bytes of `signed`, which the signature covers, are the same on every
platform. The words of `execution` and `result` are those of hawkBit's DDI.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ota.documents.names import name
from ota.errors import Untrusted
from ota.strict_json import Members, parse, to_canonical_json

SCHEMA = 1
MOST_BYTES = 256 * 1024
#: (counter, nonce) pairs of earlier reports; a collector that missed fewer reports can check the continuity
MOST_CHAIN = 20
MOST_BUNDLES = 256
MOST_BAD = 64
MOST_FACTS = 128
#: the end of the year 9999, the last one that dates have
MOST_TIME = 253_402_300_799
_KEY_DIGITS = 8
EXECUTIONS = ("closed", "proceeding", "download", "downloaded", "scheduled", "canceled")
RESULTS = ("success", "failure", "none")

#: the counter of a report, and its nonce
Link = tuple[int, str]


@dataclass(frozen=True, slots=True)
class BundleReport:
    """The state of a bundle on a device.

    Attributes:
        wanted: the release that this device shall run, as it decided itself; 0 = it could not decide.
        since: when the serving release became good (epoch); 0 = it is not, or that is not known.
        execution: `closed` = nothing is to be done; else how far the next release is.
        result: of the wanted release, or of the one that failed last.
        reason: the word of the error, or of what is waited for.
        requests, failures: of the serving release since the server loaded it.
    """

    bundle: str
    release: int = 0
    previous: int = 0
    next: int = 0
    stage: str = ""
    wanted: int = 0
    since: int = 0
    execution: str = "closed"
    result: str = "none"
    reason: str = ""
    requests: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class FailedRelease:
    """A release that failed on a device. `permanent`: the device does not retry it by itself."""

    bundle: str
    release: int
    variant: str
    reason: str
    time: int
    permanent: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a device.

    Attributes:
        counter, nonce: rises with each report; random. chain: those of the reports before it, the oldest first.
        agent, server: versions of edge-ota and edge-serve.
        facts: of `edge-serve doctor`: variants are matched with them.
        floors_lost: when the device noticed that its version floors were lost (epoch); 0 = never.
        error: the word of the error that ended the run; "" = none did.
    """

    device: str
    fleet: str
    ring: str
    time: int
    counter: int
    nonce: str
    chain: tuple[Link, ...] = ()
    agent: str = ""
    server: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, BundleReport] = field(default_factory=dict)
    bad: tuple[FailedRelease, ...] = ()
    clock_unset: bool = False
    floors_lost: int = 0
    paused: bool = False
    error: str = ""
    disk_free_bytes: int = 0

    @property
    def link(self) -> Link:
        """The counter and nonce, by which later reports name this one."""
        return self.counter, self.nonce


@dataclass(frozen=True, slots=True)
class SealedReport:
    """A report as it was sent. None of it is verified yet.

    Attributes:
        payload: the bytes that the signature covers.
        public_key: PEM, SubjectPublicKeyInfo.
    """

    report: Report
    payload: bytes
    signature: bytes
    public_key: str


def report_path(path: str, device: str, fingerprint: str) -> str:
    """Return where a report is sent, from the path of an address: with `{device}` and `{key}` filled in, or with
    `/<device>.<key>.json` appended. The key is the first 8 digits of the fingerprint of the device's key.
    """
    key = fingerprint[:_KEY_DIGITS]
    if "{device}" in path or "{key}" in path:
        return path.replace("{device}", device).replace("{key}", key)
    return f"{path.rstrip('/')}/{device}.{key}.json"


def encode_payload(report: Report) -> bytes:
    """Return the bytes that a device signs."""
    found = asdict(report)
    found["chain"] = [list(one) for one in report.chain]
    found["bundles"] = {
        bundle: {member: value for member, value in asdict(one).items() if member != "bundle"}
        for bundle, one in report.bundles.items()
    }
    return to_canonical_json({"schema": SCHEMA, **found})


def seal(payload: bytes, signature: bytes, public_key: str) -> bytes:
    """Return the document to send: the payload, its signature, and the public key."""
    return to_canonical_json({"signed": json.loads(payload), "signature": signature.hex(), "public_key": public_key})


def read_report(data: bytes, what: str = "a report") -> SealedReport:
    """Parse a report. The caller verifies the signature and the key.

    Args:
        what: where it comes from, for messages.

    Raises:
        Untrusted: it is malformed.
        Unsuitable: its schema is newer than this edge-ota.
    """
    found = parse(data, what, MOST_BYTES)
    public_key = found.pop("public_key", None)  # PEM has line breaks, which `Members.text` refuses
    if not isinstance(public_key, str) or not public_key.startswith("-----BEGIN PUBLIC KEY"):
        raise Untrusted(f"{what}: public_key is not a PEM public key")
    outer = Members(found, what)
    signed, signature = outer.table("signed", most=64), outer.text("signature", most=2048)
    outer.end()
    try:
        raw = bytes.fromhex(signature)
    except ValueError:
        raise Untrusted(f"{what}: signature is {signature[:40]!r}, expected hexadecimal digits") from None
    return SealedReport(_report(Members(signed, what), what), to_canonical_json(signed), raw, public_key)


def _report(members: Members, what: str) -> Report:
    members.check_schema(SCHEMA)
    found = Report(
        device=name(members.text("device"), f"{what}: device"),
        fleet=members.text("fleet", most=128),
        ring=members.text("ring", most=128),
        time=members.integer("time", most=MOST_TIME),
        counter=members.integer("counter", least=1),
        nonce=members.text("nonce", most=64),
        chain=tuple(_link(one, what) for one in members.array("chain", most=MOST_CHAIN)),
        agent=members.text("agent", most=64),
        server=members.text("server", most=64),
        facts=members.texts("facts", most=MOST_FACTS),
        bundles={
            bundle: _bundle(name(bundle, what), one) for bundle, one in members.tables("bundles", most=MOST_BUNDLES)
        },
        bad=tuple(_failed(one) for one in members.objects("bad", most=MOST_BAD)),
        clock_unset=members.boolean("clock_unset"),
        floors_lost=members.integer("floors_lost", most=MOST_TIME),
        paused=members.boolean("paused"),
        error=members.text("error", most=64),
        disk_free_bytes=members.integer("disk_free_bytes"),
    )
    members.end()
    return found


def _link(found: Any, what: str) -> Link:
    match found:
        case [int(counter), str(nonce)] if counter > 0 and len(nonce) <= 64:
            return counter, nonce
    raise Untrusted(f"{what}: chain has {str(found)[:60]!r}, expected a counter and a nonce")


def _bundle(bundle: str, members: Members) -> BundleReport:
    found = BundleReport(
        bundle=bundle,
        release=members.integer("release"),
        previous=members.integer("previous"),
        next=members.integer("next"),
        stage=members.text("stage", most=32),
        wanted=members.integer("wanted"),
        since=members.integer("since", most=MOST_TIME),
        execution=_word(members, "execution", EXECUTIONS),
        result=_word(members, "result", RESULTS),
        reason=members.text("reason", most=64),
        requests=members.integer("requests"),
        failures=members.integer("failures"),
    )
    members.end()
    return found


def _word(members: Members, member: str, known: tuple[str, ...]) -> str:
    found = members.text(member)
    if found not in known:
        members.refuse(member, found, f"expected one of {', '.join(known)}")
    return found


def _failed(members: Members) -> FailedRelease:
    found = FailedRelease(
        bundle=members.text("bundle", most=128),
        release=members.integer("release"),
        variant=members.text("variant", most=128),
        reason=members.text("reason", most=64),
        time=members.integer("time", most=MOST_TIME),
        permanent=members.boolean("permanent"),
    )
    members.end()
    return found
