"""Why GPUs are lost, by what a driver finds at the start and now."""

from __future__ import annotations

import asyncio

import pytest

from edge_serve.devices.device import Gpu, Gpus
from edge_serve.devices.watch import DeviceWatch

FIRST, SECOND = (Gpu(id, "card", f"GPU-{id}", (8, 9), 1) for id in (0, 1))
MOVED = Gpu(0, "card", "GPU-1", (8, 9), 1)
CUDA = (13, 0)


def trouble(now: Gpus, *ids: int) -> str:
    found = [Gpus((FIRST, SECOND), CUDA), now]

    async def story() -> str:
        watch = DeviceWatch(lambda: found.pop(0))
        assert (await watch.start()).found == (FIRST, SECOND)
        return await watch.trouble(ids)

    return asyncio.run(story())


def test_nothing_is_lost_while_the_driver_finds_the_same() -> None:
    assert trouble(Gpus((FIRST, SECOND), CUDA), 0, 1) == ""


def test_driver_fault_reports_reason_and_advice() -> None:
    assert trouble(Gpus(reason="CUDA does not work", advice="restart the machine"), 0) == (
        "CUDA does not work; restart the machine"
    )
    assert trouble(Gpus(), 0) == "no CUDA driver is there any more; see: edge-serve doctor"


def test_driver_that_cannot_be_asked_is_a_reason_too() -> None:
    async def story() -> str:
        def find() -> Gpus:
            raise OSError(11, "Resource temporarily unavailable")

        return await DeviceWatch(find).trouble((0,))

    assert asyncio.run(story()) == ("the CUDA driver could not be asked: [Errno 11] Resource temporarily unavailable")


@pytest.mark.parametrize(("ids", "names"), [([0], "GPU 0"), ([0, 1], "GPU 0 (card, GPU-0), GPU 1")])
def test_gpu_under_the_number_of_another_is_not_the_same(ids: list[int], names: str) -> None:
    """CUDA numbers the GPUs that are left, and a model must not come back on another one."""
    text = trouble(Gpus((MOVED,), CUDA), *ids)

    assert text.startswith(names)
    assert "is lost: the CUDA driver finds 1 of 2 GPUs; compare with nvidia-smi -L" in text


def test_gpu_that_no_model_is_on_may_be_lost() -> None:
    assert trouble(Gpus((FIRST,), CUDA), 0) == ""
