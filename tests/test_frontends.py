"""The doors of a server, without a server around them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from edge_serve import frontends
from edge_serve.observe.metrics.gpu import GpuReading, ReadGpus, no_gpus


def test_driver_that_hangs_does_not_keep_the_doors_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    def hangs() -> ReadGpus:
        answers.wait(20)
        return no_gpus

    monkeypatch.setattr(frontends, "find_gpus", hangs)
    try:
        assert asyncio.run(frontends.gpus_in_time(0.01)) is no_gpus
    finally:
        answers.set()
    assert "NVML did not answer within 0.01 s" in caplog.text


def test_gpus_are_read_by_the_reader_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> list[GpuReading]:
        return []

    monkeypatch.setattr(frontends, "find_gpus", lambda: read)
    assert asyncio.run(frontends.gpus_in_time()) is read
