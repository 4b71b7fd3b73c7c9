"""Heads are what another HPACK encoder wrote, however its table changes; our own blocks are read by another decoder."""

from __future__ import annotations

import logging

import pytest
from hpack import Decoder, Encoder
from hypothesis import strategies as st

from edge_serve.protocol.http2.frames import Code, ConnectionFault
from edge_serve.protocol.http2.heads import MAX_LIST, HeaderBlockReader, encode
from tests.examples import examples

PSEUDO = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b")]
NAMES = st.sampled_from([b"te-x", b"user-agent", b"grpc-timeout", b"x-bin", b"accept-encoding"])
VALUES = st.text("abcXYZ019 ;/=\u00e9", max_size=40).map(lambda text: text.encode("latin-1"))  # blanks at the ends too
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


def make_reader() -> HeaderBlockReader:
    """Make a reader that charges nothing."""
    return HeaderBlockReader(lambda fields: None)


@examples(
    40, 150, st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 64, 4096])), min_size=1, max_size=12)
)
def test_every_head_is_as_it_was_written(heads: list[tuple[list[tuple[bytes, bytes]], bool, int | None]]) -> None:
    encoder, reader = Encoder(), make_reader()
    for fields, huffman, size in heads:
        if size is not None:
            encoder.header_table_size = size
        for _ in range(3):  # the second and third of them are most often remembered
            head = reader.read(encoder.encode([*PSEUDO, *fields], huffman=huffman))
            assert (head.method, head.path, head.fields) == (b"POST", b"/a/b", fields)


def test_repeated_header_blocks_are_the_same_object() -> None:
    encoder, reader = Encoder(), make_reader()
    blocks = [encoder.encode([*PSEUDO, (b"x", b"y")]) for _ in range(3)]
    heads = [reader.read(block) for block in blocks]

    assert blocks[1] == blocks[2] != blocks[0]
    assert heads[1] is heads[2]
    reader.decode(Encoder().encode([(b"other", b"field")]))
    assert reader.read(encode(None, PSEUDO)).fields == []


def test_heads_with_a_token_are_kept() -> None:
    reader, block = make_reader(), encode(None, [*PSEUDO, (b"authorization", b"Bearer " + b"x" * 12_000)])

    assert reader.read(block) is reader.read(block)


def test_heads_that_are_refused_are_not_kept() -> None:
    reader, block = make_reader(), encode(None, [*PSEUDO, (b"cookie", b"x" * MAX_LIST)])

    assert reader.read(block) is not reader.read(block)


@pytest.mark.parametrize(("count", "kept"), [(31, True), (33, False)])
def test_the_bytes_of_all_kept_heads_are_limited(count: int, kept: bool) -> None:
    reader, token = make_reader(), (b"authorization", b"x" * 4000)
    blocks = [encode(None, [*PSEUDO[:2], (b":path", b"/%d" % index), token]) for index in range(count)]
    heads = [reader.read(block) for block in blocks]

    assert reader.read(blocks[-1]) is heads[-1]
    assert (reader.read(blocks[0]) is heads[0]) is kept


@examples(60, 300, st.binary(max_size=60))
def test_garbage_is_a_head_or_a_fault(block: bytes) -> None:
    reader = make_reader()
    code = Code.NO_ERROR
    try:
        reader.decode(block)
    except ConnectionFault as fault:
        code = fault.code
    assert code in (Code.NO_ERROR, Code.COMPRESSION_ERROR, Code.ENHANCE_YOUR_CALM)


def test_a_list_that_is_too_large_is_said_to_be_so() -> None:
    fields = [(b"x%d" % index, bytes(1000).replace(b"\0", b"v")) for index in range(MAX_LIST // 1040 + 1)]

    assert make_reader().read(Encoder().encode([*PSEUDO, *fields])).too_large
    assert not make_reader().read(Encoder().encode([*PSEUDO, *fields[:-2]])).too_large


def test_headers_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        make_reader().read(Encoder().encode([*PSEUDO, (b"authorization", b"Bearer secret")]))

    assert "secret" not in caplog.text


@pytest.mark.parametrize("size", [0, 126, 127, 128, 5000, 20_000])
@pytest.mark.parametrize("status", [None, 200, 405])
def test_another_decoder_reads_our_blocks(size: int, status: int | None) -> None:
    fields = [(b"grpc-status", b"0"), (b"v", b"v" * size)]
    given_status = [] if status is None else [(b":status", b"%d" % status)]

    assert Decoder().decode(encode(status, fields), raw=True) == given_status + fields
