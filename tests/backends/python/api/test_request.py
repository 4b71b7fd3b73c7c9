"""`pb_utils.InferenceRequest`: what came in, and calls to other models. Texts as recorded from Triton 2.51."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edge_serve.backends import host
from edge_serve.backends.base import BackendRequest, Reply
from edge_serve.backends.host import Cancel, ModelCall, OnReply
from edge_serve.backends.python.api.errors import TritonModelException
from edge_serve.backends.python.api.request import InferenceRequest, MemoryType, PreferredMemory
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.backends.python.api.sender import InferenceResponseSender
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.errors import NotFound, Unavailable
from edge_serve.messages.infer import Parameter
from tests.backends.hosting import PythonScene, installed, model_source, number, request, run, tensor, text_of

TENSOR = Tensor("X", np.zeros(1, np.int32))
GIVEN: dict[str, Any] = {"model_name": "other", "requested_output_names": ["Y"], "inputs": [TENSOR]}


def test_a_request_returns_all_received_values(scene: PythonScene) -> None:
    body = """
    import json
    r = requests[0]
    said = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),
            sorted(r.requested_output_names()), [t.name() for t in r.inputs()], r.model_name(), r.model_version(),
            r.is_cancelled(), r.trace().get_context(), r.get_response_sender() is r.get_response_sender()]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([json.dumps(said).encode()], object))])]
    """
    inputs = [number(), tensor("B", np.zeros(2))]
    parameters: dict[str, Parameter] = {"s": "é", "i": 1, "f": 2.0}
    wire = BackendRequest("an id", inputs, ("OUTPUT0", "MORE"), parameters, "corr", 3, 1, 77, lambda: False)
    (reply,) = scene.execute(body, wire)
    assert json.loads(text_of(reply)) == [
        "an id", "corr", 3, 77, '{"s":"é","i":1,"f":2.0}', ["MORE", "OUTPUT0"], ["INPUT0", "B"], "m", 1, False, None,
        True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("look", "personal"),
    [
        ("parameters()", True),
        ("correlation_id()", True),
        ("flags()", True),
        ("inputs()", False),
        ("request_id()", False),
        ("requested_output_names()", False),
    ],
)
def test_a_response_cache_notices_when_a_model_looks_at_more_than_inputs(
    scene: PythonScene, look: str, personal: bool
) -> None:
    wire = request(number())
    scene.execute(f"requests[0].{look}\nreturn [pb_utils.InferenceResponse([])]", wire)

    assert wire.personal is personal


def test_no_parameters_are_an_empty_object(scene: PythonScene) -> None:
    body = "p = requests[0].parameters()\n" + (
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', np.array([p.encode()], object))])]"
    )
    assert text_of(*scene.execute(body)) == "{}"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"inputs": [None]}, "Input tensor for request with id '' and model name 'other' should not be empty."),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id '' and model name 'other' should not be empty.",
        ),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        (
            {"parameters": {"a": [1]}},
            "Expect parameters values to have type bool/int/str/float, found type <class 'list'>",
        ),
        ({"parameters": {5: 1}}, "Expect parameters keys to have type str, found type <class 'int'>"),
    ],
)
def test_wrong_requests_are_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        InferenceRequest(**{**GIVEN, **changed})
    assert str(caught.value) == text


def test_numbers_of_numpy_are_taken_as_in_triton() -> None:
    numbers = {"model_version": np.int64(3), "flags": np.uint32(1), "timeout": np.int64(9)}
    made = InferenceRequest(**GIVEN, **numbers)
    made.set_flags(np.int32(2))
    found = (made.model_version(), made.flags(), made.timeout())
    assert (found, {type(number) for number in found}) == ((3, 2, 9), {int})
    assert PreferredMemory(MemoryType.TRITONSERVER_MEMORY_GPU, np.int64(1))._gpu == 1


@pytest.mark.parametrize("name", ["model_version", "flags", "timeout"])
@pytest.mark.parametrize("value", [1.0, "1", None])
def test_other_numbers_are_refused(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^InferenceRequest\({name}=\.\.\.\) must be int, found "):
        InferenceRequest(**{**GIVEN, name: value})


WRONG: list[Callable[[InferenceRequest], object]] = [
    lambda made: made.exec(decoupled="x"),  # type: ignore[arg-type]  # the point
    lambda made: made.async_exec(decoupled="x"),  # type: ignore[arg-type]  # the point
    lambda made: made.set_release_flags("a"),  # type: ignore[arg-type]  # the point
    lambda made: made.set_release_flags(-1),
    lambda made: made.get_response_sender().send(InferenceResponse(), 1.0),  # type: ignore[arg-type]  # the point
    lambda made: InferenceRequest(**GIVEN, model_version=1 << 63),
    lambda made: InferenceRequest(**GIVEN, trace=5),  # type: ignore[arg-type]  # the point
    lambda made: InferenceRequest(**GIVEN, preferred_memory=5),  # type: ignore[arg-type]  # the point
]


@pytest.mark.parametrize("call", WRONG)
def test_arguments_of_another_type_are_refused(call: Callable[[InferenceRequest], object]) -> None:
    with pytest.raises(TypeError):
        call(InferenceRequest(**GIVEN))


def test_inputs_and_names_come_from_any_iterable() -> None:
    changed: dict[str, Any] = {"inputs": (one for one in [TENSOR]), "requested_output_names": (one for one in "YZ")}
    made = InferenceRequest(**{**GIVEN, **changed})
    assert (made.inputs(), made.requested_output_names()) == ([TENSOR], {"Y", "Z"})


def test_a_name_in_place_of_a_list_is_refused() -> None:
    text = "InferenceRequest(requested_output_names=...) must be a list of names, found a str: write ['OUT']"
    with pytest.raises(TypeError) as caught:
        InferenceRequest(**{**GIVEN, "requested_output_names": "OUT"})
    assert str(caught.value) == text


@pytest.mark.parametrize("left_out", sorted(GIVEN))
def test_a_request_needs_model_inputs_and_outputs(left_out: str) -> None:
    with pytest.raises(TypeError):
        InferenceRequest(**{name: value for name, value in GIVEN.items() if name != left_out})


def test_a_list_of_tensors_is_the_models_own() -> None:
    """A model may take elements out of it, as in Triton."""
    made = InferenceRequest(inputs=[Tensor("X", np.zeros(1))], requested_output_names=["Y"], model_name="m")
    inputs = made.inputs()
    inputs.clear()
    assert [one.name() for one in made.inputs()] == ["X"]
    answer = InferenceResponse([Tensor("Y", np.zeros(1))])
    answer.output_tensors().clear()
    assert [one.name() for one in answer.output_tensors()] == ["Y"]


def test_parameters_of_a_request_are_those_of_the_moment_when_it_was_made() -> None:
    parameters: dict[str, Any] = {"n": 1}
    made = InferenceRequest(**GIVEN, parameters=parameters)
    parameters |= {"n": 2, "tokens": [1, 2]}
    assert json.loads(made.parameters()) == {"n": 1}


def test_threads_that_ask_at_once_get_the_same_sender() -> None:
    making = threading.Event()

    def make(wire: BackendRequest) -> InferenceResponseSender:
        making.set()
        time.sleep(0.05)
        return InferenceResponseSender(None, (), wire.is_cancelled, several=False)

    made = InferenceRequest.received(request(number()), "m", 1, make)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(made.get_response_sender)
        assert making.wait(10)
        assert made.get_response_sender() is first.result()


def test_a_request_that_the_model_made_has_no_client() -> None:
    sender = InferenceRequest(**GIVEN).get_response_sender()
    with pytest.raises(TritonModelException, match="no reference to the decoupled state"):
        sender.send(InferenceResponse([]))


class Answering(host.Alone):
    """A host on which other models can be called."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    def log(self, level: str, message: str) -> None:
        pass

    def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
        self.calls.append(call)
        if call.model_name == "missing":
            raise NotFound("Model 'missing' is not ready.")
        if call.model_name == "failing":
            on_reply(Reply([], Unavailable("busy")), True)
        else:
            on_reply(Reply([tensor("Y", call.inputs[0].array() * 2)]), True)
        return lambda: None


