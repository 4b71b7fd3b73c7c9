"""Reads DATA frames (RFC 9113 6.1): receive windows, padding, and frames that arrive in several pieces."""

from __future__ import annotations

from edge_serve.protocol.http2 import frames as frames
from edge_serve.protocol.http2.allowance import TRIFLE
from edge_serve.protocol.http2.frames import CONTINUATION, DATA, END_STREAM, PADDED, Code, ConnectionFault, StreamFault
from edge_serve.protocol.http2.stream import Http2Stream
from edge_serve.protocol.http2.streams import StreamTable

#: bytes that a client may send on all streams together; renewed when half of them are used
CONNECTION_WINDOW = 16 * 1024 * 1024
#: a frame with at least this many bytes missing is received straight into its message's memory
_PLACED_FROM = 32 * 1024


class DataReader:
    """Reads the DATA frames of one connection within the receive windows."""

    __slots__ = ("_receivable", "_rest", "_rest_ends", "_rest_padding", "_rest_stream", "_skip", "_table")

    def __init__(self, table: StreamTable) -> None:
        self._table = table
        self._receivable = CONNECTION_WINDOW
        #: bytes missing of a large frame: of its payload, of its padding, of a frame of unknown type
        self._rest = self._rest_padding = self._skip = 0
        #: the stream of the large frame; None = its payload is discarded
        self._rest_stream: Http2Stream | None = None
        self._rest_ends = False

    def place(self) -> memoryview | None:
        """Return memory for the next bytes of the connection; None = pass them to `receive`."""
        stream = self._rest_stream
        if self._rest < _PLACED_FROM or stream is None or stream.closed or self._table.over:
            return None
        return stream.place(self._rest)

    def placed(self, size: int) -> None:
        """Note that `size` bytes have been received into the memory of `place`.

        Raises:
            ConnectionFault: the stream found an error of the connection.
        """
        stream = self._rest_stream
        assert stream is not None, "place has returned its memory"
        self._rest -= size
        try:
            stream.on_placed(size)
            self._end_rest()
        except StreamFault as fault:
            self._table.reset(stream, fault.code)

    @property
    def midway(self) -> bool:
        """A large frame is incomplete."""
        return bool(self._rest or self._rest_padding or self._skip)

    def read_data(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        """Read a complete DATA frame, whose payload is `data[start:stop]`.

        Raises:
            ConnectionFault, StreamFault: the frame breaks a rule.
        """
        stream = self._account(stream_id, stop - start)
        if flags & PADDED:
            start, stop = strip_padding(data, start, stop, flags)
        if stream is None:
            return
        if start < stop:
            if stream.due >= 0:
                _subtract(stream, stop - start)
            stream.on_data(data, start, stop)
        elif not flags & END_STREAM:
            self._table.allowance.spend(TRIFLE)
        if flags & END_STREAM and not stream.closed:
            self._table.end_request(stream)

    def _account(self, stream_id: int, length: int) -> Http2Stream | None:
        """Subtract a frame from the receive windows, and return its stream; None = the stream is closed."""
        table = self._table
        receivable = self._receivable - length
        if receivable <= CONNECTION_WINDOW // 2:
            if receivable < 0:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
            table.push(frames.build_window_update(0, CONNECTION_WINDOW - receivable))
            receivable = CONNECTION_WINDOW
        self._receivable = receivable
        stream = table.open.get(stream_id)
        if stream is None:
            table.check_known(stream_id, "DATA")
            if stream_id not in table.recent:
                raise ConnectionFault(Code.STREAM_CLOSED, f"DATA on stream {stream_id}, which is closed")
            table.allowance.spend(TRIFLE)
            return None
        if stream.ended:
            raise StreamFault(Code.STREAM_CLOSED)
        stream.receivable -= length
        if stream.receivable < 0:
            raise StreamFault(Code.FLOW_CONTROL_ERROR)
        return stream

    def begin_rest(self, data: bytes, start: int, length: int, kind: int, flags: int, stream_id: int) -> bool:
        """Read the first piece of a large frame; return False if frames of this type must be read as a whole."""
        if kind != DATA:
            if kind <= CONTINUATION:
                return False
            self._skip = length
        else:
            padding = data[start] + 1 if flags & PADDED else 0
            if padding > length:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than payload (RFC 9113 6.1)")
            self._rest_stream = None
            try:
                stream = self._account(stream_id, length)
                if stream is not None and stream.due >= 0:
                    _subtract(stream, length - padding)
                self._rest_stream = stream
            except StreamFault as fault:
                self._table.reset_number(stream_id, fault.code)
            self._rest = length - padding
            self._rest_padding = max(0, padding - 1)
            self._rest_ends = bool(flags & END_STREAM)
            start += 1 if padding else 0
        self.continue_rest(data, start)
        return True

    def continue_rest(self, data: bytes, start: int = 0) -> int:
        """Read the next piece of a large frame, and return the position after it."""
        size = min(self._rest, len(data) - start)
        stream = self._rest_stream
        if size:
            self._rest -= size
            if stream is not None and not stream.closed:
                try:
                    stream.on_data(data, start, start + size)
                except StreamFault as fault:
                    self._table.reset(stream, fault.code)
            start += size
        padding = min(self._rest_padding, len(data) - start)
        self._rest_padding -= padding
        start += padding
        skipped = min(self._skip, len(data) - start)
        self._skip -= skipped
        self._end_rest()
        return start + skipped

    def _end_rest(self) -> None:
        if self._rest or self._rest_padding:
            return
        stream, self._rest_stream = self._rest_stream, None
        if stream is not None and self._rest_ends and not stream.closed:
            self._rest_ends = False
            try:
                self._table.end_request(stream)
            except StreamFault as fault:
                self._table.reset(stream, fault.code)


def _subtract(stream: Http2Stream, size: int) -> None:
    """Subtract a frame from the `content-length` of the head."""
    stream.due -= size
    if stream.due < 0:
        raise StreamFault(Code.PROTOCOL_ERROR)


def strip_padding(data: bytes, start: int, stop: int, flags: int) -> tuple[int, int]:
    """Return where the payload of a frame begins and ends without its padding.

    Raises:
        ConnectionFault: the padding is longer than the frame.
    """
    if not flags & PADDED:
        return start, stop
    if start == stop:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a padded frame without its padding")
    padding = data[start]
    if start + 1 + padding > stop:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than payload (RFC 9113 6.1)")
    return start + 1, stop - padding
