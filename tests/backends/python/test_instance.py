"""Results and errors of a model's methods, as an instance returns them. Texts as recorded from Triton 2.51."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import DeviceLost, Reply, Timing
from edge_serve.backends.python import instance as python_instance
from edge_serve.errors import Cancelled, Internal, InvalidArgument, NotFound, Unavailable, Unknown, Unsupported
from edge_serve.messages.infer import SEQUENCE_START
from tests.backends.hosting import PythonScene, model_source, number, request, run, tensor

FAILED = "Failed to process the request(s) for model 'm_0', message: "
ANSWER = "pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', r.inputs()[0].as_numpy() + 1)])"


def error_of(reply: Reply) -> str:
    assert isinstance(reply.error, Internal)
    return reply.error.message


def test_answers_come_in_the_order_of_the_requests(scene: PythonScene) -> None:
    replies = scene.execute(f"return [{ANSWER} for r in requests]", request(number(1)), request(number(5)))
    assert [reply.outputs[0].array().tolist() for reply in replies] == [[2], [6]]


@pytest.mark.parametrize(("value", "takes"), [(None, False), ("yes", False), ("no", True)])
def test_inputs_stay_on_a_gpu_if_the_model_wants_it(scene: PythonScene, value: str | None, takes: bool) -> None:
    parameters = {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": value}} if value else {}
    assert scene.open(model_source("pass"), {"parameters": parameters}).takes_device_memory is takes


def test_another_word_about_inputs_on_a_gpu_is_refused(scene: PythonScene) -> None:
    config = {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "No"}}}
    with pytest.raises(Unsupported) as refused:
        scene.open(model_source("pass"), config)
    assert refused.value.message == ('Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: No\'; write "yes" or "no"')


def test_the_calls_of_an_endless_recursion_and_a_long_text_are_cut(scene: PythonScene) -> None:
    (reply,) = scene.execute("def again(): again()\nagain()", request(number()))
    calls = error_of(reply).partition("At:\n")[2].splitlines()
    assert len(calls) == 41
    assert calls[0].endswith(": again")
    assert re.fullmatch(r"  \.\.\. \d{3} more calls", calls[20])
    assert calls[-1].endswith(": execute")
    (reply,) = scene.execute("raise ValueError('x' * 1_500_000)", request(number()))
    assert "x ... (1,500,012 characters)" in error_of(reply)
    assert len(error_of(reply)) < 17_000


def test_an_exception_without_a_text_fails_its_request(scene: PythonScene) -> None:
    body = """
    class Bad(TypeError):
        def __str__(self):
            raise ValueError("no text")
    raise Bad
    """
    (reply,) = scene.execute(body, request(number()))
    assert "message: Bad: <exception str() failed>\n" in error_of(reply)


def test_outputs_that_were_not_asked_for_are_left_out(scene: PythonScene) -> None:
    body = "t = requests[0].inputs()[0].as_numpy()\n" + (
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('A', t), pb_utils.Tensor('B', t)])]"
    )
    (reply,) = scene.execute(body, request(number(), outputs=["B"]))
    assert [output.name for output in reply.outputs] == ["B"]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (
            "pb_utils.InferenceResponse([])",
            "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
        ),
        (
            "[]",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
        ),
        (
            "[pb_utils.InferenceResponse([])] * 2",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n",
        ),
        ("(text for text in 'ab')", "Expected a list in the execute return, found type '<class 'generator'>'."),
        (
            "['text']",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
        ),
    ],
)
def test_a_wrong_return_value_fails_the_batch_in_tritons_words(scene: PythonScene, returned: str, text: str) -> None:
    (reply,) = scene.execute(f"return {returned}")
    assert error_of(reply) == FAILED + text


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ("pb_utils.Tensor('Y', np.ones(1))", "found Tensor without a list: write [tensor]"),
        ("[np.ones(1)]", "found ndarray of the module numpy: write pb_utils.Tensor(NAME, array)"),
    ],
)
def test_a_response_without_tensors_says_how_to_write_it(scene: PythonScene, outputs: str, text: str) -> None:
    (reply,) = scene.execute(f"return [pb_utils.InferenceResponse({outputs})]")
    assert f"must be a list of Tensor, {text}" in error_of(reply)


@pytest.mark.parametrize("returned", ["None", "[None]"])
def test_no_answer_is_an_error_and_not_a_hang(scene: PythonScene, returned: str) -> None:
    (reply,) = scene.execute(f"return {returned}")
    assert "returned None" in error_of(reply)


def test_an_exception_fails_every_request_with_its_place_innermost_first(scene: PythonScene) -> None:
    source = """
    class TritonPythonModel:
        def inner(self):
            raise ValueError("deep\\nand long")

        def execute(self, requests):
            self.inner()
    """
    replies = run(scene.open(source), request(number()), request(number()))
    path = scene.directory / "m/1/model.py"
    expected = f"{FAILED}ValueError: deep\nand long\n\nAt:\n  {path}(4): inner\n  {path}(7): execute\n"
    assert [error_of(reply) for reply in replies] == [expected, expected]
    assert ("ERROR", expected) in scene.host.lines


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("pb_utils.TritonModelException('triton model exception')", "TritonModelException: triton model exception"),
        ("KeyError('missing')", "KeyError: 'missing'"),
        ("RuntimeError('café 世界')", "RuntimeError: café 世界"),
        ("SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_the_form_of_an_exceptions_text(scene: PythonScene, raised: str, text: str) -> None:
    (reply,) = scene.execute(f"raise {raised}")
    assert error_of(reply) == f"{FAILED}{text}\n\nAt:\n  {scene.directory / 'm/1/model.py'}(7): execute\n"


def test_the_traceback_shows_only_the_models_code(scene: PythonScene) -> None:
    (reply,) = scene.execute("pb_utils.Tensor('', np.zeros(1))")
    path = scene.directory / "m/1/model.py"
    text = "TritonModelException: Tensor name cannot be an empty string."
    assert error_of(reply) == f"{FAILED}{text}\n\nAt:\n  {path}(7): execute\n"


def test_a_string_that_is_no_text_is_reported_with_its_tensor(scene: PythonScene) -> None:
    (reply,) = scene.execute(
        r"return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', np.array(['\ud800'], object))])]"
    )
    text = error_of(reply).removeprefix(FAILED)
    assert text.startswith("UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800' in position 0: ")
    path = scene.directory / "m/1/model.py"
    assert text.endswith(
        "surrogates not allowed in tensor 'OUTPUT0', expected bytes or text that UTF-8 can encode\n\nAt:\n"
        f"  {path}(7): execute\n"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("UNKNOWN", Unknown),
        ("INTERNAL", Internal),
        ("NOT_FOUND", NotFound),
        ("INVALID_ARG", InvalidArgument),
        ("UNAVAILABLE", Unavailable),
        ("UNSUPPORTED", Unsupported),
        ("CANCELLED", Cancelled),
    ],
)
def test_an_error_response_keeps_its_code_and_fails_its_request_only(
    scene: PythonScene, code: str, expected: type
) -> None:
    failure = f"pb_utils.InferenceResponse(error=pb_utils.TritonError('refused', pb_utils.TritonError.{code}))"
    body = f"r = requests[0]\nreturn [{failure}, {ANSWER}]"
    bad, good = scene.execute(body, request(number()), request(number()))
    assert bad.error is not None
    assert (type(bad.error), bad.error.message) == (expected, "refused")
    assert good.error is None


def test_response_parameters_arrive(scene: PythonScene) -> None:
    body = "return [pb_utils.InferenceResponse([], parameters={'s': 'x', 'i': 4, 'b': True, 'f': 0.5})]"
    (reply,) = scene.execute(body)
    assert reply.parameters == {"s": "x", "i": 4, "b": True, "f": 0.5}


def test_response_parameters_are_those_of_the_moment_when_the_response_was_made(scene: PythonScene) -> None:
    body = """
    parameters, responses = {}, []
    for parameters["n"], r in enumerate(requests):
        responses.append(pb_utils.InferenceResponse([], parameters=parameters))
    parameters["tokens"] = [1, 2]
    return responses
    """
    replies = scene.execute(body, request(number()), request(number()))
    assert [reply.parameters for reply in replies] == [{"n": 0}, {"n": 1}]


def test_async_execute_runs_in_one_loop_that_stays_open_between_calls(scene: PythonScene) -> None:
    source = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.loops, self.ticks = [], asyncio.Event

        async def execute(self, requests):
            self.loops.append(asyncio.get_running_loop())
            assert len(set(self.loops)) == 1
            if len(self.loops) == 1:
                self.woken = asyncio.Event()
                self.task = asyncio.create_task(self.later())
            else:
                await asyncio.wait_for(self.woken.wait(), 10)
            return [pb_utils.InferenceResponse(r.inputs()) for r in requests]

        async def later(self):
            self.woken.set()
    """
    instance = scene.open(source)
    for _ in range(2):
        (reply,) = run(instance, request(number(), outputs=["INPUT0"]))
        assert reply.error is None


