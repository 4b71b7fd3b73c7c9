"""`edge_serve.testing` and `triton_python_backend_utils` in an ordinary program, without a server."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound
from edge_serve.testing import PythonModel
from tests.server.running import python_model

ROOT = Path(__file__).parents[1]
CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "factor" value { string_value: "2" } }
"""
CODE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.factor = np.float32(config["parameters"]["factor"]["string_value"])
        self.args = args

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            BODY
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
        return responses
"""
SCALE = "y = x * self.factor"

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a model whose `execute` computes `y` from `x`."""

    def make(body: str = SCALE, config: str = CONFIG, name: str = "scale") -> Path:
        return python_model(tmp_path, name, CODE.replace("BODY", body.replace("\n", "\n" + 12 * " ")), config)

    return make


def test_a_model_answers_in_this_process(make: Make) -> None:
    with PythonModel(make()) as scale:
        outputs = scale.infer({"X": [[1, 2, 3]]})
        assert scale.model.args["model_name"] == "scale"
        assert scale.config["max_batch_size"] == 4

    assert outputs["Y"].tolist() == [[2, 4, 6]]
    assert outputs["Y"].dtype == np.float32


def test_an_exception_of_the_model_passes_through_with_its_traceback(make: Make) -> None:
    path = make("raise ZeroDivisionError('in the model')")
    with PythonModel(path) as model, pytest.raises(ZeroDivisionError, match="in the model") as caught:
        model.infer({"X": [[1]]})

    assert caught.traceback[-1].path == path / "1/model.py"


def test_an_error_response_is_raised(make: Make) -> None:
    body = "responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError('not here', 2)))\ncontinue"
    with PythonModel(make(body)) as model, pytest.raises(NotFound, match="not here"):
        model.infer({"X": [[1]]})


def test_a_request_that_does_not_fit_is_refused_as_by_the_server(make: Make) -> None:
    with PythonModel(make()) as model:
        with pytest.raises(InvalidArgument, match="got 0 inputs for model 'scale'"):
            model.infer({})
        with pytest.raises(InvalidArgument, match="must be <= 4"):
            model.infer({"X": [[1]] * 5})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("y = x.astype(np.float64)", "output 'Y' is FP64 [2,1], but config.pbtxt line 5 says data_type: TYPE_FP32."),
        ("y = x[0]", "output 'Y' is FP32 [1], but config.pbtxt line 5 says dims: [-1]"),
        ("y = x[:1]", "behind a batch dimension of 2: [2, -1]"),
    ],
)
def test_outputs_that_differ_from_the_configuration_fail_the_test(make: Make, body: str, text: str) -> None:
    with PythonModel(make(body)) as model, pytest.raises(AssertionError) as caught:
        model.infer({"X": [[1], [2]]})

    assert text in str(caught.value).replace("[2, 1]", "[2,1]")


def test_a_model_gets_its_inputs_in_the_order_of_the_caller(make: Make) -> None:
    config = CONFIG + 'input { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }'
    with PythonModel(make("y = request.inputs()[0].as_numpy()", config)) as model:
        for order in ("XZ", "ZX"):
            assert model.infer({name: [[float(name == "Z")]] for name in order})["Y"].item() == float(order == "ZX")


def test_a_decoupled_model_streams(make: Make) -> None:
    config = CONFIG.replace("max_batch_size: 4", "model_transaction_policy { decoupled: true }")
    body = """sender = request.get_response_sender()
y = np.zeros(1, np.float32)
for y[0] in x: sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
import threading
threading.Timer(0.01, sender.send, (None, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)).start()
return None"""
    with PythonModel(make(body, config)) as model:
        assert [one["Y"].tolist() for one in model.stream({"X": [1, 2, 3]})] == [[1], [2], [3]]
        with pytest.raises(AssertionError, match="found 3 responses, expected 1: use stream"):
            model.infer({"X": [1, 2, 3]})


def test_a_model_without_an_answer_fails_its_test_at_once(make: Make) -> None:
    with PythonModel(make("return None")) as model, pytest.raises(AssertionError, match="found 0 responses"):
        model.infer({"X": [[1]]})


def test_a_model_cannot_change_the_arrays_of_its_test(make: Make) -> None:
    array = np.array([[1]], np.float32)
    with PythonModel(make("x -= 1\ny = x")) as model:
        for _ in range(2):
            assert model.infer({"X": array})["Y"].tolist() == [[0]]

    assert array.tolist() == [[1]]


