"""JSON as protobuf's C++ reader takes it."""

from __future__ import annotations

import time

import pytest

from edge_serve.config.model.json_form import model_config_from_json
from edge_serve.config.model.loose_json import loads
from edge_serve.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, b_2 : [1, 2,], }", {"a": 1, "b_2": [1, 2]}),
        ("{'a': 'say \"it\\'s\"'}", {"a": 'say "it\'s"'}),
        ('{"a: 1,}": "b: [c,]"}', {"a: 1,}": "b: [c,]"}),
        ('{"a": "x\\"y: 1"}', {"a": 'x"y: 1'}),
        ('{"a": true, "b": NaN}', {"a": True, "b": pytest.approx(float("nan"), nan_ok=True)}),
    ],
)
def test_what_is_let_through(text: str, value: object) -> None:
    assert loads(text) == value


@pytest.mark.parametrize("text", ["{", "{a}", "{a: b}", "[1,,2]", "{'a: 1}", ""])
def test_what_is_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_a_configuration_with_bare_keys() -> None:
    config = model_config_from_json("{sequence_batching: {direct: {max_queue_delay_microseconds: 7}},}")

    assert config.sequence_batching.direct.max_queue_delay_microseconds == 7


@pytest.mark.parametrize(
    "text", ["NaN" * 20_000, '{"a":1' + "e" * 60_000, '"' + '\\"' * 30_000, "'" + "\\'" * 30_000 + "\\"]
)
def test_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgument):
        model_config_from_json(text)
    assert time.process_time() - began < 1.0