def test_an_exception_of_async_execute_names_the_coroutine(scene: PythonScene) -> None:
    source = """
    class TritonPythonModel:
        async def deep(self):
            raise ValueError("async deep")

        async def execute(self, requests):
            await self.deep()
    """
    (reply,) = run(scene.open(source))
    assert error_of(reply) == f"{FAILED}ValueError: async deep\n\nAt:\n  {scene.directory / 'm/1/model.py'}(4): deep\n"


def test_a_response_sender_answers_in_place_of_the_list(scene: PythonScene) -> None:
    body = f"""
    for r in requests:
        r.get_response_sender().send({ANSWER}, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    return None
    """
    (reply,) = scene.execute(body, request(number(41)))
    assert reply.outputs[0].array().tolist() == [42]


def test_a_response_may_be_sent_by_a_thread_after_execute_has_returned(scene: PythonScene) -> None:
    source = """
    import threading
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            self.asked = threading.Event()
            sender, value = requests[0].get_response_sender(), requests[0].inputs()[0].as_numpy()
            threading.Thread(target=self.later, args=(sender, value)).start()
            return None

        def later(self, sender, value):
            self.asked.wait()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value + 1)]), 1)
    """
    instance = scene.open(source)
    replies: list[Reply] = []
    executing = threading.Thread(target=lambda: replies.extend(run(instance, request(number(1)))))
    executing.start()
    while not hasattr(instance.model, "asked"):
        pass
    assert not replies
    instance.model.asked.set()
    executing.join(10)
    assert replies[0].outputs[0].array().tolist() == [2]


