"""When we ask, when a client asks too often, and when a connection is old."""

from __future__ import annotations

import math

from edge_serve.transport.grpc.keepalive import Due, Keepalive, KeepaliveSettings

S = 1_000_000_000


def test_silence_is_asked_about_and_no_answer_ends_it() -> None:
    keepalive = Keepalive(KeepaliveSettings(time=10, timeout=2), 0)

    assert keepalive.check(9 * S, 1, 0, 0) is Due.NOTHING
    assert keepalive.check(10 * S, 1, 0, 0) is Due.PING
    assert keepalive.check(11 * S, 1, 0, 0) is Due.NOTHING
    assert keepalive.check(12 * S, 1, 0, 0) is Due.CLOSE


def test_any_byte_is_an_answer() -> None:
    keepalive = Keepalive(KeepaliveSettings(time=10, timeout=2), 0)

    assert keepalive.check(10 * S, 1, 0, 0) is Due.PING
    assert keepalive.check(13 * S, 1, 17, 0) is Due.NOTHING
    assert keepalive.check(22 * S, 1, 17, 0) is Due.NOTHING
    assert keepalive.check(23 * S, 1, 17, 0) is Due.PING


def test_silence_of_a_client_that_is_not_read_from_means_nothing() -> None:
    keepalive = Keepalive(KeepaliveSettings(time=10, timeout=2), 0)

    assert keepalive.check(10 * S, 1, 0, 0) is Due.PING
    assert keepalive.check(13 * S, 1, 0, 0, reading=False) is Due.NOTHING
    assert keepalive.check(22 * S, 1, 0, 0) is Due.NOTHING
    assert keepalive.check(23 * S, 1, 0, 0) is Due.PING
    assert keepalive.check(25 * S, 1, 0, 0) is Due.CLOSE


def test_no_ping_is_sent_without_calls_unless_permitted() -> None:
    assert Keepalive(KeepaliveSettings(time=1), 0).check(5 * S, 0, 0, 0) is Due.NOTHING
    assert Keepalive(KeepaliveSettings(time=1, without_calls=True), 0).check(5 * S, 0, 0, 0) is Due.PING


def test_pings_without_data_stay_below_their_limit() -> None:
    keepalive = Keepalive(KeepaliveSettings(time=1, max_pings_without_data=2), 0)
    asked = 0
    for second in range(1, 20):
        asked += keepalive.check(second * S, 1, second, 0) is Due.PING
        asked += keepalive.check(second * S + S // 2, 1, second, 0) is Due.PING
    assert asked == 0  # it is never silent for a second

    due = [keepalive.check(second * S, 1, 100 + second // 3, 0) for second in range(30, 60)]
    assert due.count(Due.PING) == 2
    assert Due.PING in [keepalive.check(second * S, 1, 200 + second // 3, 1) for second in range(60, 66)]


def test_an_old_connection_is_asked_to_leave_and_closed_after_its_grace() -> None:
    keepalive = Keepalive(KeepaliveSettings(max_age=10, age_grace=5), 0, 1.1)

    assert keepalive.check(10 * S, 0, 0, 0) is Due.NOTHING
    assert keepalive.check(11 * S, 0, 0, 0) is Due.DRAIN
    assert keepalive.check(15 * S, 0, 0, 0) is Due.NOTHING
    assert keepalive.check(16 * S, 0, 0, 0) is Due.CLOSE


def test_a_client_may_ask_now_and_then_and_after_every_answer() -> None:
    keepalive = Keepalive(KeepaliveSettings(min_interval=10, max_strikes=2), 0)

    assert [keepalive.on_ping(second * S, 1, 0) for second in (0, 10, 20, 30)] == [False] * 4
    assert [keepalive.on_ping(31 * S, 1, sent) for sent in range(1, 50)] == [False] * 49
    assert [keepalive.on_ping(32 * S, 1, 99) for _ in range(4)] == [False, False, False, True]


def test_a_client_without_calls_may_ask_every_two_hours() -> None:
    keepalive = Keepalive(KeepaliveSettings(min_interval=10, max_strikes=1), 0)

    assert [keepalive.on_ping(hour * 3600 * S, 0, 0) for hour in (0, 2, 3, 4)] == [False, False, False, True]


def test_no_strikes_is_no_end() -> None:
    keepalive = Keepalive(KeepaliveSettings(max_strikes=0), 0)

    assert not any(keepalive.on_ping(0, 1, 0) for _ in range(100))


def test_times_are_looked_at_in_time() -> None:
    assert KeepaliveSettings().sweep_interval() == 1.0
    assert KeepaliveSettings(timeout=0.1).sweep_interval() == 0.025
    assert KeepaliveSettings(max_age=math.inf, time=0.0).sweep_interval() == 0.01
