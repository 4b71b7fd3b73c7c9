"""State machine of an HTTP/2 connection (RFC 9113), the server's side: bytes in, calls to streams out, no socket.

    start();  receive(bytes): calls the host and the streams, pushes frames to the output
    place() -> memory for bytes of a large message, without a copy;  receive_placed(n): n bytes are in it

The owner flushes the output soon after each call. Server push, priorities, and upgrades from HTTP/1.1 are not offered.
Start reading with `_read`.
"""

from __future__ import annotations

from edge_serve.clock import Clock
from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.frames import DATA, FRAME_HEAD, HEAD_SIZE, HEADERS, Code, ConnectionFault, StreamFault
from edge_serve.protocol.http2.heads import MAX_LIST, HeaderBlockReader
from edge_serve.protocol.http2.stream import CONNECTION_WINDOW, DEFAULT_WINDOW, INITIAL_WINDOW, FrameOutput
from edge_serve.protocol.http2.streams import PER_TURN, TRIFLE, WASTED_REQUEST, DataReader, StreamHost, StreamTable

#: the largest DATA frame that the server accepts
MAX_FRAME = 1024 * 1024
MAX_STREAMS = 1024

#: larger DATA frames are handed to their stream piece by piece, others when they are complete
_WHOLE = 16 * 1024
#: the largest frame of another type, and the longest header block
_MAX_CONTROL = 64 * 1024
#: the largest SETTINGS frame: clients send up to ten entries of 6 bytes
_MAX_SETTINGS = 1024
#: open streams that a SETTINGS frame changes for one more token
_STREAMS_PER_TOKEN = 64


