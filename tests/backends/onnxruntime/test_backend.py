"""ONNX models, from the file to the answers, on the CPU and on GPUs. Texts: Triton's onnxruntime_backend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from edge_serve.backends.base import BackendRequest, InstanceSpec, Reply, Timing
from edge_serve.backends.onnxruntime.backend import OnnxRuntimeBackend
from edge_serve.backends.onnxruntime.gpu_instance import OnnxGpuInstance
from edge_serve.backends.onnxruntime.instance import OnnxInstance, SharedSession
from edge_serve.backends.onnxruntime.providers import CPU, Provider
from edge_serve.backends.onnxruntime.session import Session, make, warm_up
from edge_serve.backends.onnxruntime.settings import SessionSettings
from edge_serve.devices.find import find_devices
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.messages.tensors import Array, DataType, InferTensor
from tests.backends import onnx_models as models
from tests.backends.cuda.host import HostCuda
from tests.backends.hosting import model_spec, request, tensor
from tests.texts import without_advice


def io(name: str, data_type: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


ADD_SUB = {
    "max_batch_size": 8,
    "input": [io("A", "TYPE_INT32", 4), io("B", "TYPE_INT32", 4)],
    "output": [io("SUM", "TYPE_INT32", 4), io("DIFFERENCE", "TYPE_INT32", 4)],
}
BOTH = ("SUM", "DIFFERENCE")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the model's file belongs."""
    return tmp_path / "m/1/model.onnx"


class Opener:
    """Opens instances of the model at `file` on one kind of device, and closes them."""

    def __init__(self, file: Path, kind: str, host: HostCuda | None = None) -> None:
        self._file, self._kind, self._host = file, kind, host
        self._opened: list[tuple[OnnxRuntimeBackend, Sequence[OnnxInstance | OnnxGpuInstance]]] = []

    def backend(self) -> OnnxRuntimeBackend:
        host = self._host
        return OnnxRuntimeBackend(lambda: host) if host is not None else OnnxRuntimeBackend()

    def __call__(
        self, config: dict[str, Any], *, kind: str = "", count: int = 1, complete: bool = False
    ) -> OnnxInstance | OnnxGpuInstance:
        kind = kind or self._kind
        backend, spec = self.backend(), model_spec(self._file.parent.parent, config)
        self._opened.append((backend, []))
        if kind == "GPU":
            spec.config.setdefault("instance_group", [{"kind": "KIND_GPU"}])
        if complete:
            spec.config = backend.complete_config(spec)
        instances = backend.open(spec, [InstanceSpec(f"m_{i}", kind) for i in range(count)])
        self._opened[-1] = (backend, instances)
        return instances[-1]

    def close(self) -> None:
        for backend, instances in self._opened:
            for instance in instances:
                instance.close()
            backend.close()


@pytest.fixture
def on_cpu(file: Path) -> Iterator[Opener]:
    opener = Opener(file, "CPU")
    yield opener
    opener.close()


@pytest.fixture
def on_gpu(file: Path, host: HostCuda) -> Iterator[Opener]:
    opener = Opener(file, "GPU", host)
    yield opener
    opener.close()
    assert host.open_handles() == {"memory": 0, "streams": 0, "events": 0, "graphs": 0}


@pytest.fixture
def on_nvidia(file: Path) -> Iterator[Opener]:
    """On a real GPU, whose provider computes some nodes of these models on the host."""
    found = find_devices()
    if not found.found or "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip(f"no NVIDIA GPU with onnxruntime-gpu here: {found.reason}")
    opener = Opener(file, "GPU")
    yield opener
    opener.close()


@pytest.fixture(params=["CPU", "GPU", pytest.param("NVIDIA", marks=pytest.mark.gpu)])
def open_model(request: pytest.FixtureRequest) -> Opener:
    """Opens instances of the model at `file`: the same answers are expected of all kinds of devices."""
    opener: Opener = request.getfixturevalue(f"on_{request.param.lower()}")
    return opener


def execute(instance: OnnxInstance | OnnxGpuInstance, *requests: BackendRequest) -> list[Reply]:
    replies = instance.execute(requests, timing := Timing())
    assert 0 < timing.input_end_ns <= timing.output_start_ns
    return replies