#: executes a batch, and answers it in a thread after `execute` has returned
LATER = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    returned = threading.Event()

    def execute(self, requests):
        BODY

    def later(self, request):
        self.returned.wait()
        request.get_response_sender().send(ANSWER, 1)
"""


def test_a_thread_may_ask_for_the_sender_after_execute_has_returned(scene: PythonScene) -> None:
    body = "for r in requests: threading.Thread(target=self.later, args=(r,)).start()"
    answer = ANSWER.replace("r.", "request.")
    instance = scene.open(LATER.replace("BODY", body).replace("ANSWER", answer))
    threading.Timer(0.1, instance.model.returned.set).start()
    replies = run(instance, request(number(1)), request(number(5)))
    assert [reply.outputs[0].array().tolist() for reply in replies] == [[2], [6]]


SEND_EACH = f"""
    r.get_response_sender().send({ANSWER}, 1)
return None
"""


@pytest.mark.parametrize(
    "body",
    [
        "requests.sort(key=lambda r: r.inputs()[0].as_numpy()[0])\nfor r in requests:" + SEND_EACH,
        "while requests:\n    r = requests.pop()" + SEND_EACH,
    ],
)
def test_a_model_may_change_the_list_of_its_requests(scene: PythonScene, body: str) -> None:
    replies = scene.execute(body, request(number(7)), request(number(3)))
    assert [reply.outputs[0].array().tolist() for reply in replies] == [[8], [4]]


def test_a_decoupled_model_may_change_the_list_of_its_requests(scene: PythonScene) -> None:
    streams = Stream(), Stream()
    body = "while requests:\n    r = requests.pop()" + SEND_EACH
    replies = scene.execute(body, *(request(number(), send=stream) for stream in streams), config=DECOUPLED)
    assert len(replies) == 2
    assert all(stream.ended.is_set() for stream in streams)


def test_a_sent_response_has_the_values_of_the_moment_when_it_was_sent(scene: PythonScene) -> None:
    body = """
    array = np.zeros(1, np.int32)
    for r in requests:
        array[:] = r.inputs()[0].as_numpy() * 10
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
        r.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    array[:] = -1
    """
    replies = scene.execute(body, request(number(7)), request(number(3)))
    assert [reply.outputs[0].array().tolist() for reply in replies] == [[70], [30]]


def test_a_returned_response_keeps_its_values_while_another_is_awaited(scene: PythonScene) -> None:
    body = """self.array = np.array([1], np.int32)
        threading.Thread(target=self.later, args=(requests[1],)).start()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", self.array)]), None]"""
    change = "self.array[:] = 2\n        request.get_response_sender"
    source = LATER.replace("BODY", body).replace("request.get_response_sender", change)
    instance = scene.open(source.replace("ANSWER", ANSWER.replace("r.", "request.")))
    threading.Timer(0.1, instance.model.returned.set).start()
    replies = run(instance, request(number()), request(number(5)))
    assert [reply.outputs[0].array().tolist() for reply in replies] == [[1], [6]]


