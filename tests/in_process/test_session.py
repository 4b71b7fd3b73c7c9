"""The server inside a program: both kinds of `with`, arrays in and out, errors, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import edge_serve
from edge_serve import AsyncSession, Server, Session
from edge_serve import server as composition
from edge_serve.errors import (
    AlreadyExists,
    EdgeServeError,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
)
from edge_serve.in_process import responses
from edge_serve.in_process.session import Options, stop_server
from edge_serve.messages.tensors import Array
from edge_serve.transport.door import listeners
from tests.processes import started_here
from tests.server.running import PATIENCE, python_model

ECHO = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            if numbers.size and numbers.flat[0] == 13:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("unlucky")))
                continue
            outputs = [pb_utils.Tensor("TEXT_OUT", text), pb_utils.Tensor("NUMBERS_OUT", numbers * 2)]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""
ECHO_CONFIG = """
backend: "python"
input { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }
input { name: "NUMBERS" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "TEXT_OUT" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "NUMBERS_OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
COUNT = """
import pathlib, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = pathlib.Path(args["model_repository"], "cancelled")

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (count,) = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()
            for i in range(count) if count >= 0 else iter(int, 1):
                if sender.is_cancelled():
                    self.seen.touch()
                    break
                value = np.full(1024 if count < 0 else 1, i, np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("VALUE", value)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "VALUE" data_type: TYPE_INT32 dims: [ -1 ] }
"""


def repository(root: Path) -> Path:
    python_model(root, "add_sub")
    python_model(root, "echo", ECHO, ECHO_CONFIG)
    python_model(root, "count", COUNT, COUNT_CONFIG)
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Server(repository(tmp_path_factory.mktemp("models"))) as session:
        yield session
    assert not started_here(), "a process was left behind"
    assert "edge-serve" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Of the servers that a test started itself."""
    before = set(started_here())
    yield
    assert set(started_here()) <= before


def infer(server: Session, numbers: object = (1.0,), text: object = ("a",)) -> dict[str, Array]:
    return server.infer("echo", {"TEXT": text, "NUMBERS": numbers})


def test_arrays_go_in_and_come_out(server: Session) -> None:
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)

    outputs = server.infer("add_sub", {"INPUT0": a, "INPUT1": b})

    np.testing.assert_array_equal(outputs["OUTPUT0"], a + b)
    np.testing.assert_array_equal(outputs["OUTPUT1"], a - b)
    outputs["OUTPUT0"][:] = 0  # the caller's own


def test_lists_get_the_models_types_and_strings_are_bytes(server: Session) -> None:
    outputs = infer(server, [1, 2], ["hö", b"\xff"])

    assert outputs["TEXT_OUT"].tolist() == ["hö".encode(), b"\xff"]
    assert outputs["NUMBERS_OUT"].dtype == np.float32
    assert outputs["NUMBERS_OUT"].tolist() == [2, 4]


def test_large_arrays_survive_later_requests(server: Session) -> None:
    first = infer(server, np.full(200_000, 1, np.float32))["NUMBERS_OUT"]
    second = infer(server, np.full(200_000, 2, np.float32))["NUMBERS_OUT"]

    assert (first == 2).all()
    assert (second == 4).all()


def test_only_the_outputs_that_were_asked_for(server: Session) -> None:
    outputs = server.infer("echo", {"TEXT": ["a"], "NUMBERS": [1]}, outputs=["TEXT_OUT"])
    both = server.infer("echo", {"TEXT": ["a"], "NUMBERS": [1]}, Options(version="1"), outputs=["TEXT_OUT"])

    assert list(outputs) == list(both) == ["TEXT_OUT"]


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ([13], EdgeServeError, "unlucky"),
        (["x"], InvalidArgument, "input 'NUMBERS' does not become an array of FP32"),
        (np.zeros(1, np.complex64), InvalidArgument, "NumPy type complex64, which models have no type for"),
        (np.zeros(1, np.float64), InvalidArgument, "FP64"),
        (np.zeros((1, 1), np.float32), InvalidArgument, "shape"),
    ],
)
def test_bad_inputs_are_one_clear_error(
    server: Session, numbers: object, error: type[EdgeServeError], text: str
) -> None:
    with pytest.raises(error, match=text):
        infer(server, numbers)


def test_inputs_without_names_are_one_clear_error(server: Session) -> None:
    with pytest.raises(InvalidArgument, match="inputs: found a list, expected arrays by name"):
        server.infer("echo", [1])  # type: ignore[arg-type]  # the mistake


def test_a_server_that_is_not_started_says_how_it_is(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'infer': write `with Server\(\.\.\.\) as server:`"):
        Server(tmp_path).infer  # type: ignore[attr-defined]  # noqa: B018  # the mistake
    assert not hasattr(Server(tmp_path), "predict")


def test_text_that_is_none_is_an_error_too(server: Session) -> None:
    with pytest.raises(InvalidArgument, match=r"input 'TEXT' does not become an array of BYTES: .*surrogates"):
        infer(server, text=["\ud800"])


def test_unknown_names_are_errors(server: Session) -> None:
    with pytest.raises(NotFound, match="unknown model: 'nobody' is not found"):
        server.infer("nobody", {})
    with pytest.raises(InvalidArgument, match="expected 2 inputs but got 3 inputs"):
        server.infer("echo", {"TEXT": ["a"], "NUMBERS": [1], "EXTRA": np.zeros(1)})
    with pytest.raises(TypeError, match="no_such_option"):
        server.infer("echo", {}, no_such_option=1)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"request_id": 5}, "request_id: found 5, expected a string"),
        ({"request_id": "\ud800"}, "which UTF-8 cannot hold"),
        ({"sequence_id": -1}, "sequence_id: found -1, expected a whole number from 0 to"),
        ({"sequence_id": 1 << 64}, "expected a whole number"),
        ({"sequence_id": "x" * 129}, "found 129 bytes, expected at most 128"),
        ({"priority": -1}, "priority: found -1"),
        ({"timeout_us": 0.5}, "timeout_us: found 0.5"),
        ({"sequence_start": 2}, "sequence_start: found 2, expected True or False"),
        ({"sequence_end": "yes"}, "sequence_end: found 'yes', expected True or False"),
        ({"parameters": {"a": None}}, "parameter 'a': found None, expected a string, a number or a boolean"),
        ({"parameters": {"a": "\ud800"}}, "parameter 'a': .*UTF-8"),
        ({"parameters": {1: "a"}}, "name: found 1, expected a string"),
    ],
)
def test_options_that_no_client_could_send_are_refused(server: Session, option: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        server.infer("echo", {"TEXT": ["a"], "NUMBERS": [1]}, **option)
    assert len(infer(server)) == 2  # a number in place of the id had kept the model busy for ever


def test_numbers_of_numpy_are_numbers(server: Session) -> None:
    assert len(server.infer("echo", {"TEXT": ["a"], "NUMBERS": [1]}, priority=np.int64(0), timeout_us=np.int32(9))) == 2


def test_a_decoupled_model_streams(server: Session) -> None:
    assert [int(outputs["VALUE"][0]) for outputs in server.stream("count", {"COUNT": [5]})] == [0, 1, 2, 3, 4]
    assert list(server.stream("count", {"COUNT": [0]})) == []
    assert len(list(server.stream("echo", {"TEXT": ["a"], "NUMBERS": [1]}))) == 1
    with pytest.raises(Unsupported, match=r"use stream\(\)"):
        server.infer("count", {"COUNT": [5]})
    with pytest.raises(EdgeServeError, match="unlucky"):
        list(server.stream("echo", {"TEXT": ["a"], "NUMBERS": [13]}))


@pytest.mark.usefixtures("nothing_left")
def test_leaving_a_stream_early_cancels_it(tmp_path: Path) -> None:
    with Server(repository(tmp_path), load_model=["count"]) as server:
        stream = server.stream("count", {"COUNT": [-1]})
        assert next(stream)["VALUE"][0] == 0
        stream.close()  # type: ignore[attr-defined]  # a generator

    assert (tmp_path / "count/cancelled").exists()  # the end waited for it


def test_the_loops_thread_may_collect_a_stream_that_was_forgotten(server: Session) -> None:
    stream = server.stream("count", {"COUNT": [-1]})
    next(stream)
    circle: list[object] = [stream]
    circle.append(circle)
    del stream, circle
    collected = threading.Event()
    server._loop.call_soon_threadsafe(gc.collect)
    server._loop.call_soon_threadsafe(collected.set)

    assert collected.wait(PATIENCE)
    assert server.ready()


def test_an_unread_stream_ends(server: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_UNREAD", 100_000)
    stream = server.stream("count", {"COUNT": [-1]})
    next(stream)
    server.infer("add_sub", {name: np.zeros((1, 16), np.int32) for name in ("INPUT0", "INPUT1")})

    with pytest.raises(Unavailable, match="more than 100000 bytes of the stream were not taken"):
        collections.deque((threading.Event().wait(0.005) for _ in stream), maxlen=0)  # a slow reader


def test_models_come_and_go(server: Session) -> None:
    assert server.ready()
    assert {(entry.name, entry.state) for entry in server.models()} == {
        ("add_sub", "READY"), ("count", "READY"), ("echo", "READY"),
    }  # fmt: skip

    server.unload("add_sub")
    assert not server.ready("add_sub")
    with pytest.raises(EdgeServeError):
        server.load("nobody")
    server.load("add_sub")
    assert server.ready("add_sub", "1")


def test_a_model_may_be_made_of_bytes(server: Session) -> None:
    files = {"1/model.py": ECHO.replace("numbers * 2", "numbers * 3").encode()}
    before = infer(server, [1])["NUMBERS_OUT"]

    config = {"backend": "python", **{
        kind: [{"name": "TEXT" + end, "data_type": "TYPE_STRING", "dims": [-1]},
               {"name": "NUMBERS" + end, "data_type": "TYPE_FP32", "dims": [-1]}]
        for kind, end in (("input", ""), ("output", "_OUT"))
    }}  # fmt: skip
    server.load("echo", config, files)

    assert (before[0], infer(server, [1])["NUMBERS_OUT"][0]) == (2, 3)
    server.load("echo")
    assert infer(server, [1])["NUMBERS_OUT"][0] == 2


def test_many_threads_share_a_session(server: Session) -> None:
    found: list[float] = []

    def work(value: float) -> None:
        found.extend(float(infer(server, [value])["NUMBERS_OUT"][0]) for _ in range(20))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(20, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == sorted([2.0 * i for i in range(20, 24)] * 20)


@pytest.mark.usefixtures("nothing_left")
def test_async_with_gives_the_same(tmp_path: Path) -> None:
    async def work(server: AsyncSession) -> None:
        inputs = {"TEXT": ["a"], "NUMBERS": [1, 2]}
        answers = await asyncio.gather(*(server.infer("echo", inputs) for _ in range(10)))
        assert [answer["NUMBERS_OUT"].tolist() for answer in answers] == [[2, 4]] * 10
        assert [outputs["VALUE"][0] async for outputs in server.stream("count", {"COUNT": [3]})] == [0, 1, 2]
        waiting = asyncio.create_task(server.infer("echo", inputs))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await server.infer("echo", inputs))["TEXT_OUT"].tolist() == [b"a"]

    async def main() -> None:
        async with Server(repository(tmp_path)) as server:
            await work(server)

    asyncio.run(main())


@pytest.mark.usefixtures("nothing_left")
def test_the_doors_open_on_request(tmp_path: Path) -> None:
    with Server(repository(tmp_path), allow_http=True, http_port=0, load_model=["add_sub"]) as server:
        assert list(server.addresses) == ["HTTP"]
        with urllib.request.urlopen(f"http://{server.addresses['HTTP'][0]}/v2/models/add_sub/ready") as answer:
            assert answer.status == 200
        assert [entry.name for entry in server.models() if entry.state == "READY"] == ["add_sub"]


@pytest.mark.usefixtures("nothing_left")
def test_a_door_names_each_address_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int) -> list[Any]:
        return [one for address in ("127.0.0.1", "127.0.0.2") for one in getaddrinfo(address, port)]

    getaddrinfo = partial(socket.getaddrinfo, type=socket.SOCK_STREAM)
    monkeypatch.setattr(listeners, "_resolve", resolve)
    with Server(tmp_path, allow_http=True, http_port=0, allow_grpc=True, grpc_port=0) as server:
        for door in ("HTTP", "gRPC"):
            assert [address.split(":")[0] for address in server.addresses[door]] == ["127.0.0.1", "127.0.0.2"]


@pytest.mark.usefixtures("nothing_left")
def test_a_model_that_does_not_load_is_an_error_of_the_start(tmp_path: Path) -> None:
    python_model(tmp_path, "broken", "raise ValueError('on purpose')")

    with pytest.raises(Internal, match="on purpose"), Server(tmp_path):
        pass
    with Server(tmp_path, exit_on_error=False) as server:
        assert not server.ready()


def test_bad_settings_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="unrecognized option '--http-prt', did you mean '--http-port'"):
        Server(tmp_path, http_prt=1)
    with pytest.raises(InvalidArgument, match="http-port"):
        Server(tmp_path, http_port="many")
    with pytest.raises(EdgeServeError), Server(tmp_path / "nowhere"):
        pass


@pytest.mark.usefixtures("nothing_left")
def test_a_session_that_is_over_says_so(tmp_path: Path) -> None:
    made = Server(repository(tmp_path), load_model=["add_sub", "count"])
    with made as server:
        stream = server.stream("count", {"COUNT": [3]})
        next(stream)
    with pytest.raises(Unavailable, match="its `with` block is over"):
        server.ready()
    with pytest.raises(Unavailable):
        next(stream)
    with made as again:  # a new server
        assert again.ready("add_sub")


class Ending(AsyncSession):
    """A session without a server, whose end takes a moment, and the stop of its processes another one."""

    def __init__(self, draining: float = 0.01) -> None:
        self.addresses, self.closed = {}, 0
        self._draining = draining

    async def close(self) -> None:
        try:
            await asyncio.sleep(self._draining)
        finally:
            await asyncio.sleep(0.01)
            self.closed += 1


def ending_session(draining: float = 0.01) -> tuple[Session, Ending]:
    ending = Ending(draining)

    async def start() -> AsyncSession:
        return ending

    return Session(start), ending


def test_a_session_is_closed_once() -> None:
    session, ending = ending_session()
    seen = list[int]()

    def close() -> None:
        session.close()
        seen.append(ending.closed)

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    session.close()

    assert seen == [1, 1, 1]  # each call ended after the session


def press_ctrl_c_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_at_the_end_of_a_session_stops_the_processes_without_draining() -> None:
    session, ending = ending_session(draining=PATIENCE)
    press_ctrl_c_after(0.1)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert ending.closed == 1
    session.close()
    assert ending.closed == 1


def test_ctrl_c_before_the_loop_has_seen_the_end_stops_the_processes_without_draining() -> None:
    session, ending = ending_session(draining=PATIENCE)
    session._loop.call_soon_threadsafe(time.sleep, 0.2)
    press_ctrl_c_after(0.1)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert ending.closed == 1
    assert time.monotonic() - begin < PATIENCE / 2


def test_ctrl_c_at_the_start_of_a_session_stops_the_processes() -> None:
    ended = []

    async def start() -> AsyncSession:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)
        raise AssertionError("it was not cancelled")

    press_ctrl_c_after(0.1)
    with pytest.raises(KeyboardInterrupt):
        Session(start)
    assert ended


class Stopping:
    """A server that never ends its draining if it is `busy`, and whose stop of processes takes a moment."""

    def __init__(self, busy: bool) -> None:
        self.waits = asyncio.Event()
        self.closed = False
        self._busy = busy

    async def stop(self) -> None:
        if self._busy:
            self.waits.set()
            await asyncio.sleep(PATIENCE)

    async def close(self) -> None:
        self.waits.set()
        await asyncio.sleep(0.01)
        self.closed = True


@pytest.mark.parametrize("busy", [True, False])
def test_a_stop_that_is_cancelled_stops_the_processes(busy: bool) -> None:
    async def main() -> None:
        stopping = Stopping(busy)
        stop = asyncio.ensure_future(stop_server(cast(composition.ServerProcess, stopping)))
        await stopping.waits.wait()
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        assert stopping.closed

    asyncio.run(main())


def test_an_error_at_the_end_of_a_session_is_raised() -> None:
    class Failing(Ending):
        async def close(self) -> None:
            raise ZeroDivisionError

    async def start() -> AsyncSession:
        return Failing()

    session = Session(start)
    with pytest.raises(ZeroDivisionError):
        session.close()
    session.close()


def test_a_program_with_an_event_loop_may_use_a_session_that_blocks() -> None:
    async def main() -> None:
        session, ending = ending_session()
        session.close()
        assert ending.closed
        assert session._loop.is_closed()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_cannot_use_the_session() -> None:
    session, ending = ending_session()
    child = os.fork()
    if not child:
        try:
            session.close()
            session.ready()
        except Unavailable as error:
            os._exit(0 if not ending.closed and "multiprocessing's 'spawn'" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.close()
    assert ending.closed


@pytest.mark.usefixtures("nothing_left")
def test_a_session_closed_early_leaves_the_programs_error(tmp_path: Path) -> None:
    python_model(tmp_path, "add_sub")

    def work() -> None:
        with Server(tmp_path) as server:
            server.close()
            _ = 1 / 0

    async def main() -> None:
        async with Server(tmp_path) as server:
            await server.close()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        work()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


@pytest.mark.usefixtures("nothing_left")
def test_a_load_that_the_end_overtakes_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with Server(repository(tmp_path)) as server:
            load = asyncio.ensure_future(server.load("echo"))
            await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="Server exiting"):
            await asyncio.wait_for(load, PATIENCE)

    asyncio.run(main())


def test_a_start_that_is_cancelled_waits_for_no_model(tmp_path: Path) -> None:
    slow = (
        "import time\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args): time.sleep(600)\n"
        "    def execute(self, requests): ...\n"
    )
    python_model(tmp_path, "slow", slow)

    async def main() -> None:
        start = asyncio.ensure_future(Server(tmp_path, exit_timeout_secs=600).__aenter__())
        await asyncio.sleep(1)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(start, PATIENCE)
        names = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not names

    asyncio.run(main())


def test_a_server_runs_once_at_a_time(tmp_path: Path) -> None:
    made = Server(tmp_path, load_model=[], model_control_mode="explicit")
    text = "this Server is running: make another Server"

    async def main() -> None:
        with pytest.raises(AlreadyExists, match=text):
            await made.__aenter__()

    with made as server:
        with pytest.raises(AlreadyExists, match=text):
            made.__enter__()
        asyncio.run(main())
        assert server.ready()
    with made as again:
        assert again.ready()


def test_importing_the_package_stays_cheap() -> None:
    rooms = "sorted(m for m in sys.modules if m.startswith(('edge_serve', 'numpy', 'asyncio')))"
    code = f"import sys, edge_serve; print({rooms})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "['edge_serve']"
    with pytest.raises(AttributeError, match="no attribute 'Sever'"):
        getattr(edge_serve, "Sever")  # noqa: B009  # mypy knows that there is none
