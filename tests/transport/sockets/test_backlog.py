"""When a stream is paused, and when it resumes."""

from __future__ import annotations

from edge_serve.transport.sockets.backlog import _EVENT_BYTES, MAX_UNREAD, PAUSE_ABOVE, RESUME_BELOW, Backlog

#: an event of so many bytes counts as 4 KiB
SIZE = 4096 - _EVENT_BYTES


def grown(above: int, backlog: Backlog | None = None) -> tuple[Backlog, int]:
    """A backlog of events that just exceed `above` bytes, and how many they are."""
    backlog, count = backlog or Backlog(), 0
    while count * 4096 <= above:
        backlog.add(SIZE)
        count += 1
    return backlog, count


def test_a_stream_is_paused_above_one_bound_and_resumed_below_a_lower_one() -> None:
    backlog = Backlog()
    backlog.add(PAUSE_ABOVE // 2)
    assert not backlog.must_pause()

    backlog, count = grown(PAUSE_ABOVE)
    assert backlog.must_pause()
    backlog.pause(True)
    assert not backlog.must_pause()  # once is enough
    assert not backlog.resume()

    for _ in range(count * 3 // 4 - 4):
        backlog.take(SIZE)
        assert not backlog.resume()
    for _ in range(8):
        backlog.take(SIZE)
    assert backlog.resume()
    assert not backlog.resume()  # once is enough
    assert not backlog.must_pause()


def test_a_stream_that_is_not_paused_is_not_resumed() -> None:
    assert not Backlog().resume()


def test_a_stream_whose_senders_cannot_all_wait_is_resumed_like_others() -> None:
    backlog, count = grown(PAUSE_ABOVE)
    backlog.pause(False)
    assert backlog.paused
    assert backlog.must_pause(), "perhaps the sender that cannot wait has ended"
    for _ in range(count):
        backlog.take(SIZE)
    assert backlog.resume()
    assert not backlog.paused


def test_without_a_hold_there_is_an_end() -> None:
    backlog, _ = grown(MAX_UNREAD)
    assert backlog.is_too_much()

    backlog.pause(True)
    assert not backlog.is_too_much()
    assert backlog.must_pause(), "perhaps a sender cannot wait any more"
    backlog.pause(False)
    assert backlog.is_too_much()


def test_many_small_events_count_for_the_memory_that_they_take() -> None:
    backlog = Backlog()
    for _ in range(PAUSE_ABOVE // 50):
        backlog.add(30)

    assert backlog.must_pause()


def test_an_event_that_gets_smaller_ends_once() -> None:
    backlog = Backlog()
    for _ in range(PAUSE_ABOVE // 50):
        backlog.add(30)
        backlog.take(20, 0)
        backlog.take(10)
    backlog.add(PAUSE_ABOVE)

    assert backlog.must_pause()


def test_the_bounds_leave_the_client_something_to_read_while_the_model_wakes() -> None:
    assert 0 < RESUME_BELOW < PAUSE_ABOVE < MAX_UNREAD
