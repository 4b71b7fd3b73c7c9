"""Reports that continue, branch off, and go back."""

from __future__ import annotations

import pytest

from ota.decide.report_chain import MOST_BRANCHES, Branch, Continuity, find_old, follow_report, sort_reports
from ota.documents.report import Report

Link = tuple[int, str]


class Disk:
    """The part of a device's disk from which reports continue."""

    def __init__(self, chain: Branch = ()) -> None:
        self.chain = chain

    def copy(self) -> Disk:
        return Disk(self.chain)

    def report(self, nonce: str) -> tuple[Link, Branch]:
        before = self.chain
        counter = before[-1][0] + 1 if before else 1
        self.chain = (*before, (counter, nonce))[-20:]
        return (counter, nonce), before


def seen(*reports: tuple[Link, Branch]) -> list[Continuity]:
    branches: tuple[Branch, ...] = ()
    found = []
    for link, chain in reports:
        branches, how = follow_report(branches, link, chain)
        found.append(how)
        assert len(branches) <= MOST_BRANCHES
    return found


def test_reports_that_continue_also_where_some_were_missed() -> None:
    disk = Disk()
    every = [disk.report(f"n{number}") for number in range(60)]
    assert seen(*every)[1:] == [Continuity.NEXT] * 59
    assert seen(every[0], every[10], every[20]) == [Continuity.FIRST, Continuity.NEXT, Continuity.NEXT]
    assert seen(every[0], every[50], every[51]) == [Continuity.FIRST, Continuity.GAP, Continuity.NEXT]
    assert seen(every[5], every[5], every[6], every[2]) == [
        Continuity.FIRST, Continuity.OLD, Continuity.NEXT, Continuity.OLD,
    ]  # fmt: skip


@pytest.mark.fault("R4")
def test_a_restored_disk_and_a_clone_of_it_are_recognised() -> None:
    first = Disk()
    start = [first.report(f"n{number}") for number in range(5)]
    backup = first.copy()
    more = [first.report(f"m{number}") for number in range(3)]
    again = [backup.report(f"r{number}") for number in range(3)]
    assert seen(*start, *more, *again)[8:] == [Continuity.RESTORED, Continuity.NEXT, Continuity.NEXT]
    clone = [first.report("late"), backup.report("later")]
    assert seen(*start, *more, *again, *clone)[11:] == [Continuity.CLONED, Continuity.CLONED]


@pytest.mark.fault("R4")
def test_a_lost_state_counts_as_restored() -> None:
    disk, fresh = Disk(), Disk()
    before = [disk.report(f"n{number}") for number in range(30)]
    assert seen(*before, fresh.report("x"))[-1] is Continuity.RESTORED


def test_a_disk_that_is_put_back_again_and_again_costs_no_memory() -> None:
    first = Disk(((7, "n"),))
    reports = [first.copy().report(f"r{number}") for number in range(50)]
    assert set(seen(*reports)[1:]) == {Continuity.RESTORED}


def made(disk: Disk, time: int, nonce: str) -> Report:
    (counter, _), chain = disk.report(nonce)
    return Report("dev", "plant", "prod", time, counter, nonce, chain)


def nonces(reports: list[Report]) -> str:
    return " ".join(one.nonce for one in reports)


@pytest.mark.fault("K1")
def test_reports_are_sorted_by_time_and_by_their_chains() -> None:
    disk = Disk()
    times = {"a": 10, "b": 20, "ahead": 900, "c": 30, "d": 40, "back": 1, "e": 50}
    reports = [made(disk, time, nonce) for nonce, time in times.items()]
    assert nonces(sort_reports(reports[::-1])) == "a b ahead c d back e"
    other = Disk(reports[1].chain)
    branch = [made(other, time, nonce) for nonce, time in {"x": 35, "y": 60}.items()]
    assert nonces(sort_reports(branch + reports)) == "a b ahead c d back x e y"


def test_old_reports_are_those_that_the_chains_of_known_ones_lead_to() -> None:
    disk = Disk()
    reports = [made(disk, number, f"n{number}") for number in range(1, 121)]
    known = (tuple(one.link for one in reports[80:101]),)
    assert find_old(known, reports) == {one.link for one in reports[:101]}
    assert find_old(known, reports[:20] + reports[70:]) == {
        one.link for number, one in enumerate(reports[:101]) if number < 20 or number >= 50
    }, "reports were lost"
    restored = Disk(reports[5].chain)
    back = made(restored, 900, "back")
    assert back.link not in find_old(known, [*reports, back])
    assert find_old((), reports) == set()
