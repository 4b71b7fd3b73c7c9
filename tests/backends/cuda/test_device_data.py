"""Bytes in the memory of a GPU: the device that a thread uses meanwhile, and afterwards."""

from __future__ import annotations

import pytest

from edge_serve.backends.cuda import device_data
from edge_serve.backends.cuda.device_data import upload
from tests.backends.cuda.host import HostCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> HostCuda:
    """Return the CUDA of this process, with two devices."""
    made = HostCuda()
    monkeypatch.setattr(device_data, "process_cuda", lambda: made)
    return made


def test_use_of_one_device_makes_no_context_on_another(cuda: HostCuda) -> None:
    """CUDA says of a thread that has chosen no device that it uses device 0."""
    assert bytes(upload(b"12345678", 1)) == b"12345678"

    assert [cuda.has_context(device) for device in (0, 1)] == [False, True]


def test_thread_uses_the_device_again_that_it_has_chosen(cuda: HostCuda) -> None:
    cuda.set_device(0)

    assert bytes(upload(b"12345678", 1)) == b"12345678"

    assert cuda.get_device() == 0
