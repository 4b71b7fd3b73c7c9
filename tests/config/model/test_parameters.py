"""Model parameters of our own."""

from __future__ import annotations

import pytest

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.config.model.parameters import parameter
from edge_serve.errors import InvalidArgument

FLAG = {"true": True, "false": False}


def test_a_parameter_is_read_and_its_default_is_not() -> None:
    config = ModelConfig(name="m")
    assert parameter(config, "EDGE_SERVE_ROWS", int, -1, "a number") == -1
    assert "EDGE_SERVE_ROWS" not in config.parameters
    config.parameters["EDGE_SERVE_ROWS"].string_value = "7"
    config.parameters["EDGE_SERVE_FAST"].string_value = "true"
    assert parameter(config, "EDGE_SERVE_ROWS", int, -1, "a number") == 7
    assert parameter(config, "EDGE_SERVE_FAST", FLAG.__getitem__, False, "true or false")


@pytest.mark.parametrize("text", ["", "yes"])
def test_a_text_that_cannot_be_read_is_refused_with_what_was_expected(text: str) -> None:
    config = ModelConfig(name="m")
    config.parameters["EDGE_SERVE_FAST"].string_value = text
    with pytest.raises(InvalidArgument, match=f"EDGE_SERVE_FAST of model 'm' is '{text}', expected true or false"):
        parameter(config, "EDGE_SERVE_FAST", FLAG.__getitem__, False, "true or false")
