"""A callback that raises is logged, and its caller goes on."""

from __future__ import annotations

import pytest

from edge_serve.aio.callbacks import notify


def test_callbacks_get_their_arguments() -> None:
    found: list[int] = []
    notify(found.append, 3)
    assert found == [3]


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    notify(divmod, 1, 0)
    assert "callback divmod failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