def test_a_dropped_sender_ends_its_request(scene: PythonScene) -> None:
    (reply,) = scene.execute("for r in requests:\n    r.get_response_sender()\nreturn None")
    assert "returned None" in error_of(reply)


def test_a_request_that_a_reference_cycle_keeps_is_ended(scene: PythonScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_instance, "COLLECT_SECONDS", 0.05)
    body = """
    errors = []
    for r in requests:
        try:
            int("no number")
        except ValueError as error:
            errors.append(error)
    return [None for r in requests]
    """
    instance = scene.open(model_source(body))
    replies: list[Reply] = []
    executing = threading.Thread(target=lambda: replies.extend(run(instance, request(number()))), daemon=True)
    executing.start()
    executing.join(3)
    assert ["returned None" in error_of(reply) for reply in replies] == [True]


#: bodies of `execute` with a response that is copied before the batch ends, for example from a GPU
COPIED = {
    "sent": f"r.get_response_sender().send({ANSWER}, 1)",
    "sent before a failure": f"r.get_response_sender().send({ANSWER}, 1); raise ValueError",
    "sent by a thread": f"threading.Timer(0.05, lambda r=r: r.get_response_sender().send({ANSWER}, 1)).start()",
    "beside one that was sent": f"requests[1].get_response_sender().send({ANSWER}, 1); return [{ANSWER}, None]",
}


@pytest.mark.parametrize("body", COPIED.values(), ids=COPIED)
@pytest.mark.parametrize(
    "fault", [DeviceLost("the device is lost"), MemoryError("no memory")], ids=["device", "memory"]
)
def test_a_response_that_cannot_be_copied_is_an_error(
    scene: PythonScene, monkeypatch: pytest.MonkeyPatch, body: str, fault: Exception
) -> None:
    def fail(reply: Reply) -> None:
        raise fault

    monkeypatch.setattr(Reply, "copy_outputs", fail)
    execute = f"import threading\nfor r in requests:\n    {body}"
    instance = scene.open(model_source(execute))
    if isinstance(fault, DeviceLost):
        with pytest.raises(DeviceLost):  # the worker ends
            run(instance, request(number()), request(number()))
    else:
        replies = run(instance, request(number()), request(number()))
        assert error_of(replies[0]) == "the outputs of a response cannot be copied: MemoryError: no memory"


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("flags=0", "", "Inference Response object must be provided when the response flags is set to zero."),
        ("flags=9", "", "Unable to send response. Unsupported flag provided."),
        (
            "flags=1",
            "",
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
        (
            f"{ANSWER}, 1",
            f"s.send({ANSWER}, 1)",
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (f"{ANSWER}, 1", "s.send(flags=1)", "Unable to send response. Response sender has been closed."),
    ],
)
def test_misuse_of_a_sender_is_refused(scene: PythonScene, first: str, second: str, text: str) -> None:
    body = f"""
    r = requests[0]
    s = r.get_response_sender()
    try:
        s.send({first})
        {second or "pass"}
    except pb_utils.TritonModelException as error:
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([str(error)], object))])]
    """
    replies = scene.execute(body)
    if second:
        # the answer was sent already; the list's is one too many, and is told in the log
        assert replies[0].outputs[0].array().tolist() == [2]
        assert any("cannot send more than one response" in line or "closed" in line for _, line in scene.host.lines)
    else:
        assert replies[0].outputs[0].array().tolist() == [text.encode()]


