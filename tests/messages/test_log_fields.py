"""What log lines are about."""

from __future__ import annotations

from edge_serve.messages.log_fields import about


def test_only_what_is_known_is_a_field() -> None:
    assert about("m") == {"model": "m"}
    assert about("m", 3, "r-1") == {"model": "m", "version": "3", "request_id": "r-1"}
    assert about("m", "") == {"model": "m"}
