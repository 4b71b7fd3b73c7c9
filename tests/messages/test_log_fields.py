"""The fields of log lines that name their model."""

from __future__ import annotations

from edge_serve.messages.log_fields import model_fields


def test_unknown_values_are_not_fields() -> None:
    assert model_fields("m") == {"model": "m"}
    assert model_fields("m", 3, "r-1") == {"model": "m", "version": "3", "request_id": "r-1"}
    assert model_fields("m", "") == {"model": "m"}
