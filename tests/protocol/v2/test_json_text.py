from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import strategies as st

from edge_serve.errors import Internal, Unparsable
from edge_serve.protocol.v2 import json_text
from tests.examples import examples


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "The document is empty. at 0"),
        ("{", "Missing a name for object member. at 1"),
        ("}", "Invalid value. at 0"),
        ("nope", "Invalid value. at 1"),
        ("tru", "Invalid value. at 3"),
        ('{"inputs":', "Invalid value. at 10"),
        ('{"inputs":[}', "Invalid value. at 11"),
        ("{'inputs': []}", "Missing a name for object member. at 1"),
        ('{"inputs": [],}', "Missing a name for object member. at 14"),
        ("[1,2", "Missing a comma or ']' after an array element. at 4"),
        ('"', "Missing a closing quotation mark in string. at 1"),
        ('{"a":"\\x"}', "Invalid escape character in string. at 6"),
        ('"\\u12"', "Incorrect hex digit after \\u escape in string. at 1"),
        ('{"inputs":[{"name":"INPUT0"', "Missing a comma or '}' after an object member. at 27"),
        ("é", "Invalid value. at 0"),
        ('{"a":1 "b":2}', "Missing a comma or '}' after an object member. at 7"),
        ('{"a" 1}', "Missing a colon after a name of object member. at 5"),
        ("[0x10]", "Missing a comma or ']' after an array element. at 2"),
        ("[+1]", "Invalid value. at 1"),
        ("[1.]", "Miss fraction part in number. at 3"),
        ("[1e]", "Miss exponent in number. at 3"),
        ("[1e999]", "Number too big to be stored in double. at 1"),
        ("[nan]", "Invalid value. at 2"),
        ("{} {}", "The document root must not be followed by other values. at 3"),
        ('"a\nb"', "Invalid escape character in string. at 2"),
        ('{"a\t":1}', "Invalid escape character in string. at 3"),
        ('"a\0b"', "Missing a closing quotation mark in string. at 2"),
        ('"\u00e9\\ud800"', "The surrogate pair in string is invalid. at 3"),
        ('"\\ud800x"', "The surrogate pair in string is invalid. at 1"),
        ('"\\ud800\\u0041"', "The surrogate pair in string is invalid. at 1"),
        ('"\\ud83d\\ud83d"', "The surrogate pair in string is invalid. at 1"),
        ('"\\ud800\\u12"', "Incorrect hex digit after \\u escape in string. at 1"),
        ('"\\ud83d\\ude00\\udc00"', "The surrogate pair in string is invalid. at 13"),
        ("\ufeff", "The document is empty. at 3"),
        ('\ufeff{"a"}', "Missing a colon after a name of object member. at 7"),
        (" \ufeff{}", "Invalid value. at 1"),
        ("\ufeff\ufeff{}", "Invalid value. at 3"),
        ("\0", "The document is empty. at 0"),
        ("[1\0", "Missing a comma or ']' after an array element. at 2"),
        ("{}\0{}", "The document root must not be followed by other values. at 2"),
    ],
)
def test_faults_are_named_in_rapidjsons_words(text: str, fault: str) -> None:
    with pytest.raises(Internal) as caught:
        json_text.parse(text.encode())
    assert caught.value.message == "failed to parse the request JSON buffer: " + fault
    assert caught.value.http_status == 500


@pytest.mark.parametrize("text", ["\ufeff%s", "\ufeff %s", "%s\0", "%s \n\0", "%s\0\0\0", "\ufeff%s\0"])
def test_a_byte_order_mark_and_nuls_at_the_end_are_skipped(text: str) -> None:
    assert json_text.parse((text % '{"a": "\u00e9"}').encode()) == {"a": "\u00e9"}
    assert math.isnan(json_text.parse((text % "[NaN]").encode())[0])


@pytest.mark.parametrize("blanks", [0, 100_000])
def test_a_string_that_is_not_utf_8_is_named_with_its_place(blanks: int) -> None:
    for text, at in ((b'{"a": "caf\xe9"}', 10), (b'{"\xc3\xa9": "\xff"}', 8), (b'["\xed\xa0\x80"]', 2)):
        with pytest.raises(Internal) as caught:
            json_text.parse(b" " * blanks + text)
        assert caught.value.message == (
            f"failed to parse the request JSON buffer: Invalid encoding in string. at {blanks + at}; JSON is UTF-8: "
            "send other bytes as binary data"
        )


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", True),
        (b"\x89PNG\r\n" + bytes(100_000), True),
        (b"\x1f\x8b\x08\x00", True),
        ("é" * 1000, False),
        (b'{"name": "M\xfcller"}', False),
        (b" [\xff]", False),
        (b"FILE=a", False),
        (b"", False),
    ],
)
def test_a_body_that_is_no_text_is_answered_with_the_headers_for_it(body: bytes | str, is_told: bool) -> None:
    with pytest.raises(Internal) as caught:
        json_text.parse(body.encode() if isinstance(body, str) else body)
    said = caught.value.message.partition("; ")[2]
    assert said.startswith("the body is not text: a file or binary tensors need the header") is is_told


