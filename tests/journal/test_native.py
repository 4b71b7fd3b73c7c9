"""journald's native protocol, with a socket that plays journald."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edge_serve.journal import native
from edge_serve.journal.native import NativeSender, encode
from tests.journal.journald import journald, parse


@pytest.mark.parametrize(
    "fields",
    [{"MESSAGE": "x=1"}, {"A": ""}, {"A": "two\nlines", "B": "\n", "C": "grün"}, {"A": "lone \udcff surrogate"}],
)
def test_an_entry_reads_as_it_was_written(fields: dict[str, str]) -> None:
    assert parse(encode(fields)) == {name: value.replace("\udcff", "?") for name, value in fields.items()}


def test_entries_arrive_in_order(tmp_path: Path) -> None:
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path)
        for number in range(5):
            assert sender.send({"MESSAGE": str(number)})
        sender.close()

        assert [entry["MESSAGE"] for entry in peer.entries()] == list("01234")


def test_what_is_too_long_for_a_datagram_goes_in_a_sealed_file(tmp_path: Path) -> None:
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path)
        text = "x" * (20 << 20)
        assert sender.send({"MESSAGE": text})
        assert sender.send({"MESSAGE": "next"})
        sender.close()

        assert [entry["MESSAGE"] for entry in peer.entries()] == [text, "next"]
        assert peer.sealed == [True]


@pytest.mark.parametrize(
    ("writable", "passes_ms", "waits"),
    [(False, 5, [5]), (False, 0, [5]), (True, 2, [5, 3, 1])],
    ids=["it takes none", "the wait ends early", "it seems to take some"],
)
def test_a_journal_that_takes_nothing_holds_each_entry_up_for_its_patience_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool, passes_ms: int, waits: list[int]
) -> None:
    now_ms = 0
    waited: list[int] = []

    def wait(sender: NativeSender, milliseconds: int) -> bool:
        nonlocal now_ms
        waited.append(milliseconds)
        now_ms += passes_ms
        return writable

    monkeypatch.setattr(NativeSender, "_writable", wait)
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path, lambda: now_ms / 1000)
        while not waited:
            assert sender.send({"MESSAGE": "until its queue is full"})
        waited.clear()
        for _ in range(3):
            assert sender.send({"MESSAGE": "one more"})
        assert sender.flush()  # which waits for nothing
        assert waited == 3 * waits
        sender.close(patience_ms=0)


def test_a_journal_that_takes_nothing_loses_nothing_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "MOST_WAITING", 50)
    monkeypatch.setattr(native, "_PATIENCE_MS", 1)
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path)
        for number in range(800):
            assert sender.send({"MESSAGE": str(number)})
        came = peer.entries()
        taken = len(came)
        assert [entry["MESSAGE"] for entry in came] == [str(number) for number in range(taken)]
        while sender.flush() and (more := peer.entries()):
            came += more
        sender.close()

        kept = taken + 50
        assert [entry["MESSAGE"] for entry in came[:kept]] == [str(number) for number in range(kept)]
        assert came[kept]["MESSAGE"] == f"{800 - kept} lines are lost: the journal did not take them"
        assert len(came) == kept + 1


def test_a_journal_that_was_started_again_gets_the_next_entry(tmp_path: Path) -> None:
    with journald(tmp_path) as first:
        sender = NativeSender(first.path)
        assert sender.send({"MESSAGE": "a"})
    Path(first.path).unlink()
    for _ in range(2):
        assert not sender.send({"MESSAGE": "while there is none"})
    with journald(tmp_path) as second:
        assert sender.send({"MESSAGE": "b"})
        sender.close()

        assert [entry["MESSAGE"] for entry in second.entries()] == ["b"]


def test_without_a_journal_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        NativeSender(str(tmp_path / "none"))
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path)
    Path(peer.path).unlink()
    assert not sender.send({"MESSAGE": "a"})
    sender.close()


def test_the_socket_is_a_datagram_socket_that_children_do_not_get(tmp_path: Path) -> None:
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path)
        assert sender._socket.type == socket.SOCK_DGRAM
        assert not sender._socket.get_inheritable()
        sender.close()
