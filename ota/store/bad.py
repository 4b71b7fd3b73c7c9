"""The bad list: the releases that failed on this device, and when each may be tried again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ota import files
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.strict_json import Members, parse, to_canonical_json

SCHEMA = 1
#: entries that are kept; the oldest are evicted first
MOST = 256
#: every variant of the release
ANY_VARIANT = ""
#: the first wait after a transient failure; it doubles with each further one
FIRST_WAIT = 15 * 60.0
LONGEST_WAIT = 24 * 3600.0
_MOST_MESSAGE = 1000
_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BadRelease:
    """A release, or one variant of it, that failed on this device.

    Attributes:
        variant: "" = all of them.
        fingerprint: of the device's facts; other facts (a new driver) are another chance.
        reason: the word of the error; message: its text.
        permanent: not tried again until `edge-ota retry`; else not before `until`.
    """

    bundle: str
    release: int
    variant: str
    fingerprint: str
    reason: str
    message: str
    time: float
    permanent: bool
    failures: int = 1
    until: float = 0.0

    def is_of(self, bundle: str, release: int, variant: str) -> bool:
        """Return whether this is a failure of a variant, or of its release in all variants."""
        return (self.bundle, self.release) == (bundle, release) and self.variant in (ANY_VARIANT, variant)


class BadList:
    """The entries of the bad list. Immutable: changes return a new list, and `save` writes it."""

    def __init__(self, entries: Iterable[BadRelease] = ()) -> None:
        self.entries = tuple(entries)

    def find(self, bundle: str, release: int, variant: str, fingerprint: str, now: float) -> BadRelease | None:
        """Return the entry that forbids to try a variant now; None = it may be tried."""
        for one in reversed(self.entries):
            held = one.permanent or one.time <= now < one.until
            if held and one.is_of(bundle, release, variant) and one.fingerprint in ("", fingerprint):
                return one
        return None

    def has_failed(self, bundle: str, release: int, variant: str) -> bool:
        """Return whether a variant has a permanent failure, whatever the facts of the device were."""
        return any(one.permanent and one.is_of(bundle, release, variant) for one in self.entries)

    def releases(self, bundle: str) -> set[int]:
        """Return the releases of a bundle with a permanent failure in any variant."""
        return {one.release for one in self.entries if one.bundle == bundle and one.permanent}

    def add(self, found: BadRelease) -> BadList:
        """Return the list with another failure. A repeated failure of the same variant waits longer."""
        key = (found.bundle, found.release, found.variant)
        same = [one for one in self.entries if (one.bundle, one.release, one.variant) == key]
        failures = 1 + sum(one.failures for one in same if one.fingerprint == found.fingerprint)
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 20))
        until = 0.0 if found.permanent else found.time + wait
        others = [one for one in self.entries if one not in same]
        message = " ".join(found.message.split())[:_MOST_MESSAGE]
        message = "".join(one if one.isprintable() else "?" for one in message)
        return BadList([*others, replace(found, message=message, failures=failures, until=until)][-MOST:])

    def without_variant(self, bundle: str, release: int, variant: str) -> BadList:
        """Return the list without the entries of a variant, and of its release in all variants."""
        return BadList(one for one in self.entries if not one.is_of(bundle, release, variant))

    def without(self, bundle: str = "", release: int = 0, reason: str = "") -> BadList:
        """Return the list without the entries of a bundle ("" = of all), or of one release, or with one reason."""
        return BadList(
            one
            for one in self.entries
            if (bundle and one.bundle != bundle)
            or (release and one.release != release)
            or (reason and one.reason != reason)
        )


def load(layout: StateLayout) -> BadList:
    """Return the list. A damaged list counts as empty: a bad release fails its trial again."""
    try:
        data = files.read(layout.bad, _MOST_BYTES)
        if data is None:
            return BadList()
        members = Members(parse(data, str(layout.bad), _MOST_BYTES), str(layout.bad), StoreError)
        if members.integer("schema") != SCHEMA:
            return BadList()
        return BadList([_entry(one) for one in members.objects("entries", most=4 * MOST)][-MOST:])
    except Exception:  # a damaged file can raise any error
        return BadList()


def save(layout: StateLayout, found: BadList) -> None:
    """Write the list, durably."""
    entries = [{name: getattr(one, name) for name in BadRelease.__slots__} for one in found.entries]
    files.write_durably(layout.bad, to_canonical_json({"schema": SCHEMA, "entries": entries}), 0o600)


def _entry(members: Members) -> BadRelease:
    found = BadRelease(
        bundle=members.text("bundle"),
        release=members.integer("release"),
        variant=members.text("variant"),
        fingerprint=members.text("fingerprint"),
        reason=members.text("reason"),
        message=members.text("message", most=4096),
        time=members.number("time"),
        permanent=members.boolean("permanent"),
        failures=members.integer("failures", 1),
        until=members.number("until", 0.0),
    )
    members.end()
    return found