def test_a_sent_answer_survives_a_later_exception(scene: PythonScene) -> None:
    body = f"r = requests[0]\nr.get_response_sender().send({ANSWER}, 1)\nraise ValueError('late')"
    first, second = scene.execute(body, request(number(1)), request(number(2)))
    assert first.outputs[0].array().tolist() == [2]
    assert "ValueError: late" in error_of(second)


DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


class Stream:
    """Collects what a decoupled model sends for one request."""

    def __init__(self) -> None:
        self.got: list[tuple[Reply | None, bool]] = []
        self.ended = threading.Event()

    def __call__(self, reply: Reply | None, final: bool) -> None:
        self.got.append((reply, final))
        if final:
            self.ended.set()


def test_a_decoupled_model_sends_any_number_of_responses(scene: PythonScene) -> None:
    body = f"""
    for r in requests:
        s = r.get_response_sender()
        for i in range(3):
            s.send({ANSWER})
        s.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    stream = Stream()
    scene.execute(body, request(number(1), send=stream), config=DECOUPLED)
    assert [(reply is None, final) for reply, final in stream.got] == [(False, False)] * 3 + [(True, True)]


def test_a_decoupled_models_failures_end_each_stream(scene: PythonScene) -> None:
    streams = Stream(), Stream()
    body = f"r = requests[0]\nr.get_response_sender().send({ANSWER}, 1)\nraise ValueError('no')"
    scene.execute(body, *(request(number(), send=stream) for stream in streams), config=DECOUPLED)
    assert [final for _, final in streams[0].got] == [True]
    ((reply, final),) = streams[1].got
    assert reply is not None
    assert final
    assert error_of(reply).startswith(f"{FAILED}ValueError: no\n")


def test_a_decoupled_model_must_return_none(scene: PythonScene) -> None:
    stream = Stream()
    scene.execute("return []", request(number(), send=stream), config=DECOUPLED)
    ((reply, _),) = stream.got
    assert reply is not None
    assert error_of(reply) == (
        FAILED + "Python model 'm_0' is using the decoupled mode and the execute function must return None."
    )


def test_a_stream_whose_sender_is_garbage_collected_ends(scene: PythonScene) -> None:
    stream = Stream()
    scene.execute("return None", request(number(), send=stream), config=DECOUPLED)
    assert stream.got == [(None, True)]


def test_async_decoupled_runs_on_after_execute(scene: PythonScene) -> None:
    source = f"""
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            await asyncio.sleep(0)
            for r in requests:
                r.get_response_sender().send({ANSWER}, 1)
            raise ValueError("afterwards")
    """
    stream = Stream()
    run(scene.open(source, DECOUPLED), request(number(1), send=stream))
    assert stream.ended.wait(10)
    reply = stream.got[0][0]
    assert reply is not None
    assert reply.outputs[0].array().tolist() == [2]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_stream_fails_by_an_exception_without_a_text(scene: PythonScene, kind: str) -> None:
    source = f"""
    import triton_python_backend_utils as pb_utils

    class Bad(Exception):
        def __str__(self):
            raise ValueError("no text")

    class TritonPythonModel:
        {kind} execute(self, requests):
            requests[0].get_response_sender().send({ANSWER.replace("r.", "requests[0].")})
            raise Bad
    """
    stream = Stream()
    run(scene.open(source, DECOUPLED), request(number(), send=stream))
    assert stream.ended.wait(10)
    _, (reply, final) = stream.got
    assert final
    assert reply is not None
    assert "message: Bad: <exception str() failed>\n" in error_of(reply)


def test_an_async_decoupled_execute_that_is_cancelled_fails_its_stream(scene: PythonScene) -> None:
    source = """
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
    """
    stream = Stream()
    run(scene.open(source, DECOUPLED), request(number(), send=stream))
    assert stream.ended.wait(10)
    ((reply, final),) = stream.got
    assert reply is not None
    assert final
    assert error_of(reply).startswith(f"{FAILED}CancelledError: \n")


def test_cancellation_is_seen_by_request_and_sender(scene: PythonScene) -> None:
    body = """
    seen = [requests[0].is_cancelled(), requests[0].get_response_sender().is_cancelled()]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array(seen))])]
    """
    (reply,) = scene.execute(body, request(number(), is_cancelled=lambda: True))
    assert reply.outputs[0].array().tolist() == [True, True]


def test_marks_of_time_lie_around_the_models_own_code(scene: PythonScene) -> None:
    instance, timing = scene.open(model_source(f"return [{ANSWER} for r in requests]")), Timing()
    instance.execute([request(number())], timing)
    assert 0 < timing.input_end_ns < timing.output_start_ns


@pytest.mark.parametrize(
    ("method", "ready"),
    [
        ("def is_ready(self): return True", True),
        ("def is_ready(self): return False", False),
        ("async def is_ready(self): return True", True),
        ("def is_ready(self): return 1", False),
        ("def is_ready(self): raise ValueError('not yet')", False),
        ("pass", True),
    ],
)
def test_is_ready_returns_the_models_answer(scene: PythonScene, method: str, ready: bool) -> None:
    source = f"class TritonPythonModel:\n    {method}\n    def execute(self, requests): return []\n"
    assert scene.open(source).is_ready() is ready


def test_is_ready_has_a_limit_and_is_not_asked_twice_at_once(
    scene: PythonScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_instance, "READY_SECONDS", 0.05)
    source = """
    import threading

    class TritonPythonModel:
        asked, go = 0, threading.Event()

        def is_ready(self):
            type(self).asked += 1
            return self.go.wait(20)

        def execute(self, requests):
            return []
    """
    instance = scene.open(source)
    assert not instance.is_ready()
    assert not instance.is_ready()
    instance.model.go.set()
    assert instance._asking is not None
    instance._asking.join(10)
    assert instance.model.asked == 1
    assert instance.is_ready()


def test_initialize_gets_strings_and_finalize_is_called(scene: PythonScene) -> None:
    source = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            assert all(type(value) is str for value in args.values())
            config = json.loads(args.pop("model_config"))
            pb_utils.Logger.log_info(json.dumps([config["name"], args], sort_keys=True))

        def execute(self, requests):
            return []

        def finalize(self):
            pb_utils.Logger.log_warn("bye")
            raise ValueError("at the end")
    """
    scene.open(source)
    directory = scene.directory / "m"
    assert scene.host.lines == [
        (
            "INFO",
            '["m", {"model_instance_device_id": "0", "model_instance_kind": "CPU", "model_instance_name": "m_0", '
            f'"model_name": "m", "model_repository": "{directory}", "model_version": "1"}}]',
        )
    ]
    scene.close()
    assert scene.host.lines[1] == ("WARNING", "bye")
    assert "finalize() failed: ValueError: at the end" in scene.host.lines[2][1]