CALL = """
call = pb_utils.InferenceRequest(
    model_name=requests[0].request_id(), requested_output_names=["Y"], inputs=requests[0].inputs(), model_version=3,
    request_id="inner", correlation_id="c", flags=1, timeout=9, parameters={"k": "v"})
"""


def test_a_model_calls_another(scene: PythonScene) -> None:
    body = CALL + "\nreturn [pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(call.exec(), 'Y')])]"
    with installed(answering := Answering()):
        (reply,) = scene.execute(body, request(number(4), outputs=["Y"], id="other"))
    assert reply.outputs[0].array().tolist() == [8]
    (call,) = answering.calls
    assert (call.model_name, call.model_version, call.requested_outputs) == ("other", 3, ["Y"])
    assert (call.id, call.correlation_id, call.flags, call.timeout_us) == ("inner", "c", 1, 9)
    assert call.parameters == {"k": "v"}


def test_async_calls_are_awaited(scene: PythonScene) -> None:
    body = CALL + (
        "import asyncio\nfirst, second = await asyncio.gather(call.async_exec(), call.async_exec())\n"
        "y = sum(pb_utils.get_output_tensor_by_name(r, 'Y').as_numpy() for r in (first, second))\n"
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', y)])]"
    )
    source = model_source(body).replace("def execute", "async def execute")
    with installed(Answering()):
        (reply,) = run(scene.open(source), request(number(4), outputs=["Y"], id="other"))
    assert reply.outputs[0].array().tolist() == [16]