def test_nan_and_infinity_are_numbers() -> None:
    values = json_text.parse(b'[NaN, Infinity, -Infinity, Inf, -Inf, 1, "NaN Inf", "\\"Inf"]')
    assert math.isnan(values[0])
    assert values[1:6] == [math.inf, -math.inf, math.inf, -math.inf, 1]
    assert values[6:] == ["NaN Inf", '"Inf']


@pytest.mark.parametrize("end", ["", "\\"])
def test_a_string_without_an_end_is_refused_in_linear_time(end: str) -> None:
    text = '{"a":Inf,"b":"' + '\\"' * 20_000 + end  # 5 s, when the time was quadratic
    started = time.process_time()
    with pytest.raises(Internal):
        json_text.parse(text.encode())
    assert time.process_time() - started < 0.5


def test_endless_digits_become_a_double_as_in_rapidjson() -> None:
    digits = "9" * 5000
    assert json_text.parse(b"[99999999999999999999999999]") == [1e26]
    with pytest.raises(Internal):
        json_text.parse(f"[NaN, {digits}, }}".encode())
    assert json_text.parse(b"[Infinity, 99999999999999999999999999, 18446744073709551615]")[1:] == [1e26, 2**64 - 1]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400])
def test_a_number_too_big_for_a_double_is_refused_beside_nan_too(number: str) -> None:
    for text in (f"[1, {number}]", f"[NaN, {number}]"):
        with pytest.raises(Unparsable, match=rf"Number too big to be stored in double. at {text.index(number)}"):
            json_text.parse(text.encode())


def test_half_a_surrogate_pair_is_refused_beside_nan_too() -> None:
    for text in (b'["\\ud800"]', b'["\\ud800", NaN]', b'["\xff", NaN]'):
        with pytest.raises(Internal):
            json_text.parse(text)


def test_nesting_beyond_the_parsers_depth_is_a_refusal_and_no_crash() -> None:
    for filling in ("", "NaN"):
        with pytest.raises(Internal):
            json_text.parse(("[" * 100_000 + filling + "]" * 100_000).encode())


#: not all of Unicode, whose tables take hypothesis seconds to build
STRINGS = st.text('ab"\\/{}[]:, \n\t\0\x7f\u00e9\u2028\ufffd\U0001f600')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)


def _as_rapidjson(value: Any) -> Any:
    """Integers beyond 64 bits are doubles to RapidJSON."""
    if isinstance(value, list):
        return [_as_rapidjson(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_rapidjson(item) for name, item in value.items()}
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


@examples(50, 1000, VALUES, st.data())
def test_a_damaged_document_reads_as_with_the_standard_library_or_is_explained(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.sampled_from(["", '"', "]", "}", ",", "\\", "0", "-"])) + text[at + 1 :]
    try:
        expected = _as_rapidjson(json.loads(damaged))
    except (ValueError, OverflowError):
        with pytest.raises(Internal, match=r"failed to parse the request JSON buffer: .* at \d+"):
            json_text.parse(damaged.encode())
        return
    try:
        found = json_text.parse(damaged.encode())
    except Internal as refusal:  # the standard library lets it through
        assert "too big" in refusal.message or "surrogate" in refusal.message  # noqa: PT017
    else:
        assert found == expected


def test_a_member_that_is_null_is_not_an_absent_one() -> None:
    assert json_text.find({"a": None}, "a") is json_text.NULL
    assert json_text.find({}, "a") is None
    assert json_text.find([], "a") is None
    with pytest.raises(Internal, match=r"^Unable to parse 'a': attempt to access non-existing object member 'a'$"):
        json_text.member([], "a", "Unable to parse 'a': ")


@pytest.mark.parametrize("value", [True, 1.0, -1, 2**64, "1", None])
def test_unsigned_integers_are_strict(value: object) -> None:
    with pytest.raises(Internal, match="non-unsigned-integer as unsigned-integer"):
        json_text.as_unsigned(value)
