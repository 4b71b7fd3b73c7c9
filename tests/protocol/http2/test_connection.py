"""The HTTP/2 state machine against RFC 9113, byte by byte, against garbage, and against `h2` as its client."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import strategies as st

from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.connection import MAX_STREAMS
from edge_serve.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    Http2Setting,
)
from edge_serve.protocol.http2.heads import encode_literal
from edge_serve.protocol.http2.stream import CONNECTION_WINDOW, INITIAL_WINDOW
from edge_serve.protocol.http2.streams import PER_TURN
from tests.examples import examples
from tests.protocol.http2_scene import BLOCK, Recorder, Scene, answer, data, headers

frame = frames.build_frame


def test_a_greeting_is_answered() -> None:
    scene = Scene(greeted=False)
    scene.http2.start()
    scene.send(PREFACE, frames.build_settings([(Http2Setting.MAX_FRAME_SIZE, 20_000)]))

    kinds = [(kind, flags) for kind, flags, _, _ in scene.answers()]
    assert kinds == [(SETTINGS, 0), (WINDOW_UPDATE, 0), (SETTINGS, ACK)]
    assert scene.http2.table.sender.max_frame == 20_000


@pytest.mark.parametrize("cut", range(1, len(PREFACE)))
def test_a_preface_may_arrive_in_pieces(cut: int) -> None:
    scene = Scene(greeted=False)
    scene.send(PREFACE[:cut])
    scene.send(PREFACE[cut:], frames.build_settings(()), headers(1, end=True))

    assert scene.fault() is None
    assert scene.streams[1].complete


REQUESTS = b"".join(
    [
        headers(1),
        data(1, b"hello ", end=False),
        headers(3, end=True),
        frame(DATA, PADDED | END_STREAM, 1, b"\x03world\0\0\0"),
        frame(HEADERS, PADDED | PRIORITIZED, 5, b"\x02" + bytes(5) + BLOCK[:4] + bytes(2)),
        frame(CONTINUATION, 0, 5, BLOCK[4:7]),
        frame(CONTINUATION, END_HEADERS, 5, BLOCK[7:]),
        data(5, bytes(range(256)) * 400),
        frame(HEADERS, END_STREAM | END_HEADERS, 5, encode_literal(b"x", b"y")),
        headers(7),
        frame(DATA, PADDED | END_STREAM, 7, b"\xff" + b"7" * 30_000 + bytes(255)),
        frame(0x42, 0, 0, b"what is not known is passed over" * 3000),
        frame(PING, 0, 0, b"12345678"),
    ]
)


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_requests_are_read_however_they_are_cut(step: int) -> None:
    scene = Scene()
    for at in range(0, len(REQUESTS), step):
        scene.send(REQUESTS[at : at + step])

    assert scene.fault() is None
    assert scene.pings == 1
    streams = scene.streams
    assert [one.complete for one in streams.values()] == [True] * 4
    assert [streams[n].data for n in (1, 3, 7)] == [b"hello world", b"", b"7" * 30_000]
    assert streams[5].data == bytes(range(256)) * 400
    assert (streams[1].head.path, streams[1].head.fields) == (b"/x", [(b"te", b"trailers")])


@pytest.mark.parametrize("said", [b"", encode_literal(b"content-length", b"250000")], ids=["no length", "length"])
def test_a_large_frame_is_received_where_it_is_wanted(said: bytes) -> None:
    scene = Scene()
    whole = data(1, bytes(range(250)) * 1000, end=True)
    scene.send(headers(1, block=BLOCK + said), whole[:5000])
    stream = scene.streams[1]
    stream.store = bytearray(250_000)
    position = 5000
    while (place := scene.http2.place()) is not None:
        assert len(place) <= len(whole) - position
        size = min(len(place), 60_000)
        place[:size] = whole[position : position + size]
        position += size
        scene.http2.receive_placed(size)
    scene.send(whole[position:])

    assert stream.complete
    assert stream.data == bytes(range(250)) * 1000
    assert scene.fault() is None


def test_equal_blocks_are_one_head_until_the_table_changes() -> None:
    scene = Scene()
    scene.send(headers(1, end=True), headers(3, end=True))
    assert scene.streams[1].head is scene.streams[3].head
    indexed = BLOCK + b"\x40\x01a\x01b"
    scene.send(headers(5, end=True, block=indexed), headers(7, end=True, block=BLOCK + b"\xbe"))
    assert scene.streams[7].head.fields[-1] == (b"a", b"b")
    scene.send(headers(9, end=True, block=BLOCK + b"\x40\x01c\x01d"))
    scene.send(headers(11, end=True, block=BLOCK + b"\xbe"))

    assert scene.streams[11].head.fields[-1] == (b"c", b"d")  # the same bytes as of 7


def test_answers_keep_within_the_clients_windows() -> None:
    scene = Scene(settings=((Http2Setting.INITIAL_WINDOW_SIZE, 1000),))
    scene.send(headers(1, end=True), headers(3, end=True))
    sent: list[None] = []
    sender = scene.http2.table.sender
    assert not sender.send(scene.streams[1], (b"a" * 1500, b"b" * 1500), 3000, lambda: sent.append(None))
    sender.finish(scene.streams[1], frame(HEADERS, END_HEADERS | END_STREAM, 1))
    assert sender.send(scene.streams[3], (b"c" * 1000,), 1000)  # another stream has its own window
    assert [(kind, number, len(payload)) for kind, _, number, payload in scene.answers()] == [
        (DATA, 1, 1000),
        (DATA, 3, 1000),
    ]
    scene.send(frames.build_window_update(1, 1000))
    assert [(number, payload) for _, _, number, payload in scene.answers()] == [(1, b"a" * 500 + b"b" * 500)]
    scene.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 2000)]))
    assert [kind for kind, _, _, _ in scene.answers()] == [SETTINGS, DATA, HEADERS]

    assert scene.streams[1].closed
    assert scene.streams[1].taken == [3000]
    assert len(scene.wire.callbacks) == 1


def test_the_connections_window_holds_all_streams_and_they_take_turns() -> None:
    scene = Scene(settings=((Http2Setting.INITIAL_WINDOW_SIZE, 1 << 20),))
    scene.send(headers(1, end=True), headers(3, end=True))
    for number in (1, 3):
        scene.http2.table.sender.send(scene.streams[number], (bytes(100_000),), 100_000)
    first = sum(len(payload) for kind, _, _, payload in scene.answers() if kind == DATA)
    assert first == 65_535
    scene.send(frames.build_window_update(0, 4 * 16_384))
    numbers = [number for kind, _, number, _ in scene.answers() if kind == DATA]

    assert numbers in ([1, 3, 1, 3], [3, 1, 3, 1])


def test_streams_wait_while_the_kernel_takes_nothing() -> None:
    scene = Scene()
    scene.send(headers(1, end=True))
    scene.wire.pending = 1 << 20
    assert not scene.http2.table.sender.send(scene.streams[1], (b"x",), 1)
    assert scene.answers() == []
    scene.wire.pending = 0
    scene.http2.table.sender.pump()

    assert [payload for _, _, _, payload in scene.answers()] == [b"x"]
    assert scene.streams[1].taken == [1]


def test_a_message_counts_as_waiting_until_it_is_sent_itself() -> None:
    class Replying(Recorder):
        """Sends one more message when one is taken, as a stream does whose next request is answered at once."""

        waiting, left = 0, 1

        def write(self, size: int) -> None:
            self.waiting += 0 if self.table.sender.send(self, (bytes(size),), size) else size

        def on_taken(self, size: int) -> None:
            self.waiting -= size
            if self.left:
                self.left -= 1
                self.write(60_000)

    scene = Scene(settings=((Http2Setting.INITIAL_WINDOW_SIZE, 1 << 20),))
    scene.send(headers(1, end=True))
    stream = Replying(scene.http2.table, 1, scene.streams[1].head)
    scene.http2.table.open[1] = stream
    scene.wire.pending = 1 << 20
    stream.write(20_000)  # waits
    scene.wire.pending = 0  # flushed, and the next pump follows in another turn
    stream.write(10_000)
    scene.http2.table.sender.pump()
    scene.send(frames.build_window_update(0, 1 << 20))

    assert stream.queue is None
    assert stream.waiting == 0


def test_a_reset_stream_frees_what_waited() -> None:
    scene = Scene()
    scene.send(headers(1, end=True))
    scene.http2.table.sender.send(scene.streams[1], (bytes(70_000),), 70_000, lambda: None)
    scene.send(frames.build_rst_stream(1, Code.CANCEL))

    assert scene.streams[1].gone
    assert len(scene.wire.callbacks) == 1
    assert scene.http2.table.open == {}
    scene.send(frames.build_window_update(1, 100), frames.build_rst_stream(1, Code.CANCEL))  # late, and fine
    assert scene.fault() is None


def test_a_stream_that_fails_to_close_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send(headers(1), headers(3))
    scene.streams[1].fails = True
    scene.http2.table.close_all()

    assert scene.streams[3].gone
    assert "closing stream 1 failed" in caplog.text


def test_an_early_response_asks_the_client_to_stop_sending() -> None:
    scene = Scene()
    scene.send(headers(1))
    answer(scene, 1)
    assert scene.reset(1) == Code.NO_ERROR
    scene.send(data(1, bytes(10)), headers(1, end=True))

    assert scene.fault() is None


def test_the_connections_window_is_given_back_by_halves() -> None:
    scene = Scene()
    scene.send(headers(1))
    stream = scene.streams[1]
    updates = 0
    for _ in range(20):
        stream.widen(INITIAL_WINDOW)
        scene.send(data(1, bytes(INITIAL_WINDOW)))
        updates += sum(kind == WINDOW_UPDATE and number == 0 for kind, _, number, _ in scene.answers())

    assert scene.fault() is None
    assert updates == 20 * INITIAL_WINDOW // (CONNECTION_WINDOW // 2)


def test_a_stream_resumes_when_its_bytes_were_used() -> None:
    scene = Scene()
    scene.send(headers(1), data(1, bytes(600_000)))
    scene.streams[1].replenish()
    (update,) = [payload for kind, _, number, payload in scene.answers() if kind == WINDOW_UPDATE and number == 1]

    assert struct.unpack(">I", update)[0] == 600_000


@pytest.mark.parametrize(("size", "cut"), [(2, 100_000), (600_000, 100_000)])
def test_padding_is_returned_to_the_streams_window(size: int, cut: int) -> None:
    """A message needs all of the window that is opened for it."""
    scene = Scene()
    padded = frame(DATA, PADDED, 1, b"\xff" + bytes(size + 255))
    scene.send(headers(1), padded[:cut])
    scene.send(padded[cut:])
    (update,) = [payload for kind, _, number, payload in scene.answers() if kind == WINDOW_UPDATE and number == 1]

    assert struct.unpack(">I", update)[0] == 256
    assert scene.streams[1].receivable == INITIAL_WINDOW - size


def test_no_more_streams_than_the_limit() -> None:
    scene = Scene()
    for index in range(MAX_STREAMS):
        scene.send(headers(2 * index + 1))
    assert scene.fault() is None
    scene.send(headers(2 * MAX_STREAMS + 1))
    assert scene.reset(2 * MAX_STREAMS + 1) == Code.REFUSED_STREAM
    scene.send(frames.build_rst_stream(1, Code.CANCEL), headers(2 * MAX_STREAMS + 3))

    assert len(scene.http2.table.open) == MAX_STREAMS


FLOODS: dict[str, Callable[[int], bytes]] = {
    "pings": lambda index: frame(PING, 0, 0, bytes(8)),
    "settings": lambda index: frames.build_settings(()),
    "rapid reset": lambda index: headers(2 * index + 1, end=True) + frames.build_rst_stream(2 * index + 1, Code.CANCEL),
    "provoked resets": lambda index: (
        headers(2 * index + 1, end=True) + frame(WINDOW_UPDATE, 0, 2 * index + 1, bytes(4))),  # CVE-2025-8671
    "no requests": lambda index: headers(2 * index + 1, block=b"\x83"),
    "empty data": lambda index: (b"" if index else headers(1)) + data(1, b""),
    "priorities": lambda index: frame(PRIORITY, 0, 1, bytes(5)),
    "unknown": lambda index: frame(0x55, 0, 0),
    "trailers": lambda index: headers(1, end=True) if index else headers(1) + frames.build_rst_stream(1, Code.CANCEL),
    "empty continuations": lambda index: frame(CONTINUATION, 0, 1) if index else frame(HEADERS, 0, 1, BLOCK),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(name: str) -> None:
    scene = Scene()
    for index in range(10_100):
        scene.send(FLOODS[name](index))
        if scene.http2.table.over:
            break

    assert scene.fault() == Code.ENHANCE_YOUR_CALM


def test_the_price_of_a_head_is_by_field() -> None:
    """A byte of a block is a field of the static table, so a thousand are decoded for a kilobyte."""
    scene = Scene()
    scene.send(*[headers(2 * index + 1, block=BLOCK + b"\x90" * 477) for index in range(64)])
    assert len(scene.streams) == 3
    assert scene.http2.table.unread
    scene.http2.receive(b"")
    assert len(scene.streams) == 6
    assert scene.fault() is None

    with pytest.raises(frames.ConnectionFault):
        scene.http2.table.charge(10_000)


def test_the_price_of_a_head_is_by_byte() -> None:
    """Ten bytes of a block are 40 KB of fields, if each of them repeats an entry of the dynamic table."""
    scene = Scene()
    scene.send(headers(1, block=BLOCK + b"\x40" + encode_literal(b"x", b"v" * 3990)[1:]))
    scene.send(*[headers(2 * index + 3, block=BLOCK + b"\xbe" * 10) for index in range(64)])

    assert len(scene.streams) == 5
    assert scene.http2.table.unread


def test_blocks_that_are_not_read_have_their_turn() -> None:
    """Trailers, and heads of new streams after the last GOAWAY, are decoded like others."""
    scene = Scene()
    scene.send(headers(1), headers(3, end=True), frames.build_rst_stream(1, Code.CANCEL))
    scene.send(*[headers(1, end=True)] * 100)
    assert scene.http2.table.unread
    scene.http2.receive(b"")
    scene.http2.refuse_new()
    scene.send(*[headers(2 * index + 5, end=True) for index in range(100)])
    assert scene.http2.table.unread


def test_the_price_of_new_windows_is_by_stream() -> None:
    """Each changes the windows of all streams, so 1000 streams make it dearer than a frame."""
    scene = Scene()
    scene.send(*[headers(2 * index + 1) for index in range(1000)])
    for index in range(700):
        scene.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, index)] * 100))

    assert scene.fault() == Code.ENHANCE_YOUR_CALM
    assert scene.streams[1].sendable < 700


def test_the_same_in_its_time_is_no_flood() -> None:
    scene = Scene()
    for _ in range(15_000):
        scene.time.now += 1_000_000
        scene.send(frame(PING, 0, 0, bytes(8)))

    assert scene.fault() is None


def test_frames_of_answered_calls_are_not_a_flood() -> None:
    scene = Scene()
    for number in range(1, 12_000, 2):
        scene.send(headers(number, end=True))
        answer(scene, number)
        scene.send(frame(PING, 0, 0, bytes(8)) + frames.build_window_update(number, 70) + frame(PING, 0, 0, bytes(8)))

    assert scene.fault() is None


def test_draining_accepts_calls_in_flight_and_refuses_new_ones() -> None:
    scene = Scene()
    scene.send(headers(1))
    scene.http2.drain()
    scene.send(headers(3, end=True))
    assert scene.streams[3].complete
    scene.http2.refuse_new()
    scene.send(headers(5, end=True), data(5, b"x"), headers(7), data(7, b"x"), headers(7, end=True))
    scene.send(headers(9, block=b"\x83\x86"))
    assert set(scene.streams) == {1, 3}
    goaways = [struct.unpack_from(">II", payload)[0] for kind, _, _, payload in scene.answers() if kind == GOAWAY]
    assert goaways == [2**31 - 1, 3]
    assert scene.http2.table.last == 3
    answer(scene, 3)
    assert scene.idle == 0
    answer(scene, 1)

    assert scene.idle == 1


@examples(60, 200, st.integers(0, 2**32), st.integers(1, 12))
def test_garbage_never_raises_and_leaves_the_rest_right(seed: int, changes: int) -> None:
    chance = random.Random(seed)
    garbage = bytearray(REQUESTS[: chance.choice((60, 300, 2000, len(REQUESTS)))])
    for _ in range(changes):
        garbage[chance.randrange(min(len(garbage), 400))] = chance.randrange(256)
    scene = Scene()
    position = 0
    while position < len(garbage):
        step = chance.choice((1, 9, 50, 5000))
        scene.send(bytes(garbage[position : position + step]))
        position += step

    for number, stream in scene.http2.table.open.items():
        assert stream.id == number
        assert not stream.closed
        assert stream.receivable >= 0
    if scene.http2.table.over:
        assert scene.http2.table.open == {}


def test_h2_talks_to_it() -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    scene = Scene(greeted=False)
    scene.http2.start()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x"), ("te", "trailers")]
    events: list[h2.events.Event] = []

    def exchange() -> None:
        while (sent := client.data_to_send()) or scene.wire.sent:
            scene.send(sent)
            answers, scene.wire.sent = bytes(scene.wire.sent), bytearray()
            events.extend(client.receive_data(answers))

    exchange()
    for number in (1, 3, 5):
        client.send_headers(number, fields)
        client.send_data(number, bytes(16_384))
        client.send_data(number, b"end", end_stream=True)
    client.ping(b"12345678")
    exchange()
    assert [len(scene.streams[number].data) for number in (1, 3, 5)] == [16_387] * 3
    for number in (1, 3, 5):
        answer(scene, number, bytes(50_000))
    exchange()
    received = 0
    for event in events:  # grows while it is walked
        if isinstance(event, h2.events.DataReceived):
            received += len(event.data)
            client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            exchange()

    assert received == 150_000
    assert sum(isinstance(one, h2.events.StreamEnded) for one in events) == 3
    assert sum(isinstance(one, h2.events.TrailersReceived) for one in events) == 3
    assert any(isinstance(one, h2.events.PingAckReceived) for one in events)


def test_a_burst_of_requests_is_read_in_several_turns() -> None:
    scene = Scene()
    numbers = [2 * index + 1 for index in range(3 * PER_TURN)]
    scene.send(b"".join([headers(number, end=True) for number in numbers]) + frame(PING, 0, 0, bytes(8))[:12])
    for turn in (1, 2):
        assert list(scene.streams) == numbers[: turn * PER_TURN]
        assert scene.http2.table.unread
        scene.send()
    assert list(scene.streams) == numbers
    scene.send()
    assert not scene.http2.table.unread
    scene.send(bytes(5))
    assert scene.pings == 1
