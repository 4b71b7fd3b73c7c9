from __future__ import annotations

from dataclasses import replace

import pytest

from ota.agent import status_file
from ota.layout import StateLayout
from ota.store import history, pause
from ota.store.directories import prepare
from ota.store.history import HistoryEvent


def test_events_are_kept_in_order_and_bounded(layout: StateLayout) -> None:
    prepare(layout)
    assert history.read(layout) == []
    history.append(layout, HistoryEvent(1.0, "good", "det", 17))
    assert history.read(layout) == [{"time": 1.0, "event": "good", "bundle": "det", "release": 17}]
    lines = layout.history.read_bytes()
    layout.history.write_bytes(lines * (history.MOST + 20) + b'{"torn": ')
    history.append(layout, HistoryEvent(2.0, "bad", "det", 18, message="x" * 10_000))
    found = history.read(layout)
    assert len(found) == history.MOST
    assert found[-1]["event"] == "bad"
    assert len(found[-1]["message"]) == 1000


def test_long_messages_of_any_script_leave_a_history_that_can_be_read(layout: StateLayout) -> None:
    prepare(layout)
    message = "\u6a21" * 1000  # 6 bytes each in the file
    event = HistoryEvent(1.0, "bad", "det", 17, message=message)
    history.append(layout, event)
    layout.history.write_bytes(layout.history.read_bytes() * history.MOST)  # an older edge-ota wrote that many
    for release in (18, 19):
        history.append(layout, replace(event, release=release))
    found = history.read(layout)
    assert [one["release"] for one in found[-3:]] == [17, 18, 19]
    assert 300 < len(found) < history.MOST
    assert all(one["message"] == message for one in found)


@pytest.mark.fault("D6")
def test_documents_that_nest_without_end_are_read_as_damaged(layout: StateLayout) -> None:
    for path in (layout.history, layout.status, layout.pause):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[" * 100_000)
    assert history.read(layout) == []
    assert status_file.read(layout) == {}
    found = pause.read(layout)
    assert found is not None
    assert found.why.endswith("cannot be read")
