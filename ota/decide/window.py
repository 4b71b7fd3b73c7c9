"""Hours of the day, in local time: `02:00-05:00`, also over midnight."""

from __future__ import annotations

from datetime import datetime, tzinfo


def in_window(window: str, now: float, zone: tzinfo | None = None) -> bool:
    """Return whether the local time is within `window`; "" = always.

    The clock on the wall counts, so that a window is an hour shorter or longer when summer time begins or ends.

    Args:
        window: `HH:MM-HH:MM`; the end is not part of it, and an end before the start is on the next day.
        now: seconds since the epoch.
        zone: None = the device's.
    """
    if not window:
        return True
    local = datetime.fromtimestamp(now, zone)
    minute = local.hour * 60 + local.minute
    start, end = (_minutes(text) for text in window.split("-"))
    if start == end:
        return True
    return start <= minute < end if start < end else minute >= start or minute < end


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
