"""Detects copied or restored disks: decides whether the reports of a key continue each other.

Each report names the counters and nonces of the reports before it. Two reports with one counter and different nonces
come from two disks, or from one disk that was restored to an earlier state.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ota.documents.report import MOST_CHAIN, Link

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
