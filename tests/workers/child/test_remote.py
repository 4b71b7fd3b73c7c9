"""Questions of a model to the server, on the worker's side."""

from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.workers.child import remote
from edge_serve.workers.child.remote import Remote


def test_files_that_no_frame_can_carry_are_refused_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front end would kill the worker, whose frame looks broken."""
    sent: list[bytes] = []
    monkeypatch.setattr(remote, "LONGEST", 1000)
    with pytest.raises(InvalidArgument, match=r"load_model has \d+ bytes .* at most 1000: write large files into"):
        Remote(sent.append).load_model("m", "", {"file:1/model.onnx": bytes(800)})
    assert sent == []