def test_tasks_of_a_model_go_on_between_requests_also_inside_a_running_loop(tmp_path: Path) -> None:
    code = """
import asyncio
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    queue = None

    async def execute(self, requests):
        if self.queue is None:
            self.queue = asyncio.Queue()
            self.worker = asyncio.create_task(self.work())
        answer = asyncio.get_running_loop().create_future()
        await self.queue.put((pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy(), answer))
        y = await asyncio.wait_for(answer, 1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])]

    async def work(self):
        while True:
            x, answer = await self.queue.get()
            answer.set_result(2 * x)
"""

    async def infer_inside(model: PythonModel) -> None:
        assert model.infer({"X": [[3]]})["Y"].tolist() == [[6]]

    with PythonModel(python_model(tmp_path, "worker", code, CONFIG)) as model:
        for x in (1, 2):
            assert model.infer({"X": [[x]]})["Y"].tolist() == [[2 * x]]
        asyncio.run(infer_inside(model))


def test_two_models_with_files_of_equal_names_are_open_at_once(make: Make) -> None:
    body = "from .helper import factor\ny = x * np.float32(factor)"
    paths = [make(body, name="one"), make(body, name="two")]
    for number, path in enumerate(paths, 2):
        (path / "1/helper.py").write_text(f"factor = {number}\n")

    for number, path in enumerate(paths, 2):
        with PythonModel(make(name="other")) as other, PythonModel(path) as model:
            assert model.infer({"X": [[1]]})["Y"].tolist() == [[number]]
            assert other.infer({"X": [[1]]})["Y"].tolist() == [[2]]


def test_a_call_of_another_model_says_that_it_needs_a_server(make: Make) -> None:
    body = """pb_utils.InferenceRequest(model_name="other", requested_output_names=["Y"], inputs=[]).exec()"""
    text = "model 'other' cannot be called: no server runs in this process: start one"
    with PythonModel(make(body)) as model, pytest.raises(Exception, match=text):
        model.infer({"X": [[1]]})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (('backend: "python"', 'backend: "onnxruntime"'), "has backend 'onnxruntime', expected python"),
        (("TYPE_FP32", "TYPE_FLOAT"), "unknown value 'TYPE_FLOAT'"),
        (("max_batch_size: 4", "max_batch_size: 4 sequence_batching { }"), "has sequence_batching"),
    ],
)
def test_models_that_cannot_be_tested_like_this(make: Make, change: tuple[str, str], text: str) -> None:
    path = make(config=CONFIG.replace(*change))

    with pytest.raises(EdgeServeError, match=text), PythonModel(path) as model:
        model.infer({"X": [[1]]})


def test_an_exception_of_initialize_is_the_cause(make: Make) -> None:
    path = make(config=CONFIG.replace('"factor"', '"other"'))

    with pytest.raises(EdgeServeError, match="KeyError: 'factor'") as caught:
        PythonModel(path)

    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(InvalidArgument, match="expected version directory 7"):
        PythonModel(make(), version=7)


def test_the_utilities_are_the_workers_own_classes() -> None:
    outside = importlib.import_module("triton_python_backend_utils")
    inside = importlib.import_module("edge_serve.backends.python_path.triton_python_backend_utils")

    assert {name for name in dir(inside) if not name.startswith("_")} <= set(dir(outside))
    assert outside.Tensor is inside.Tensor
    error = pickle.loads(pickle.dumps(outside.TritonModelException("no")))
    assert isinstance(error, outside.TritonModelException)
    assert copy.deepcopy(outside.TritonError.NOT_FOUND) is outside.TritonError.NOT_FOUND


def test_a_program_writes_requests_and_responses_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    pb_utils = importlib.import_module("triton_python_backend_utils")
    tensor = pb_utils.Tensor("X", np.arange(3, dtype=np.int16))

    request = pb_utils.InferenceRequest(model_name="m", inputs=[tensor], requested_output_names=["Y"])
    response = pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", np.from_dlpack(tensor))])
    pb_utils.Logger.log_warn("look")

    assert pb_utils.get_input_tensor_by_name(request, "X").as_numpy().tolist() == [0, 1, 2]
    assert pb_utils.get_output_tensor_by_name(response, "Y").as_numpy().dtype == np.int16
    assert capsys.readouterr().err == "WARNING look\n"
    with pytest.raises(pb_utils.TritonModelException, match=r"edge_serve\.Server"):
        request.exec()


def test_importing_the_utilities_imports_nothing_of_the_server() -> None:
    code = "import sys, triton_python_backend_utils; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    heavy = ("google", "orjson", "hpack", "onnxruntime", "edge_serve.transport", "edge_serve.models")
    assert [name for name in done.stdout.split() if name.startswith(heavy)] == []


def test_in_a_real_triton_its_own_file_is_imported(tmp_path: Path) -> None:
    (tmp_path / "triton_python_backend_utils.py").write_text("whose = 'Triton'\n")
    code = (
        "import sys; sys.builtin_module_names += ('c_python_backend_utils',)\n"
        f"sys.path.append({str(tmp_path)!r})\n"
        "import triton_python_backend_utils as pb_utils; print(pb_utils.whose)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "Triton\n"