def test_a_failed_initialize_reports_the_reason_and_closes_other_instances(scene: PythonScene) -> None:
    source = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            if args["model_instance_name"].endswith("_1"):
                raise RuntimeError("cannot start")

        def execute(self, requests):
            return []

        def finalize(self):
            pb_utils.Logger.log_info("closed")
    """
    with pytest.raises(Internal) as caught:
        scene.open(source, instances=2)
    path = scene.directory / "m/1/model.py"
    assert caught.value.message == f"RuntimeError: cannot start\n\nAt:\n  {path}(7): initialize\n"
    assert scene.host.lines == [("INFO", "closed")]


def test_inputs_are_views_of_the_requests_bytes(scene: PythonScene) -> None:
    wire = tensor("INPUT0", np.arange(6, dtype=np.float32).reshape(2, 3))
    body = "requests[0].inputs()[0].as_numpy()[:] = 7\nreturn [pb_utils.InferenceResponse([])]"
    scene.execute(body, request(wire))
    assert wire.array().tolist() == [[7, 7, 7], [7, 7, 7]]


def test_a_breakpoint_in_a_worker_says_how_to_debug(scene: PythonScene) -> None:
    (reply,) = scene.execute("import bdb\nraise bdb.BdbQuit")

    assert reply.error is not None
    assert "BdbQuit: the model reached a breakpoint(), and a worker has no terminal: remove it" in reply.error.message


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (
            "pb_utils.get_input_tensor_by_name(requests[0], 'IMAGE').as_numpy()",
            "The request has no input 'IMAGE' (get_input_tensor_by_name returned None): its inputs are INPUT0; use "
            "one of these names in model.py (an optional input that the client left out is None, too)",
        ),
        ("import sklearn", "Install it for the Python that runs the model: "),
        (
            "open('labels.txt')",
            "A relative path starts at the working directory, {cwd}, not at model.py: put the file beside model.py "
            "and open os.path.join(pb_utils.get_model_dir(), 'labels.txt')",
        ),
        (
            "open('weights.npy')",
            "A relative path starts at the working directory, {cwd}, but the file is {model}/1/weights.npy: open "
            "os.path.join(pb_utils.get_model_dir(), 'weights.npy')",
        ),
        (
            "open('names.txt')",
            "A relative path starts at the working directory, {cwd}, but the file is {model}/names.txt: open "
            "os.path.join(pb_utils.get_model_dir(), '..', 'names.txt')",
        ),
        (
            "pb_utils.Tensor('OUTPUT0', [1.0])",
            "pb_utils.Tensor takes a NumPy array: np.asarray(value), or of PyTorch value.numpy(force=True)",
        ),
        ("open('/labels.txt')", ""),
        ("None.strip()", ""),
        ("np.zeros(1).as_numpy()", ""),
    ],
)
def test_an_exception_that_does_not_name_the_fix_has_advice(scene: PythonScene, body: str, advice: str) -> None:
    for name in ("1/weights.npy", "names.txt"):
        (scene.directory / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (scene.directory / "m" / name).touch()
    (reply,) = scene.execute(body)
    tail = error_of(reply).partition(": execute\n")[2]

    assert bool(tail) == bool(advice)
    assert tail.startswith(advice.format(cwd=Path.cwd(), model=scene.directory / "m")), tail


@pytest.mark.parametrize(
    ("method", "body", "advice"),
    [
        ("execute(requests)", "return []", "; write it as def execute(self, requests)"),
        ("execute(self, requests)", "return self.helper()", ": execute\n"),
    ],
)
def test_a_method_without_the_parameters_of_the_server(scene: PythonScene, method: str, body: str, advice: str) -> None:
    source = f"""
    class TritonPythonModel:
        def {method}:
            {body}

        def helper():
            return []
    """
    (reply,) = run(scene.open(source))
    assert "takes " in error_of(reply)
    assert error_of(reply).endswith(advice)


def test_advice_is_about_the_tensors_of_the_same_batch(scene: PythonScene) -> None:
    body = f"pb_utils.get_input_tensor_by_name(requests[0], 'OPTIONAL')\nreturn [{ANSWER} for r in requests]"
    (reply,) = scene.execute(body, request(number()))
    assert reply.error is None
    (reply,) = scene.execute("None.as_numpy()", request(number()))
    assert "'NoneType' object has no attribute 'as_numpy'" in error_of(reply)
    assert "OPTIONAL" not in error_of(reply)


ITERATIVE = {"sequence_batching": {"iterative_sequence": True}}

#: reschedules its first two runs, and does as ACTION says in each
RUNS = """
import numpy as np
import triton_python_backend_utils as pb_utils

