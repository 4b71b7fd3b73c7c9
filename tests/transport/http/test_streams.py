"""Streams of responses on real connections: when their senders are held, and for how long at most."""

from __future__ import annotations

from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor, join_bytes
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.door_state import HttpLimits
from edge_serve.transport.v2.generate import EventStream
from tests.stories import played
from tests.transport.http_scene import Recorder, scene, until
from tests.transport.v2_scene import FakeTicket

PIECE = "x" * 50_000


class Model:
    """Answers each request with a stream that the test feeds."""

    def __init__(self) -> None:
        self.streams: list[EventStream] = []
        self.tickets: list[FakeTicket] = []

    def handle(self, exchange: Exchange) -> None:
        self.streams.append(EventStream(exchange))
        self.tickets.append(FakeTicket(can_hold=True))
        self.streams[-1].accept(self.tickets[-1])

    def respond(self, number: int = 0, text: str = PIECE, *, final: bool = False) -> None:
        output = InferTensor("out", DataType.BYTES, (1,), join_bytes([text]))
        self.streams[number].on_response(InferResponse("m", "1", outputs=[output], final=final))

    def respond_until_held(self, number: int = 0) -> int:
        """How many responses it took; at most as many as any socket takes."""
        for count in range(1, 1000):
            self.respond(number)
            if self.tickets[number].held:
                return count
        raise AssertionError("it was never held")


@played
async def test_a_client_that_reads_nothing_holds_its_sender_only_so_long() -> None:
    model = Model()
    async with scene(Recorder(model.handle), HttpLimits(write_timeout=40)) as here:
        client = await here.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport
        client.get("/")
        await until(lambda: model.streams)
        model.respond_until_held()
        here.pass_time(39)
        assert model.tickets[0].cancelled == 0
        here.pass_time(2)

        assert model.tickets[0].cancelled == 1
        assert len(here.server.connections) == 0


@played
async def test_a_client_that_reads_on_lets_its_sender_go_on() -> None:
    model = Model()
    async with scene(Recorder(model.handle)) as here:
        client = await here.connect()
        client.get("/")
        await until(lambda: model.streams)
        count = model.respond_until_held()
        read = bytearray()
        while len(model.tickets[0].held) < 2:
            read += await client.reader.read(1 << 16)
        assert model.tickets[0].held == [True, False]

        model.respond(text="the end", final=True)
        while not read.endswith(b"0\r\n\r\n"):
            read += await client.reader.read(1 << 16)
        assert read.count(b"data: ") == count + 1


@played
async def test_a_stream_behind_an_unanswered_request_is_held_when_its_turn_has_come() -> None:
    model = Model()
    async with scene(Recorder(model.handle)) as here:
        client = await here.connect()
        client.get("/first")
        client.get("/second")
        await until(lambda: len(model.streams) == 2)
        for _ in range(100):
            model.respond(1)
        assert model.tickets[1].held == []

        model.respond(0, "the only one", final=True)
        model.respond_until_held(1)