class Http2:
    """Reads the frames of one connection, and calls its host and its streams.

    Attributes:
        table: the streams.
        received: bytes received so far; timeouts check whether it grows.
        greeted: the client has sent its preface.
    """

    __slots__ = (
        "_block", "_block_flags", "_block_stream", "_data", "_heads", "_refusing", "_settled", "_tail", "greeted",
        "received", "table",
    )  # fmt: skip

    def __init__(self, host: StreamHost, output: FrameOutput, clock: Clock, unsent: int) -> None:
        self.table = StreamTable(host, output, clock, unsent)
        self._data = DataReader(self.table)
        self.received = 0
        self._heads = HeaderBlockReader(self.table.charge)
        self.greeted = False
        self._settled = False
        self._refusing = False
        self._tail = b""
        #: an incomplete header block (CONTINUATION follows), and its stream
        self._block: bytearray | None = None
        self._block_stream = self._block_flags = 0

    @property
    def exchanged(self) -> int:
        """Frames of calls so far: DATA of requests that was accepted, and DATA and trailers of answers."""
        return self.table.sender.sent + self._data.accepted

    # ---- called by the owner of the socket -----------------------------------------------------------------------

    def start(self) -> None:
        """Push the server's preface: its SETTINGS (RFC 9113 3.4)."""
        greeting = frames.build_settings(
            (
                (frames.Http2Setting.MAX_CONCURRENT_STREAMS, MAX_STREAMS),
                (frames.Http2Setting.INITIAL_WINDOW_SIZE, INITIAL_WINDOW),
                (frames.Http2Setting.MAX_FRAME_SIZE, MAX_FRAME),
                (frames.Http2Setting.MAX_HEADER_LIST_SIZE, MAX_LIST),
            )
        ) + frames.build_window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        self.table.push(greeting)

    def receive(self, data: bytes) -> None:
        """Read bytes from the client. A protocol error closes the connection: see `StreamTable.over`.

        While `StreamTable.unread` is set, the caller passes no bytes, but b"" in the next turn of the event loop.
        """
        table = self.table
        table.turn, table.unread = PER_TURN, False
        self.received += len(data)
        if self._tail:
            data = self._tail + data
            self._tail = b""
        try:
            position = self._read(data)
        except ConnectionFault as fault:
            table.fail(fault)
            return
        if position < len(data) and not table.over:
            self._tail = data[position:]
            table.unread = table.turn <= 0

    def place(self) -> memoryview | None:
        """Return memory for the next bytes of the connection; None = pass them to `receive`."""
        return self._data.place()

    def receive_placed(self, size: int) -> None:
        """Note that `size` bytes have been received into the memory of `place`."""
        self.received += size
        self.table.turn = PER_TURN
        try:
            self._data.receive_placed(size)
        except ConnectionFault as fault:
            self.table.fail(fault)

    def clear_heads(self) -> None:
        """Clear the memo of request heads, so that the host interprets each of them again."""
        self._heads.clear()

    def drain(self) -> None:
        """Ask the client to open no more streams. Those already on their way are still accepted (RFC 9113 6.8)."""
        self.table.draining = True
        self.table.push(frames.build_goaway(frames.MAX_STREAM, Code.NO_ERROR))

    def refuse_new(self) -> None:
        """Accept no more streams from now on."""
        if not self._refusing:
            self._refusing = True
            self.table.push(frames.build_goaway(self.table.last, Code.NO_ERROR))

    def ping(self, payload: bytes) -> None:
        """Push a PING; `payload` has 8 bytes."""
        self.table.push(frames.build_frame(frames.PING, 0, 0, payload))

    # ---- reading -------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> int:
        """Read the complete frames of `data`, and return the position after them."""
        table, reader = self.table, self._data
        position, end = 0, len(data)
        if not self.greeted:
            position = self._read_preface(data)
            if not self.greeted:
                return position
        if reader.midway:
            position = reader.continue_rest(data)
        while end - position >= HEAD_SIZE and table.turn > 0 and not table.over:
            upper, lower, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, position)
            length = upper << 8 | lower
            stream_id &= frames.MAX_STREAM
            start = position + HEAD_SIZE
            stop = start + length
            if length > _WHOLE or stop > end or not self._settled or self._block is not None:
                self._check_order(kind, length, stream_id)
                if stop > end:
                    if length <= _WHOLE or (flags & frames.PADDED and start == end):
                        return position
                    if not reader.begin_rest(data, start, length, kind, flags, stream_id):
                        return position
                    return end
            try:
                if kind == HEADERS:
                    self._on_headers(data, start, stop, flags, stream_id)
                elif kind == DATA:
                    reader.read_data(data, start, stop, flags, stream_id)
                else:
                    self._on_control(data[start:stop], kind, flags, stream_id)
            except StreamFault as fault:
                table.reset_number(stream_id, fault.code)
            position = stop
        return position

    def _read_preface(self, data: bytes) -> int:
        known = min(len(data), len(frames.PREFACE))
        if data[:known] != frames.PREFACE[:known]:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "no HTTP/2 preface: this port speaks gRPC")
        if known < len(frames.PREFACE):
            return 0
        self.greeted = True
        return known

    def _check_order(self, kind: int, length: int, stream_id: int) -> None:
        if not self._settled and kind != frames.SETTINGS:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS (RFC 9113 3.4)")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_stream):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block is interrupted (RFC 9113 6.10)")
        if length > MAX_FRAME:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {MAX_FRAME} are taken")
        if length > _MAX_CONTROL and kind < frames.CONTINUATION + 1 and kind != DATA:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"a frame of kind {kind} with {length} bytes")

    # ---- requests ------------------------------------------------------------------------------------------------

    def _on_headers(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if flags & (frames.PADDED | frames.PRIORITIZED):
            start, stop = frames.strip_padding(data, start, stop, flags)
            if flags & frames.PRIORITIZED:
                start += 5
                if start > stop:
                    raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a HEADERS frame without its priority")
        if flags & frames.END_HEADERS:
            self._on_block(data[start:stop], flags, stream_id)
        else:
            self._block = bytearray(data[start:stop])
            self._block_stream, self._block_flags = stream_id, flags

    def _on_continuation(self, payload: bytes, flags: int) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS (RFC 9113 6.10)")
        block += payload
        if len(block) > _MAX_CONTROL:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"a header block of more than {_MAX_CONTROL} bytes")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(bytes(block), self._block_flags, self._block_stream)
        elif len(payload) < 1024:
            self.table.allowance.spend(WASTED_REQUEST)

    def _on_block(self, block: bytes, flags: int, stream_id: int) -> None:
        table = self.table
        if 0 < stream_id <= table.last or (self._refusing and stream_id in table.recent):
            self._on_trailers(block, flags, stream_id)
            return
        if not stream_id & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"a client cannot begin stream {stream_id} (RFC 9113 5.1.1)")
        if self._refusing:
            self._skip_block(block)
            table.recent.add(stream_id, None)  # the client reads in GOAWAY that it was not taken
            return
        table.last = stream_id
        table.turn -= 1
        head = self._heads.read(block)
        if len(table.open) >= MAX_STREAMS:
            raise StreamFault(Code.REFUSED_STREAM)
        stream = table.host.open_stream(stream_id, head)
        table.open[stream_id] = stream
        stream.on_open()
        if flags & frames.END_STREAM and not stream.closed:
            table.end_request(stream)

    def _skip_block(self, block: bytes) -> None:
        """Decode a header block that nothing reads, for its effect on the dynamic table."""
        self._heads.decode(block)
        self.table.charge(TRIFLE)

    def _on_trailers(self, block: bytes, flags: int, stream_id: int) -> None:
        self._skip_block(block)
        stream = self.table.open.get(stream_id)
        if stream is None:
            if stream_id in self.table.recent:
                return
            raise ConnectionFault(Code.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        if stream.ended:
            raise StreamFault(Code.STREAM_CLOSED)
        if not flags & frames.END_STREAM:
            raise StreamFault(Code.PROTOCOL_ERROR)  # RFC 9113 8.1: trailers end the stream
        self.table.end_request(stream)

    # ---- everything else -----------------------------------------------------------------------------------------

    def _on_control(self, payload: bytes, kind: int, flags: int, stream_id: int) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._on_window_update(frames.read_word(payload, "WINDOW_UPDATE"), stream_id)
        elif kind == frames.PING:
            self._on_ping(payload, flags, stream_id)
        elif kind == frames.SETTINGS:
            self._on_settings(payload, flags, stream_id)
        elif kind == frames.RST_STREAM:
            frames.read_word(payload, "RST_STREAM")
            self._on_rst_stream(stream_id)
        elif kind == frames.CONTINUATION:
            self._on_continuation(payload, flags)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "clients may not push (RFC 9113 8.4)")
        else:
            self.table.allowance.spend(TRIFLE)
            if kind == frames.PRIORITY and stream_id == 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY on the connection (RFC 9113 6.3)")
            if kind == frames.PRIORITY and len(payload) != 5:
                raise StreamFault(Code.FRAME_SIZE_ERROR)
            if kind == frames.GOAWAY and (stream_id or len(payload) < 8):
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a malformed GOAWAY frame")

    def _on_window_update(self, increment: int, stream_id: int) -> None:
        increment &= frames.MAX_WINDOW
        stream = self.table.open.get(stream_id)
        if increment == 0:
            if stream_id == 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0 (RFC 9113 6.9)")
            if stream is None:
                self.table.check_known(stream_id, "WINDOW_UPDATE")
            raise StreamFault(Code.PROTOCOL_ERROR)
        if stream_id == 0:
            self.table.sender.widen(increment)
        elif stream is not None:
            if increment < 64:
                self.table.allowance.spend(TRIFLE)
            self.table.sender.widen_stream(stream, increment)
        else:
            self.table.allowance.spend(TRIFLE)
            self.table.check_known(stream_id, "WINDOW_UPDATE")

    def _on_ping(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PING on a stream (RFC 9113 6.7)")
        if len(payload) != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a PING frame of {len(payload)} bytes")
        if flags & frames.ACK:
            self.table.host.on_pong(payload)
            return
        self.table.allowance.spend(TRIFLE)
        self.table.push(frames.build_frame(frames.PING, frames.ACK, 0, payload))
        self.table.host.on_ping()

    def _on_settings(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS on a stream (RFC 9113 6.5)")
        self.table.allowance.spend(TRIFLE)
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with settings")
            return
        if len(payload) > _MAX_SETTINGS:
            text = f"a SETTINGS frame of {len(payload)} bytes, at most {_MAX_SETTINGS} are taken"
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, text)
        self._settled = True
        sender = self.table.sender
        initial = sender.initial
        for name, value in frames.read_settings(payload):
            if name == frames.Http2Setting.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFault(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
                initial = value
            elif name == frames.Http2Setting.MAX_FRAME_SIZE:
                if not 16_384 <= value <= 16_777_215:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
                sender.max_frame = value
            elif name == frames.Http2Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if initial != sender.initial:
            self.table.allowance.spend(len(self.table.open) // _STREAMS_PER_TOKEN)
            sender.change_initial(initial, self.table.open.values())
        self.table.push(frames.build_frame(frames.SETTINGS, frames.ACK, 0))
        sender.pump()

    def _on_rst_stream(self, stream_id: int) -> None:
        stream = self.table.open.get(stream_id)
        if stream is None:
            self.table.check_known(stream_id, "RST_STREAM")
            self.table.allowance.spend(TRIFLE)
            return
        self.table.close(stream)
        self.table.recent.add(stream_id, None)
        self.table.allowance.spend(WASTED_REQUEST)
