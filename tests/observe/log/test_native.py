"""journald's native protocol, with a socket that plays journald."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from edge_serve.observe.log.native import NativeSender, encode
from tests.observe.log.journald import journald, parse


@pytest.mark.parametrize(
    "fields",
    [{"MESSAGE": "x=1"}, {"A": ""}, {"A": "two\nlines", "B": "\n", "C": "grün"}, {"A": "lone \udcff surrogate"}],
)
def test_an_entry_reads_as_it_was_written(fields: dict[str, str]) -> None:
    assert parse(encode(fields)) == {name: value.replace("\udcff", "?") for name, value in fields.items()}


def test_a_long_entry_is_sent_in_a_sealed_file(tmp_path: Path) -> None:
    with journald(tmp_path) as peer:
        sender = NativeSender(peer.path)
        text = "x" * (20 << 20)
        assert sender.send({"MESSAGE": text})
        assert sender.send({"MESSAGE": "next"})
        sender.close()

        assert [entry["MESSAGE"] for entry in peer.entries()] == [text, "next"]
        assert peer.sealed == [True]


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


def sockets() -> set[int]:
    """Return the descriptors of this process that are sockets."""
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own
            found |= {fd} if stat.S_ISSOCK(os.fstat(fd).st_mode) else set()
    return found


def test_the_socket_is_a_datagram_socket_that_children_do_not_get(tmp_path: Path) -> None:
    with journald(tmp_path) as peer:
        before = sockets()
        sender = NativeSender(peer.path)
        (fd,) = sockets() - before
        with socket.socket(fileno=os.dup(fd)) as same:
            assert same.type == socket.SOCK_DGRAM
        assert not os.get_inheritable(fd)
        sender.close()