def values(reply: Reply) -> dict[str, Any]:
    assert reply.error is None
    return {output.name: output.array().tolist() for output in reply.outputs}


def pair(a: Any, b: Any, outputs: Sequence[str] = BOTH) -> BackendRequest:
    return request(tensor("A", np.array(a, np.int32)), tensor("B", np.array(b, np.int32)), outputs=outputs)


def f32(numbers: Any) -> Array:
    return np.array(numbers, np.float32)


def one(array: Any, datatype: DataType | None = None, outputs: Sequence[str] = ("Y",)) -> BackendRequest:
    return request(tensor("X", np.asarray(array), datatype), outputs=outputs)


# -- batches


def test_a_request_alone(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    (reply,) = execute(open_model(ADD_SUB), pair([[1, 2, 3, 4]], [[1, 1, 1, 1]]))
    assert values(reply) == {"SUM": [[2, 3, 4, 5]], "DIFFERENCE": [[0, 1, 2, 3]]}


def test_requests_are_joined_and_taken_apart_without_copies(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    a, b = [[1, 2, 3, 4]], [[5, 5, 5, 5], [6, 6, 6, 6]]
    replies = execute(open_model(ADD_SUB), pair(a, a), pair(b, b))
    assert [values(reply) for reply in replies] == [
        {"SUM": [[2, 4, 6, 8]], "DIFFERENCE": [[0] * 4]},
        {"SUM": [[10] * 4, [12] * 4], "DIFFERENCE": [[0] * 4] * 2},
    ]
    first, second = (np.frombuffer(reply.outputs[0].data, np.int32) for reply in replies)
    assert second.ctypes.data - first.ctypes.data == first.nbytes


def test_inputs_may_come_in_any_order(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    other = pair([[9] * 4], [[1] * 4])
    other.inputs.reverse()
    replies = execute(open_model(ADD_SUB), pair([[1] * 4], [[1] * 4]), other)
    assert values(replies[1])["DIFFERENCE"] == [[8] * 4]


def test_each_request_gets_the_outputs_that_it_wants(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    a = [[1, 2, 3, 4]]
    instance = open_model(ADD_SUB)
    replies = execute(instance, pair(a, a, ["SUM"]), pair(a, a, ["DIFFERENCE"]))
    assert [list(values(reply)) for reply in replies] == [["SUM"], ["DIFFERENCE"]]
    assert [list(values(reply)) for reply in execute(instance, pair(a, a, ["DIFFERENCE"]))] == [["DIFFERENCE"]]


def test_a_model_without_batches_runs_request_by_request(file: Path, open_model: Opener) -> None:
    models.identity(file, dims=[None])
    config = {"input": [io("X", "TYPE_FP32", -1)], "output": [io("Y", "TYPE_FP32", -1)]}
    replies = execute(open_model(config), one(f32([1])), one(f32([2, 3])))
    assert [values(reply) for reply in replies] == [{"Y": [1]}, {"Y": [2, 3]}]


def test_a_model_that_answers_another_number_of_rows(file: Path, open_model: Opener) -> None:
    nodes = [models.node("Unique", ["X"], ["Y"], axis=0)]
    models.save(file, nodes, {"X": (models.FLOAT, ["N", 2])}, {"Y": (models.FLOAT, ["M", 2])})
    config = {"max_batch_size": 4, "input": [io("X", "TYPE_FP32", 2)], "output": [io("Y", "TYPE_FP32", 2)]}
    instance = open_model(config)
    two = np.ones((2, 2), np.float32)
    for batch in ([one(two)], [one(two), one(two)]):
        with pytest.raises(Internal, match="failed to split the output tensor 'Y' in responses"):
            instance.execute(batch, Timing())


def test_requests_of_unequal_shapes_are_distinguished(file: Path, open_model: Opener) -> None:
    models.identity(file)
    config = {"max_batch_size": 4, "input": [io("X", "TYPE_FP32", -1)], "output": [io("Y", "TYPE_FP32", -1)]}
    with pytest.raises(Internal, match=r"input 'X' cannot be joined to one batch: shapes are \[1, 2\], \[1, 3\]"):
        open_model(config).execute([one(np.ones((1, 2), np.float32)), one(np.ones((1, 3), np.float32))], Timing())


def test_an_error_of_the_run_has_tritons_text(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    with pytest.raises(Internal, match=r"onnx runtime error 2: Got invalid dimensions for input: [AB]"):
        open_model(ADD_SUB).execute([pair([[1, 2]], [[1, 2]])], Timing())


def test_instances_share_a_session(file: Path) -> None:
    models.add_sub(file)
    backend = OnnxRuntimeBackend()
    spec = model_spec(file.parent.parent, ADD_SUB)
    first, second = backend.open(spec, [InstanceSpec("m_0"), InstanceSpec("m_1")])
    assert isinstance(first, OnnxInstance)
    assert isinstance(second, OnnxInstance)
    assert first._session is second._session
    first.close()
    assert values(*execute(second, pair([[1] * 4], [[1] * 4])))["SUM"] == [[2] * 4]
    assert second.is_ready()
    second.close()
    backend.close()


# -- types


TYPES = {
    TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8", TensorProto.UINT16: "UINT16", TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64", TensorProto.INT8: "INT8", TensorProto.INT16: "INT16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.FLOAT16: "FP16", TensorProto.FLOAT: "FP32", TensorProto.DOUBLE: "FP64",
    TensorProto.BFLOAT16: "BF16", TensorProto.STRING: "BYTES",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), TYPES.items())
def test_every_type_comes_back_as_it_went(file: Path, open_model: Opener, kind: int, name: str) -> None:
    models.identity(file, kind)
    datatype = DataType[name]
    array = np.array([[b"1"], [b"0"]], object) if datatype is DataType.BYTES else np.array([[1], [0]])
    (reply,) = execute(open_model({}, complete=True), one(array.astype(datatype.numpy), datatype))
    (output,) = reply.outputs
    assert (output.datatype, output.shape) == (datatype, (2, 1))
    assert output.array().tolist() == array.tolist()


def test_strings(file: Path, open_model: Opener) -> None:
    models.identity(file, models.STRING)
    instance = open_model({}, complete=True)
    texts = np.array([[b"caf\xc3\xa9", b""], [b"plain", b"\xe4\xb8\x96"]], object)
    assert values(*execute(instance, one(texts))) == {"Y": texts.tolist()}
    first, second = execute(instance, one(texts[:1]), one(texts[1:]))
    assert [values(first), values(second)] == [{"Y": texts[:1].tolist()}, {"Y": texts[1:].tolist()}]


def label_encoder(file: Path) -> None:
    """Y = the position of X among the keys that the model was trained with."""
    keys = {"keys_strings": ["a", "b"], "values_int64s": [1, 2], "default_int64": 0}
    nodes = [models.node("LabelEncoder", ["X"], ["Y"], domain="ai.onnx.ml", **keys)]
    models.save(file, nodes, {"X": (models.STRING, ["N", 1])}, {"Y": (TensorProto.INT64, ["N", 1])})


LABELS = {
    "max_batch_size": 8,
    "input": [io("X", "TYPE_STRING", 1)],
    "output": [io("Y", "TYPE_INT64", 1)],
}


def strings(*elements: bytes) -> BackendRequest:
    return one(np.array([elements], object).T)


def test_bytes_that_are_no_text_reach_the_model(file: Path, open_model: Opener) -> None:
    label_encoder(file)
    instance = open_model(LABELS)
    assert values(*execute(instance, strings(b"\xff\xfe", b"b", b"a"))) == {"Y": [[0], [2], [1]]}
    assert values(*execute(instance, strings(b"b", b"\xff", b"a"))) == {"Y": [[2], [0], [1]]}  # all of the same length


def test_bytes_that_are_no_text_leave_the_rest_of_the_batch_as_it_is(file: Path, open_model: Opener) -> None:
    label_encoder(file)
    replies = execute(open_model(LABELS), strings(b"a"), strings(b"\xff", b"b"), strings(b"b"))
    assert [values(reply) for reply in replies] == [{"Y": [[1]]}, {"Y": [[0], [2]]}, {"Y": [[2]]}]


def test_text_that_the_library_cannot_return_fails_its_request_alone(file: Path, open_model: Opener) -> None:
    models.identity(file, models.STRING)
    first, second, third = execute(open_model({}, complete=True), strings(b"a"), strings(b"\xff"), strings(b"b"))
    assert isinstance(second.error, Internal)
    assert [values(first), values(third)] == [{"Y": [[b"a"]]}, {"Y": [[b"b"]]}]


def test_one_long_string_takes_its_memory_once(file: Path, open_model: Opener) -> None:
    label_encoder(file)
    long, instance = b"\xff" * 100_000, open_model(LABELS)
    assert values(*execute(instance, strings(long, *[b"a"] * 9)))["Y"] == [[0], *[[1]] * 9]
    with pytest.raises(InvalidArgument, match="'X' has text that is not UTF-8: its 170 strings take 17000170 bytes"):
        execute(instance, strings(long, *[b""] * 169))
    first, second = execute(instance, strings(b"a"), strings(long, *[b""] * 169))
    assert values(first) == {"Y": [[1]]}
    assert isinstance(second.error, InvalidArgument)


def test_unaligned_inputs(file: Path, open_model: Opener) -> None:
    models.identity(file)
    data = memoryview(bytearray(b"\0" + f32([1, 2]).tobytes()))[1:]
    wire = request(InferTensor("X", DataType.FP32, (1, 2), data), outputs=["Y"])
    assert values(*execute(open_model({}, complete=True), wire)) == {"Y": [[1, 2]]}


def test_scalars_are_one_element_outside(file: Path, open_model: Opener) -> None:
    models.identity(file, dims=[])
    instance = open_model({}, complete=True)
    (reply,) = execute(instance, one(f32([5])))
    assert (reply.outputs[0].shape, values(reply)) == ((1,), {"Y": [5]})


def test_an_empty_tensor(file: Path, open_model: Opener) -> None:
    models.identity(file)
    (reply,) = execute(open_model({}, complete=True), one(np.zeros((1, 0), np.float32)))
    assert (reply.outputs[0].shape, bytes(reply.outputs[0].data)) == ((1, 0), b"")


# -- optional and ragged inputs


def test_an_initializer_is_an_optional_input(file: Path, open_model: Opener) -> None:
    nodes = [models.node("Add", ["X", "OFFSET"], ["Y"])]
    shape = (models.FLOAT, [2])
    models.save(file, nodes, {"X": shape}, {"Y": shape}, {"OFFSET": f32([10, 20])}, initializers_are_inputs=True)
    config = {
        "input": [io("X", "TYPE_FP32", 2), io("OFFSET", "TYPE_FP32", 2, optional=True)],
        "output": [io("Y", "TYPE_FP32", 2)],
    }
    instance = open_model(config)
    x = tensor("X", f32([1, 2]))
    assert values(*execute(instance, request(x, outputs=["Y"]))) == {"Y": [11, 22]}
    offset = tensor("OFFSET", f32([100, 100]))
    assert values(*execute(instance, request(x, offset, outputs=["Y"]))) == {"Y": [101, 102]}


RAGGED = {
    "max_batch_size": 8,
    "input": [io("X", "TYPE_FP32", -1, allow_ragged_batch=True)],
    "output": [io("Y", "TYPE_FP32", 1)],
    "batch_input": [
        {
            "kind": "BATCH_ACCUMULATED_ELEMENT_COUNT",
            "target_name": ["INDEX"],
            "data_type": "TYPE_FP32",
            "source_input": ["X"],
        }
    ],
}


def test_a_ragged_batch_with_a_batch_input(file: Path, open_model: Opener) -> None:
    # Y[i] = INDEX[i] + the sum of all X
    nodes = [
        models.node("ReduceSum", ["X"], ["S"], keepdims=1),
        models.node("Add", ["INDEX", "S"], ["A"]),
        models.node("Reshape", ["A", "SHAPE"], ["Y"]),
    ]
    inputs = {"X": (models.FLOAT, [None]), "INDEX": (models.FLOAT, [None])}
    models.save(file, nodes, inputs, {"Y": (models.FLOAT, ["N", 1])}, {"SHAPE": np.array([-1, 1])})
    instance = open_model(RAGGED)
    replies = execute(instance, one(f32([[1, 1]])), one(f32([[1, 1, 1]])))
    assert [values(reply) for reply in replies] == [{"Y": [[2 + 5]]}, {"Y": [[5 + 5]]}]
    assert values(*execute(instance, one(f32([[1, 1]])))) == {"Y": [[2 + 2]]}


def test_a_batch_output_is_handed_out_by_the_shapes_of_its_source(file: Path, open_model: Opener) -> None:
    models.identity(file, dims=[None])
    config = {
        "max_batch_size": 8,
        "input": [io("X", "TYPE_FP32", -1, allow_ragged_batch=True)],
        "output": [io("Y", "TYPE_FP32", -1)],
        "batch_output": [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["Y"], "source_input": ["X"]}],
    }
    instance = open_model(config)
    replies = execute(instance, one(f32([[1, 2]])), one(f32([[3, 4, 5]])))
    assert [values(reply) for reply in replies] == [{"Y": [[1, 2]]}, {"Y": [[3, 4, 5]]}]
    assert values(*execute(instance, one(f32([[6, 7]])))) == {"Y": [[6, 7]]}


def test_state_outputs_are_always_given(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    state = {"input_name": "B", "output_name": "DIFFERENCE", "data_type": "TYPE_INT32", "dims": [4]}
    config = {
        "max_batch_size": 8,
        "input": [io("A", "TYPE_INT32", 4)],
        "output": [io("SUM", "TYPE_INT32", 4)],
        "sequence_batching": {"state": [state]},
    }
    (reply,) = execute(open_model(config), pair([[1] * 4], [[1] * 4], ["SUM"]))
    assert list(values(reply)) == ["SUM", "DIFFERENCE"]


# -- loading


def test_a_configuration_is_completed_from_the_file(file: Path, open_model: Opener) -> None:
    models.add_sub(file)
    backend = OnnxRuntimeBackend()
    completed = backend.complete_config(model_spec(file.parent.parent))
    assert completed == {**ADD_SUB, "name": "m", "max_batch_size": 4, "dynamic_batching": {}}
    backend.close()
    spec = model_spec(file.parent.parent)
    spec.backend_config = {"default-max-batch-size": "16"}
    assert backend.complete_config(spec)["max_batch_size"] == 16
    backend.close()


def test_a_complete_configuration_is_not_looked_up_in_the_file(file: Path) -> None:
    spec = model_spec(file.parent.parent, ADD_SUB)
    assert OnnxRuntimeBackend().complete_config(spec) == spec.config


def test_external_data_in_a_directory_of_the_model(file: Path, open_model: Opener) -> None:
    weights = np.arange(400, dtype=np.float32)
    inner = file / "model.onnx"
    nodes = [models.node("Add", ["X", "W"], ["Y"])]
    models.save(inner, nodes, {"X": (models.FLOAT, [400])}, {"Y": (models.FLOAT, [400])}, {"W": weights})
    onnx.save(onnx.load(inner), inner, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (file / "weights.bin").stat().st_size >= weights.nbytes
    (reply,) = execute(open_model({}, complete=True), one(np.ones(400, np.float32)))
    assert values(reply)["Y"][-1] == 400


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"input": [io("A", "TYPE_INT32", 4), io("C", "TYPE_INT32", 4)]},
            InvalidArgument,
            "unexpected inference input 'C', allowed inputs are: A, B",
        ),
        (
            {"output": [io("NOPE", "TYPE_INT32", 4)]},
            InvalidArgument,
            "unexpected inference output 'NOPE', allowed outputs are: DIFFERENCE, SUM",
        ),
        (
            {"input": [io("A", "TYPE_FP32", 4), io("B", "TYPE_INT32", 4)]},
            InvalidArgument,
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', model provides "
            "TYPE_INT32",
        ),
        (
            {"input": [io("A", "TYPE_INT32", 5), io("B", "TYPE_INT32", 4)]},
            InvalidArgument,
            "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,5])",
        ),
        (
            {"parameters": {"execution_mode": {"string_value": "7"}}},
            InvalidArgument,
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 7 .",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_model(
    file: Path, open_model: Opener, change: dict[str, Any], error: type[EdgeServeError], text: str
) -> None:
    models.add_sub(file)
    with pytest.raises(error) as caught:
        open_model({**ADD_SUB, **change})
    assert without_advice(caught.value.message, text) == text


def test_a_missing_file(file: Path, open_model: Opener) -> None:
    with pytest.raises(Unavailable) as caught:
        open_model(ADD_SUB)
    said = f"unable to find '{file}' for model instance 'm'"
    assert caught.value.message == f"{said}; m/1/ is empty: put the model's file there, as model.onnx"


def test_a_file_that_is_no_model(file: Path, open_model: Opener) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(b"nothing")
    with pytest.raises(Internal) as caught:
        open_model(ADD_SUB)
    assert caught.value.message.startswith("onnx runtime error 7: Load model from ")


@pytest.mark.parametrize(
    ("kind", "side", "accelerator", "provider"),
    [("GPU", "gpu", "cuda", "CUDA"), ("GPU", "gpu", "tensorrt", "Tensorrt"), ("CPU", "cpu", "openvino", "OpenVINO")],
)
def test_a_provider_that_is_not_there(
    file: Path, on_cpu: Opener, kind: str, side: str, accelerator: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.add_sub(file)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    accelerators = {f"{side}_execution_accelerator": [{"name": accelerator}]}
    with pytest.raises(Unavailable) as caught:
        on_cpu({**ADD_SUB, "optimization": {"execution_accelerators": accelerators}}, kind=kind)
    assert caught.value.message.startswith(f"onnxruntime has no {provider}ExecutionProvider, which the model asks for")


def test_parameters_reach_the_session(file: Path, on_cpu: Opener) -> None:
    models.add_sub(file)
    values = {
        "intra_op_thread_count": "2", "session.set_denormal_as_zero": "1", "enable_mem_arena": "0",
        "memory.enable_memory_arena_shrinkage": "", "execution_mode": "1",
    }  # fmt: skip
    parameters = {key: {"string_value": value} for key, value in values.items()}
    instance = on_cpu({**ADD_SUB, "parameters": parameters, "optimization": {"graph": {"level": 2}}})
    assert isinstance(instance, OnnxInstance)
    with instance._session as session:
        options = session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert not options.enable_cpu_mem_arena
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert options.graph_optimization_level.name == "ORT_DISABLE_ALL"
    assert instance._run_options is not None


def test_runs_side_by_side_have_a_session_of_their_own(file: Path) -> None:
    models.add_sub(file)
    alone, together = (make(file, SessionSettings(intra_op_threads=count), [Provider(CPU)], "m") for count in (2, 1))
    shared = SharedSession(alone)
    shared.divide(together)
    with shared as first:
        assert first is alone
        with shared as second, shared as third:
            assert second is together
            assert third is together
    with shared as first:
        assert first is alone
    with pytest.raises(ZeroDivisionError), shared:  # a run that fails is over, too
        _ = 1 / 0
    with shared as first:
        assert first is alone


def test_an_output_that_is_no_tensor_need_not_be_served(file: Path, open_model: Opener) -> None:
    """scikit-learn's ZipMap: with the other outputs listed the model loads, and batches."""
    models.zip_map(file)
    label = io("output_label", "TYPE_INT64", 1, reshape={"shape": []})
    with pytest.raises(Internal, match="scikit-learn's ZipMap"):
        open_model({}, complete=True)

    listed = {"output": [label], "max_batch_size": 8}
    completed = OnnxRuntimeBackend().complete_config(model_spec(file.parent.parent, listed))
    (reply,) = execute(open_model(listed, complete=True), one(f32([[1, 2, 3, 4]] * 2), outputs=["output_label"]))

    assert (completed["max_batch_size"], [tensor["name"] for tensor in completed["input"]]) == (8, ["X"])
    assert values(reply) == {"output_label": [0, 0]}


def test_a_session_is_made_and_run_before_the_first_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[Array]] = []

    class Watched(Session):  # type: ignore[misc]  # the library has no types
        def run(self, *arguments: Any) -> Any:
            made.append(super().run(*arguments))
            return made[-1]

    monkeypatch.setattr("edge_serve.backends.onnxruntime.session.Session", Watched)
    before = set(os.listdir("/proc/self/task"))
    warm_up()
    assert [output.tolist() for (output,) in made] == [[2.0]]
    assert set(os.listdir("/proc/self/task")) <= before, "it starts no threads"