def test_an_error_of_the_called_model_is_a_response(scene: PythonScene) -> None:
    body = CALL + (
        "r = call.exec()\nassert r.has_error() and r.output_tensors() == []\n"
        "e = pb_utils.TritonError('inner: ' + r.error().message(), r.error().code())\n"
        "return [pb_utils.InferenceResponse(error=e)]"
    )
    with installed(Answering()):
        (reply,) = scene.execute(body, request(number(), id="failing"))
    assert isinstance(reply.error, Unavailable)
    assert reply.error.message == "inner: busy"


def test_a_call_that_cannot_be_made_is_an_error_response(scene: PythonScene) -> None:
    with installed(Answering()):
        (reply,) = scene.execute(
            CALL + "\nreturn [pb_utils.InferenceResponse(error=call.exec().error())]", request(number(), id="missing")
        )
    assert reply.error is not None
    assert reply.error.message == "Model 'missing' is not ready."


def test_calls_are_for_execute_only(scene: PythonScene) -> None:
    source = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            x = pb_utils.Tensor("X", np.zeros(1))
            pb_utils.InferenceRequest(model_name="o", requested_output_names=["Y"], inputs=[x]).exec()

        def execute(self, requests):
            return []
    """
    with pytest.raises(Exception, match="BLS is only supported during the 'execute' function"):
        scene.open(source)


def test_a_forked_child_gets_senders_also_when_a_thread_was_just_making_one() -> None:
    making, forked = threading.Event(), threading.Event()

    def make(wire: BackendRequest, *, waits: bool = True) -> InferenceResponseSender:
        making.set()
        assert not waits or forked.wait(5)
        return InferenceResponseSender(None, (), lambda: False, several=False)

    slow = InferenceRequest.received(request(), "m", 1, make)
    quick = InferenceRequest.received(request(), "m", 1, lambda wire: make(wire, waits=False))
    thread = threading.Thread(target=slow.get_response_sender)
    thread.start()
    assert making.wait(5)
    child = os.fork()
    if not child:
        signal.alarm(2)
        quick.get_response_sender()
        os._exit(0)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
