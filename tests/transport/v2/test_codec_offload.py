"""A version is held while a codec process works for it, and not when there is no job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge_serve.errors import Unavailable
from edge_serve.transport.v2.codec_offload import CodecTicket, run_in_codec
from tests.transport.v2_scene import SIGNATURE, FakeServed


def test_a_job_that_cannot_be_started_holds_nothing() -> None:
    served = FakeServed(SIGNATURE)

    def start(done: Callable[[int], None]) -> CodecTicket:
        raise Unavailable("no descriptors")

    with pytest.raises(Unavailable):
        run_in_codec(served, start, lambda outcome: None)
    assert served.held == 0