def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], np.int32))])

class TritonPythonModel:
    runs, kept = 0, None

    def execute(self, requests):
        request, self.runs = requests[0], self.runs + 1
        result = ACTION
        if self.runs < 3:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return RETURNED

    def keep(self, one):
        self.kept = self.kept or one
"""


def execute_runs(
    scene: PythonScene, action: str, between: Callable[[int, Any], object] = lambda run, model: None, **more: Any
) -> list[Reply]:
    """Run one request three times, and return the reply to each run. `between` is called after each run."""
    source = RUNS.replace("ACTION", action).replace("RETURNED", more.pop("returned", "None"))
    instance = scene.open(source, {**ITERATIVE, **more.pop("config", {})})
    replies = []
    for i in range(3):
        replies += run(instance, request(number(), correlation_id=7, flags=0 if i else SEQUENCE_START, **more))
        between(i, instance.model)
    return replies


@pytest.mark.parametrize("kept", ["request.get_response_sender()", "request"])
def test_a_kept_sender_answers_in_a_later_run(scene: PythonScene, kept: str) -> None:
    send = "self.runs == 3 and getattr(self.kept, 'get_response_sender', lambda: self.kept)().send(answer(3), 1)"
    replies = execute_runs(scene, f"self.keep({kept}), {send}")
    assert [reply.rescheduled for reply in replies] == [True, True, False]
    assert replies[2].outputs[0].array().tolist() == [3]


@pytest.mark.parametrize("kept", ["request.get_response_sender()", "request"])
@pytest.mark.parametrize("again", [1, 2])
def test_an_answer_between_two_runs_is_the_reply_to_the_next(scene: PythonScene, kept: str, again: int) -> None:
    def send(run: int, model: Any) -> None:
        if run == again - 1:
            sender = model.kept if "sender" in kept else model.kept.get_response_sender()
            sender.send(sys.modules[type(model).__module__].answer(run), 1)

    replies = execute_runs(scene, f"self.keep({kept})", send)
    assert [reply.rescheduled for reply in replies[:again]] == [True] * again
    assert replies[again].outputs[0].array().tolist() == [again - 1]


def test_the_request_of_each_run_has_the_kept_sender(scene: PythonScene) -> None:
    same = "self.keep(request.get_response_sender()), request.get_response_sender() is self.kept"
    (*_, last) = execute_runs(scene, same, returned="[answer(int(result[1])) if self.runs == 3 else None]")
    assert last.outputs[0].array().tolist() == [1]


def test_a_kept_sender_that_is_dropped_ends_the_run(scene: PythonScene) -> None:
    drop = "self.keep(request.get_response_sender()) if self.runs < 3 else self.__dict__.pop('kept') and None"
    replies = execute_runs(scene, drop)
    assert [reply.rescheduled for reply in replies] == [True, True, False]
    assert "sent no response" in error_of(replies[2])


def test_a_stream_that_has_ended_between_two_runs_ends_the_next_one(scene: PythonScene) -> None:
    """The worker keeps a mark for each run until its last response."""
    streams = [Stream(), Stream(), Stream()]

    def send(run: int, model: Any) -> None:
        if run == 0:
            model.kept.send(flags=1)

    source = RUNS.replace("ACTION", "self.keep(request.get_response_sender())").replace("RETURNED", "None")
    instance = scene.open(source, {**ITERATIVE, **DECOUPLED})
    for i, stream in enumerate(streams):
        run(instance, request(number(), correlation_id=7, flags=0 if i else SEQUENCE_START, send=stream))
        send(i, instance.model)
    assert [stream.got for stream in streams[:2]] == [[(None, True)], [(None, True)]]
