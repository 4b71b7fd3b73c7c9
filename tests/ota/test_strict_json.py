"""JSON of others: what it costs to read it."""

from __future__ import annotations

import json
import time

import pytest

from ota.errors import Untrusted
from ota.strict_json import parse


@pytest.mark.fault("T14")
def test_a_member_that_is_there_twice_is_found_at_once_among_many() -> None:
    """A megabyte took minutes."""
    text = json.dumps({str(number): 1 for number in range(60_000)})[:-1] + ', "59999": 1}'
    started = time.process_time()
    with pytest.raises(Untrusted, match="has the member '59999' twice"):
        parse(text.encode(), "it", 1024 * 1024)
    assert time.process_time() - started < 5


@pytest.mark.fault("T14")
def test_a_string_without_an_end_is_refused_in_linear_time() -> None:
    started = time.process_time()
    with pytest.raises(Untrusted, match="it is not JSON"):
        parse(b'{"a":"' + b'\\"' * 20_000, "it", 1024 * 1024)
    assert time.process_time() - started < 0.5


@pytest.mark.fault("T14")
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(Untrusted, match="it contains"):
        parse(f'{{"x-a": [{number}]}}'.encode(), "it", 1024)
