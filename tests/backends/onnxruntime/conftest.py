"""Fixtures of the tests of ONNX Runtime: a stand-in GPU in this process."""

from __future__ import annotations

import onnxruntime
import pytest

from edge_serve.backends.onnxruntime import session as sessions
from tests.backends.cuda.counting import CountingCuda
from tests.stand_ins.onnxruntime import ON_GPU, session_on


@pytest.fixture
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CountingCuda:
    """A device that the library's provider of CUDA computes on; with the parameter True an integrated one."""
    made = CountingCuda(integrated=getattr(request, "param", False))
    available = [*ON_GPU, *onnxruntime.get_available_providers()]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(sessions, "Session", session_on(made, onnxruntime))
    return made
