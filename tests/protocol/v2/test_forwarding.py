from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.protocol.v2.forwarding import compile_pattern, forwarded

HEADERS = (("Host", "h"), ("X-Fwd-One", "1"), ("Other", "2"), ("x-fwd-two", "b"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(?i)x-fwd-.*", {"X-Fwd-One": "1", "x-fwd-two": "b"}),
        ("X-FWD", {"X-Fwd-One": "1", "x-fwd-two": "b"}),
        ("(?-i)x-fwd", {"x-fwd-two": "b"}),
        ("(?-i:x-fwd)", {"x-fwd-two": "b"}),
        ("^one", {}),
        ("one", {"X-Fwd-One": "1"}),
    ],
)
def test_headers_whose_name_holds_a_match(pattern: str, expected: dict[str, str]) -> None:
    compiled = compile_pattern(pattern)
    assert compiled is not None
    assert forwarded(HEADERS, compiled) == expected


@pytest.mark.parametrize("name", ["timeout", "headers", "sequence_id", "triton_anything"])
def test_reserved_names(name: str) -> None:
    compiled = compile_pattern(".*")
    assert compiled is not None
    with pytest.raises(InvalidArgument) as caught:
        forwarded((("A", "1"), (name, "2")), compiled)
    assert caught.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_no_pattern_and_a_wrong_one() -> None:
    assert compile_pattern("") is None
    with pytest.raises(InvalidArgument, match="is not a regular expression"):
        compile_pattern("(")
