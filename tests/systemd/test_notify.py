"""Messages, and how they get to a real datagram socket."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from edge_serve.systemd import notify
from tests.footprint import footprint
from tests.supervision.manager import mailbox


def test_messages_have_the_form_that_systemd_reads() -> None:
    assert notify.ready("5 models ready", 7).split("\n") == ["READY=1", "MAINPID=7", "STATUS=5 models ready"]
    assert notify.reloading(5_000_123_999).startswith("RELOADING=1\nMONOTONIC_USEC=5000123\n")
    assert notify.extend(1.5) == "EXTEND_TIMEOUT_USEC=1500000"
    assert notify.stopping("bye").split("\n") == ["STOPPING=1", "STATUS=bye"]
    assert notify.failed("in use", 98).split("\n") == ["STATUS=in use", "ERRNO=98"]
    assert notify.failed("no errno") == "STATUS=no errno"
    assert notify.trigger("stuck").split("\n") == ["STATUS=stuck", "WATCHDOG=trigger"]


def test_a_name_with_a_line_break_cannot_add_an_assignment() -> None:
    assert notify.status("loading a\nREADY=1") == "STATUS=loading a READY=1"


def test_a_status_of_any_length_keeps_the_rest_of_its_message() -> None:
    """systemd ignores a message of more than 4096 bytes (PIPE_BUF) as a whole, its READY=1 too."""
    for text in ("line-detector, " * 1000, "\U0001f600" * 5000, "\udcff" * 5000):
        for message in (
            notify.ready(text, 4_194_304),
            notify.status(text),
            notify.stopping(text),
            notify.failed(text, 98),
            notify.trigger(text),
        ):
            assert len(message.encode(errors="replace")) < 4096
    assert notify.trigger("x" * 5000).endswith("x...\nWATCHDOG=trigger")
    assert notify.status("\U0001f600" * 5000).startswith("STATUS=\U0001f600\U0001f600")


@pytest.mark.parametrize("abstract", [False, True])
def test_paths_and_abstract_addresses(tmp_path: Path, abstract: bool) -> None:
    place = Path(f"@edge-serve-test-{tmp_path.name}") if abstract else tmp_path / "notify"
    with mailbox(place) as box:
        notify.Notifier(notify.sender({"NOTIFY_SOCKET": str(place)})).notify(notify.ready("1 model ready", 1))
        assert box.next(5) == {"READY": "1", "MAINPID": "1", "STATUS": "1 model ready"}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that the library was given."""
    sent: list[str] = []
    module = types.ModuleType("systemd.daemon")
    module.notify = sent.append  # type: ignore[attr-defined]  # what the real one has
    monkeypatch.setitem(sys.modules, "systemd", types.ModuleType("systemd"))
    monkeypatch.setitem(sys.modules, "systemd.daemon", module)
    return sent


def test_the_library_is_used_for_an_unknown_kind_of_address(library: list[str]) -> None:
    notify.Notifier(notify.sender({"NOTIFY_SOCKET": "vsock:2:1234"})).notify("WATCHDOG=1")
    assert library == ["WATCHDOG=1"]


def test_the_library_is_not_used_where_it_would_block(tmp_path: Path, library: list[str]) -> None:
    with mailbox(tmp_path / "notify") as box:
        notify.Notifier(notify.sender({"NOTIFY_SOCKET": str(tmp_path / "notify")})).notify("WATCHDOG=1")
        assert box.next(5) == {"WATCHDOG": "1"}
    assert library == []


def test_a_manager_that_does_not_read_blocks_no_notifier(tmp_path: Path) -> None:
    with mailbox(tmp_path / "notify"):
        notifier = notify.Notifier(notify.sender({"NOTIFY_SOCKET": str(tmp_path / "notify")}))
        for number in range(1000):  # more than the queue of the socket takes
            notifier.notify(f"STATUS={number}")


def test_nobody_listens_without_a_manager_or_behind_an_unknown_kind_of_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "systemd.daemon", None)  # not installed
    assert notify.sender({}) is notify.quiet
    assert notify.sender({"NOTIFY_SOCKET": "vsock:2:1234"}) is notify.quiet


def test_a_message_that_cannot_be_sent_is_sent_with_the_next_in_order(tmp_path: Path) -> None:
    notifier = notify.Notifier(notify.socket_sender(str(tmp_path / "notify")))
    notifier.notify("READY=1")
    notifier.notify("WATCHDOG=1")
    notifier.notify("WATCHDOG=1")
    with mailbox(tmp_path / "notify") as box:
        notifier.notify("STATUS=back")
        assert [box.next(5) for _ in range(3)] == [{"READY": "1"}, {"WATCHDOG": "1"}, {"STATUS": "back"}]
        assert box.next(0.01) is None


def test_a_manager_that_never_reads_costs_no_memory() -> None:
    def fail(message: str) -> None:
        raise BlockingIOError

    notifier = notify.Notifier(fail)
    for number in range(1000):
        notifier.notify(f"STATUS={number}")
    assert footprint(notifier) < 50
