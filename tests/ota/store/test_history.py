from __future__ import annotations

from ota.layout import Layout
from ota.store import history
from ota.store.history import Event
from ota.store.places import prepare


def test_events_are_kept_in_order_and_bounded(layout: Layout) -> None:
    prepare(layout)
    assert history.read(layout) == []
    history.append(layout, Event(1.0, "good", "det", 17))
    assert history.read(layout) == [{"time": 1.0, "event": "good", "bundle": "det", "release": 17}]
    lines = layout.history.read_bytes()
    layout.history.write_bytes(lines * (history.MOST + 20) + b'{"torn": ')
    history.append(layout, Event(2.0, "bad", "det", 18, message="x" * 10_000))
    found = history.read(layout)
    assert len(found) == history.MOST
    assert found[-1]["event"] == "bad"
    assert len(found[-1]["message"]) == 1000
