"""config.pbtxt -> ModelConfig, and what is said about files that cannot be read."""

from __future__ import annotations

import pytest

from edge_serve.config.model.model_config_pb2 import TYPE_INT32
from edge_serve.config.model.text import find_line, parse_model_config
from edge_serve.errors import InvalidArgument


def test_reads_every_way_of_writing() -> None:
    text = """
    # a comment
    name: "a" 'b'; max_batch_size: 0x4,
    input [ { name: "x" data_type: 8 dims: [ 1, -1, 010 ] }, { name: 'y\\x21' data_type: TYPE_INT32 dims: 1 dims: 2 } ]
    parameters: { key: "k" value: { string_value: "caf\\303\\251" } }
    sequence_batching { direct < minimum_slot_utilization: 1.0f > }
    """
    config = parse_model_config(text)

    assert (config.name, config.max_batch_size) == ("ab", 4)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [
        ("x", TYPE_INT32, [1, -1, 8]),
        ("y!", TYPE_INT32, [1, 2]),
    ]
    assert config.parameters["k"].string_value == "café"
    assert config.sequence_batching.direct.minimum_slot_utilization == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "m"\nmax_batchsize: 4', "m/config.pbtxt:2:1: unknown field 'max_batchsize' in ModelConfig"),
        ('name: "m"\nmax_batchsize: 4', "did you mean 'max_batch_size'?"),
        ("input { name_x: 1 }", "unknown field 'name_x' in ModelInput"),
        ("from_the_future: 4", "the configuration is newer than this server"),
        ("input { data_type: TYPE_INT33 }", "unknown value 'TYPE_INT33', did you mean 'TYPE_INT32'?"),
        ("input { data_type: TYPE_INT33 }", "expected one of TYPE_INVALID, TYPE_BOOL"),
        ("\n\ninput [ {", ":3:"),
        ("input [ {", 'Expected "}"'),
        ("max_batch_size: x", "Couldn't parse integer: x"),
        ("max_batch_size: 99999999999", "Value out of range"),
        ('name: "a" name: "b"', "field 'name' of ModelConfig may be given only once"),
        ("dynamic_batching {} sequence_batching {}", "another member of oneof"),
        ("max_batch_size: 1 " + "x" * 200, "..."),
        ('input { data_type: "TYPE_FP32" }', 'found "TYPE_FP32", expected TYPE_FP32 without quotes; the line reads'),
        ("backend: onnxruntime", 'write it in quotes: "onnxruntime"'),
        ("backend: \u201cpython\u201d", 'write straight quotes (") in place of curly ones'),
        ('{ "max_batch_size": 4 }', "this is protobuf text, not JSON"),
        ("input { data_type: TYPE_BYTES }", "did you mean 'TYPE_STRING'?"),
        ("input { data_type: float32 }", "did you mean 'TYPE_FP32'?"),
        ("instance_group { kind: GPU }", "did you mean 'KIND_GPU'?"),
        ("dims: 4", "field 'dims' is not one of ModelConfig: write it inside of input or output { }"),
        ('parameters { a: "b" }', 'expected key and value, as in { key: "a" value ... }'),
        ('input [ { name: "X" }, ]', 'Expected "{"; remove the comma before the ]'),
        ('input [ { name: "X" } { name: "Y" } ]', "put a comma between the elements of a list"),
        ('parameters { key: "a" value: "b" }', 'a group is written in braces, as in value { string_value: "text" }'),
        ("dynamic_batching: true", "a group is written in braces, as in dynamic_batching { }"),
        ("max_batch_size = 4", "a value follows a colon, as in max_batch_size: 8"),
        ('max_batch_size: "8"', "write a whole number without quotes"),
        ("// a comment", "a comment begins with #"),
        ("<<<<<<< HEAD", "git left a conflict here"),
        ("input { } }", "there is one } too many here or above"),
        ("input { name_x: 1", "unknown field 'name_x'"),
        ("dynamic_batching {", 'Expected "}"; a } is missing: each { needs one'),
    ],
)
def test_parse_error_names_the_place_and_the_fault(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_model_config(text, "m/config.pbtxt")

    assert said in caught.value.message
    assert caught.value.message.startswith("m/config.pbtxt:")
    assert "\n" not in caught.value.message


def test_text_as_windows_writes_it() -> None:
    """A byte order mark and CR LF are fine; UTF-16 has a fix."""
    assert parse_model_config(b'\xef\xbb\xbfname: "a"\r\nmax_batch_size: 4\r\n').max_batch_size == 4
    for encoding in ("utf-16", "utf-16-be"):
        raw = 'name: "a"'.encode(encoding)
        with pytest.raises(
            InvalidArgument, match=r"expected UTF-8: iconv -f UTF-16 -t UTF-8 config\.pbtxt > new && mv"
        ):
            parse_model_config(raw if raw[:1] == b"\xff" else b"\xfe\xff" + raw, "m/config.pbtxt")


def test_refuses_bytes_that_are_not_text() -> None:
    with pytest.raises(InvalidArgument, match=r"config\.pbtxt:2: found byte 0xff, expected UTF-8 text"):
        parse_model_config(b'name: "a"\n\xff')


def test_bytes_that_are_not_text_may_stand_in_a_comment() -> None:
    assert parse_model_config(b'name: "a" # Gr\xf6\xdfe "\xff\nmax_batch_size: 4').max_batch_size == 4
    for raw in (b'name: "a#\xf6"', b"name: 'a' \xf6 # x", b'name: "\xf6'):
        with pytest.raises(InvalidArgument, match=r"config\.pbtxt:1: found byte 0xf6, expected UTF-8 text"):
            parse_model_config(raw)


def test_escapes_are_those_of_the_text_format() -> None:
    text = r"""name: "a\?b\\d\n\x41\101\u00e9\'\"" """
    assert parse_model_config(text).name == "a?b\\d\nAAé'\""

    for name, escape, column in ((r"\d+", r"\d", 8), (r"C:\new\Data", r"\D", 14), (r"\\\[", r"\[", 10)):
        with pytest.raises(InvalidArgument) as caught:
            parse_model_config(f'# x\nname: "{name}"', "m/config.pbtxt")
        fix = rf"write \{escape} for a backslash before {escape[1]}"
        assert (
            caught.value.message == f"m/config.pbtxt:2:{column}: found {escape} in a string, which is no escape: {fix}"
        )
    with pytest.raises(InvalidArgument, match="found the byte 0 in a string"):
        parse_model_config('name: "a\0b"')


@pytest.mark.parametrize("number", ["+4", "1_0", "0b100", "0o4", "-0o4", "0x1_0"])
def test_numbers_that_only_python_reads_are_refused(number: str) -> None:
    with pytest.raises(InvalidArgument, match=r":1:17: found .*, expected a number like 8, -1, 0x10 or 0\.5"):
        parse_model_config(f"max_batch_size: {number}")


def test_numbers_that_triton_reads() -> None:
    config = parse_model_config(
        "input { dims: [- 1, -\n2, 0x10, 01] optional: 01 allow_ragged_batch: 0x0 is_shape_tensor: 0X1 }"
    )
    tensor = config.input[0]

    assert list(tensor.dims) == [-1, -2, 16, 1]
    assert (tensor.optional, tensor.allow_ragged_batch, tensor.is_shape_tensor) == (True, False, True)
    with pytest.raises(InvalidArgument, match=r"found \+0\.5"):
        parse_model_config("sequence_batching { direct { minimum_slot_utilization: +0.5 } }")


@pytest.mark.parametrize(
    "text", ['name: "\\777"', 'name: "\\ud800"', 'name: "\\x"', "input: [" * 2000, "{" * 5000, '"\\"' * 50_000]
)
def test_hostile_text_is_an_ordinary_error(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_model_config(text)


def test_a_long_run_of_backslashes_is_refused_at_once() -> None:
    """Without a limit, a megabyte of them stops every thread of the process for hours."""
    with pytest.raises(InvalidArgument, match=r"config\.pbtxt:2: found more than 256 backslashes in a row"):
        parse_model_config('name: "a"\nplatform: "' + "\\" * 50_000 + '"')
    assert parse_model_config('platform: "' + "\\" * 256 + '"').platform == "\\" * 128


def test_lines_of_fields() -> None:
    text = """# max_batch_size: 9, and output { name: "y" } of old
name: "y" backend: "x"
max_batch_size: 4
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 1, 2 ] },
  { data_type: TYPE_FP32 name:
    'y' }
]
output < name: "y" label_filename: "x" >
output { name: "twice" } output { name: "twice" }
parameters { key: "x" value { string_value: "}\\" name: \\"x" } }
instance_group [ { name: "x" } ]
output { name: "z" }
"""
    assert find_line(text, "max_batch_size") == 3
    assert find_line(text, "max_queue_size") == 0
    found = [find_line(text, side, "name", value=name) for side in ("input", "output") for name in ("x", "y", "z")]
    assert found == [5, 7, 0, 0, 9, 13]
    assert find_line(text, "output", "name", value="twice") == 0
