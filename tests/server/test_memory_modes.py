"""Models that do not fit, on a machine whose free memory is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.config.settings.server import ServerConfig
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.tensors import BY_NAME, InferTensor
from edge_serve.models.load.memory import Memory
from edge_serve.server import ServerProcess
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, python_model

pytestmark = pytest.mark.slow  # servers that swap instead of beside

GIB = 1 << 30


class Machine:
    """Figures of memory in place of those that `Memory.read` finds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.available = GIB
        monkeypatch.setattr(Memory, "read", lambda _: (2 * GIB, self.available))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def scene(root: Path, story: Callable[[ServerProcess], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        config = ServerConfig(
            model_repository=(str(root),), model_control_mode="explicit", load_model=("m",), allow_http=False,
            allow_metrics=False, allow_grpc=False, memory_reserve_bytes=1, **settings,
        )  # fmt: skip
        server = ServerProcess(config)
        assert await server.start() == []
        try:
            await story(server)
        finally:
            await server.stop()
            await server.close()

    asyncio.run(run())


def infer(server: ServerProcess, value: int = 1) -> asyncio.Future[InferResponse]:
    """The answer to a request for the model."""
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    ones = np.full((1, 16), value, np.int32).tobytes()
    inputs = [InferTensor(name, BY_NAME["INT32"], (1, 16), memoryview(ones)) for name in ("INPUT0", "INPUT1")]
    server.service.infer(server.service.lookup("m", ""), InferRequest("m", inputs=inputs), answer.set_result)
    return answer


def first(response: InferResponse) -> int:
    assert response.error is None
    return int(np.frombuffer(response.outputs[0].data, np.int32)[0])


def test_a_model_that_does_not_fit_is_refused_and_the_old_one_serves(tmp_path: Path, machine: Machine) -> None:
    python_model(tmp_path, "m")

    async def story(server: ServerProcess) -> None:
        machine.available = 0
        python_model(tmp_path, "m").joinpath("1", "weights").write_bytes(bytes(1 << 26))
        with pytest.raises(EdgeServeError, match=r"'m' does not fit into memory: it needs \d+ MiB .*, 0 MiB are avail"):
            await server.service.registry.load("m")
        assert first(await infer(server)) == 2
        assert server.service.ready()

    scene(tmp_path, story)


def test_a_model_that_does_not_fit_twice_is_swapped_while_requests_wait(tmp_path: Path, machine: Machine) -> None:
    python_model(tmp_path, "m")

    async def story(server: ServerProcess) -> None:
        await server.service.registry.load("m")
        python_model(tmp_path, "m", ADD_SUB.replace("a + b", "(a + b) * 10"))
        machine.available = 16 << 20  # with what the old one gives back it is enough
        loading = asyncio.create_task(server.service.registry.load("m"))
        while server.service.model_ready("m", ""):
            await asyncio.sleep(0.001)
        assert server.service.ready()  # the server is, the model is not
        answers = [infer(server) for _ in range(3)]
        refused = await answers[2]
        assert refused.error is not None
        assert "Exceeds maximum queue size" in refused.error.message
        assert not answers[0].done()
        await loading
        assert [first(await answer) for answer in answers[:2]] == [20, 20]
        assert server.service.model_ready("m", "")

    scene(tmp_path, story, swap_queue_size=2)


def test_a_failed_swap_fails_the_waiting_requests(tmp_path: Path, machine: Machine) -> None:
    python_model(tmp_path, "m")

    async def story(server: ServerProcess) -> None:
        await server.service.registry.load("m")
        python_model(tmp_path, "m", "import time\ntime.sleep(0.2)\nraise RuntimeError('no licence')\n")
        machine.available = 16 << 20
        loading = asyncio.create_task(server.service.registry.load("m"))
        while server.service.model_ready("m", ""):
            await asyncio.sleep(0.001)
        answer = infer(server)
        with pytest.raises(EdgeServeError, match="no licence"):
            await loading
        failed = (await answer).error
        assert failed is not None
        assert "no licence" in failed.message
        [entry] = await server.service.read_repository_index()
        assert (entry.state, "no licence" in entry.reason) == ("UNAVAILABLE", True)

        machine.available = GIB
        python_model(tmp_path, "m")
        await server.service.registry.load("m")
        assert first(await infer(server)) == 2

    scene(tmp_path, story)


#: calls itself, or `other`, as many levels deep as the first value of its input says, and then returns it
CALLS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        x = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        if not x[0, 0]:
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x + VALUE)])]
        time.sleep(0.2)
        inputs = [pb_utils.Tensor("INPUT0", x - 1), pb_utils.Tensor("INPUT1", x)]
        found = pb_utils.InferenceRequest(
            model_name="CALLED", requested_output_names=["OUTPUT0"], inputs=inputs).exec()
        if found.has_error():
            return [pb_utils.InferenceResponse(error=found.error())]
        return [pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(found, "OUTPUT0")])]
"""


def caller(root: Path, name: str, called: str, value: int) -> None:
    config = ADD_SUB_CONFIG.replace("max_batch_size: 8", "max_batch_size: 1 instance_group { count: 2 kind: KIND_CPU }")
    python_model(root, name, CALLS.replace("CALLED", called).replace("VALUE", str(value)), config)


@pytest.mark.parametrize("called", ["m", "other"])
def test_a_request_that_leads_back_to_its_model_ends_in_the_version_that_is_swapped(
    tmp_path: Path, machine: Machine, called: str
) -> None:
    """Its call would wait for the new version, which waits for the request."""
    caller(tmp_path, "m", called, 1)
    caller(tmp_path, "other", "m", 1)

    async def story(server: ServerProcess) -> None:
        await server.service.registry.load("other")
        caller(tmp_path, "m", called, 2)
        before = infer(server, 2 if called == "other" else 1)
        registry = server.service.registry
        loading = asyncio.create_task(registry.load_all(["m"], own_worker=True, unload_first=True))
        while server.service.model_ready("m", ""):
            await asyncio.sleep(0.001)
        after = infer(server, 0)
        assert not before.done()
        assert await loading == []
        assert [first(await answer) for answer in (before, after)] == [1, 2]

    scene(tmp_path, story, swap_drain_secs=5)
