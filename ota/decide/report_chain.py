"""Sorts the reports of a key, and detects copied or restored disks: decides whether reports continue each other.

Each report names the counters and nonces of the reports before it. Two reports with one counter and different nonces
come from two disks, or from one disk that was restored to an earlier state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from ota.documents.report import MOST_CHAIN, Link, Report

#: counters and nonces of consecutive reports, the oldest first
Branch = tuple[Link, ...]
#: branches that are kept for a key
MOST_BRANCHES = 4


class Continuity(Enum):
    """The relation of a report to the reports before it."""

    FIRST = "first"
    NEXT = "next"
    #: more reports were missed than the chain has
    GAP = "gap"
    #: this report, or a later one, was seen before
    OLD = "old"
    #: the chain branches: the disk was restored to an earlier state, or was copied
    RESTORED = "restored"
    #: both branches continue: two devices have one key
    CLONED = "cloned"


def follow_report(branches: Sequence[Branch], link: Link, chain: Branch) -> tuple[tuple[Branch, ...], Continuity]:
    """Return the branches with a new report added, its own branch last, and its continuity.

    Args:
        branches: of this key, the one that grew last at the end.
        link: the counter and nonce of the report; chain: those of the reports before it.
    """
    grown = (*chain, link)[-MOST_CHAIN - 1 :]
    if not branches:
        return (grown,), Continuity.FIRST
    if any(link in branch for branch in branches):
        return tuple(branches), Continuity.OLD
    for branch in reversed(branches):
        if branch[-1] in grown:
            others = tuple(one for one in branches if one is not branch)
            return (*others, grown), Continuity.NEXT if branch is branches[-1] else Continuity.CLONED
    if grown[0][0] > branches[-1][-1][0]:
        return (*branches[:-1], grown), Continuity.GAP
    return (*branches, grown)[-MOST_BRANCHES:], Continuity.RESTORED


def sort_reports(reports: Sequence[Report]) -> list[Report]:
    """Sort the reports of a key, the oldest first: by their times, but each after the reports that its chain names.

    The clock of a device may be set forward and back, and the chain of its reports is not.
    """
    times: dict[Link, int] = {}
    for one in sorted(reports, key=lambda one: one.counter, reverse=True):
        times[one.link] = min(one.time, times.get(one.link, one.time))
        for link in one.chain:
            times[link] = min(times[one.link], times.get(link, one.time))
    return sorted(reports, key=lambda one: (times[one.link], one.counter))


def find_old(branches: Iterable[Branch], reports: Sequence[Report]) -> set[Link]:
    """Return the links of the branches, and of all reports before them: those that the chains of `reports` lead to.

    A branch has the last links only, and a directory may have every report since the first one.

    Args:
        reports: of this key, sorted.
    """
    before_gap: dict[Link, Link] = {}
    line: tuple[Branch, ...] = ()
    for one in reports:
        grown, how = follow_report(line, one.link, one.chain)
        if how is Continuity.GAP:
            before_gap[one.link] = line[-1][-1]
        line = grown
    old = {link for branch in branches for link in branch}
    for one in reversed(reports):
        if one.link in old:
            old.update(one.chain)
            old.add(before_gap.get(one.link, one.link))
    return old
