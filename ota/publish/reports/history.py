"""Stores the chain of each key's reports, so that a branching report reveals a disk that was copied or restored.

The file is `reports.json` beside `publish.json`. Without it, only reports in one directory are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.decide.report_chain import MOST_BRANCHES, Branch, Continuity, find_old, follow_report
from ota.documents.report import MOST_CHAIN, MOST_TIME, Report
from ota.errors import StoreError
from ota.strict_json import Members, parse, to_canonical_json

SCHEMA = 1
FILE = "reports.json"
_MOST_BYTES = 1024 * 1024 * 1024
_MOST_KEYS = 1_000_000
_FORKS = (Continuity.RESTORED, Continuity.CLONED)


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """The chain of a device key's reports.

    Attributes:
        branches: see `decide.chain`. fork: `restored` or `cloned`, and since when (epoch); "" = the reports continue.
    """

    branches: tuple[Branch, ...] = ()
    fork: str = ""
    since: int = 0


class ReportHistory:
    """The chains of all keys' reports.

    Raises:
        StoreError: the file is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._stored = files.read(self._path, _MOST_BYTES)
        self.keys = _parsed(self._stored, str(self._path)) if self._stored is not None else {}

    def take(self, genuine: Mapping[str, Sequence[Report]]) -> dict[str, KeyHistory]:
        """Add reports. Return device -> history of its key, where its reports fork.

        Args:
            genuine: fingerprint -> the reports of that key, sorted; also those that were added before.
        """
        forked: dict[str, KeyHistory] = {}
        for fingerprint, reports in genuine.items():
            known = self.keys.get(fingerprint, KeyHistory())
            old = find_old(known.branches, reports)
            for one in reports:
                if one.link not in old:
                    known = _add(known, one)
            self.keys[fingerprint] = known
            if known.fork:
                forked |= {one.device: known for one in reports}
        return forked

    def save(self) -> None:
        """Write the file durably if it has changed."""
        rows = {
            key: {"branches": [[list(link) for link in one] for one in known.branches]}
            | ({"fork": known.fork, "since": known.since} if known.fork else {})
            for key, known in self.keys.items()
        }
        data = to_canonical_json({"schema": SCHEMA, "keys": rows})
        if data != self._stored:
            files.write_durably(self._path, data, 0o600)
            self._stored = data


def _add(known: KeyHistory, report: Report) -> KeyHistory:
    branches, how = follow_report(known.branches, report.link, report.chain)
    if how in _FORKS and known.fork != Continuity.CLONED.value:
        return KeyHistory(branches, how.value, report.time)
    return KeyHistory(branches, known.fork, known.since)


def _parsed(data: bytes, what: str) -> dict[str, KeyHistory]:
    members = Members(parse(data, what, _MOST_BYTES), what, StoreError)
    if (schema := members.integer("schema")) != SCHEMA:
        raise StoreError(f"{what} has schema {schema}, expected {SCHEMA}: update edge-ota, or remove it to start again")
    return {key: _key(one, what) for key, one in members.tables("keys", most=_MOST_KEYS)}


def _key(members: Members, what: str) -> KeyHistory:
    try:
        branches = tuple(
            tuple((int(counter), str(nonce)) for counter, nonce in one[-MOST_CHAIN - 1 :])
            for one in members.array("branches", most=MOST_BRANCHES)
        )
    except (TypeError, ValueError):
        raise StoreError(f"{what} is damaged: remove it to start again") from None
    # earlier versions stored any integer
    return KeyHistory(branches, members.text("fork", ""), min(members.integer("since", 0), MOST_TIME))
