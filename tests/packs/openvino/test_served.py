"""Models of the pack `openvino`, with the real library, through a running server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from tritonclient import http
from tritonclient.utils import InferenceServerException

from edge_serve.commands.check import run as check
from tests.backends.onnx_models import FLOAT, STRING, add_sub, identity, node, save
from tests.packs.environments import backends_with
from tests.packs.openvino.tensorflow_files import LITE_INPUT, expected, graph, lite, write_saved_model
from tests.packs.scenes.client import infer
from tests.server.running import Running, running

WEIGHTS = np.random.default_rng(7).normal(size=(6, 4)).astype(np.float32)
X = np.random.default_rng(8).normal(size=(3, 6)).astype(np.float32)
LARGE = np.random.default_rng(9).normal(size=(256, 256)).astype(np.float32)
#: data type of config.pbtxt -> the one of ONNX
TYPES = {
    "BOOL": TensorProto.BOOL, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
}  # fmt: skip
OPENVINO = 'backend: "openvino"\n'
BATCHES = OPENVINO + "max_batch_size: 8\n"


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def convert(backends: Path, source: Path, target: Path) -> None:
    """Write a model in OpenVINO's format, with the library of the pack."""
    python = backends / "openvino/venv/bin/python"
    code = f"import openvino as ov; ov.save_model(ov.Core().read_model({str(source)!r}), {str(target)!r}, False)"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([python, "-c", code], check=True, timeout=60)


#: makes the version directory of a model with a name, a configuration, and a file; the path of the file
Make = Callable[..., Path]


def write(root: Path, backends: Path) -> None:
    """Write the models that the tests ask."""

    def model(name: str, config: str = "", file: str = "model.onnx") -> Path:
        (root / name / "1").mkdir(parents=True)
        if config:
            (root / name / "config.pbtxt").write_text(config)
        return root / name / "1" / file

    write_formats(model, backends)
    write_configurations(model)
    (root / "two_steps/1").mkdir(parents=True)
    (root / "two_steps/config.pbtxt").write_text(ENSEMBLE)


def write_formats(model: Make, backends: Path) -> None:
    """Write the models of other formats than ONNX."""
    frozen = model("graph", file="model.graphdef")
    frozen.write_bytes(graph(WEIGHTS))
    write_saved_model(model("saved", file="model.savedmodel"), WEIGHTS)
    write_saved_model(
        model(
            "from_triton",
            'platform: "tensorflow_savedmodel" max_batch_size: 4\n'
            'input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] }\n'
            'output { name: "scores" data_type: TYPE_FP32 dims: [ 4 ] }',
            "model.savedmodel",
        ),
        WEIGHTS,
    )
    model("lite", file="model.tflite").write_bytes(lite())
    inside = 'output { name: "product" data_type: TYPE_FP32 dims: [ 4 ] }'
    model("inside", f'platform: "tensorflow_graphdef" max_batch_size: 2 {inside}', "model.graphdef").write_bytes(
        graph(WEIGHTS)
    )
    convert(backends, frozen, model("ir", file="model.xml"))
    model("names", file="model.xml").write_text(NAMES)
    model("names_to_eight", OPENVINO + "max_batch_size: 8\n", "model.xml").write_text(NAMES)


def write_configurations(model: Make) -> None:
    """Write ONNX models, each for something that a configuration or a model has."""
    add_sub(model("onnx", OPENVINO), ("N", 4), FLOAT)
    for name, kind in TYPES.items():
        identity(model(f"type_{name.lower()}", OPENVINO), kind, ("N", 5))
    identity(model("text", OPENVINO), STRING, ("N", 2))
    save(
        model("through", OPENVINO), [node("Relu", ["X"], ["Y"])],
        {"X": (FLOAT, ("N", 2))}, {"X": (FLOAT, ("N", 2)), "Y": (FLOAT, ("N", 2))},
    )  # fmt: skip
    any_count = "".join(
        f'{side} {{ name: "{name}" data_type: TYPE_STRING dims: [ -1 ] }}\n'
        for side, name in (("input", "X"), ("output", "Y"))
    )
    identity(model("texts_of_any_count", OPENVINO + any_count), STRING, ("N",))
    add_sub(model("padded", BATCHES + parameters(ENABLE_BATCH_PADDING="YES")), (1, 4), FLOAT)
    add_sub(model("fixed", BATCHES), (1, 4), FLOAT)
    identity(model("heights", BATCHES), FLOAT, ("N", 3, None, 8))
    declared = "".join(
        f'{side} {{ name: "{name}" data_type: TYPE_INT32 dims: [ 4 ] }}\n'
        for side, names in (("input", "AB"), ("output", ("SUM", "DIFFERENCE")))
        for name in names
    )
    add_sub(model("converted", BATCHES + declared), ("N", 4), FLOAT)
    reshaped = (
        'input { name: "X" data_type: TYPE_FP32 dims: [ 7 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 7 ] }'
    )
    identity(model("reshaped", BATCHES + parameters(RESHAPE_IO_LAYERS="yes") + reshaped), FLOAT, ("N", 5))
    exact = save(
        model("exact", BATCHES), [node("MatMul", ["X", "W"], ["Y"])],
        {"X": (FLOAT, ("N", 256))}, {"Y": (FLOAT, ("N", 256))}, {"W": LARGE},
    )  # fmt: skip
    (model("bf16", BATCHES + parameters(HINT_BF16="YES"))).write_bytes(exact.read_bytes())
    rows = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }'
    save(
        model("other_rows", BATCHES + rows), [node("Concat", ["X", "X"], ["Y"], axis=0)],
        {"X": (FLOAT, ("N", 4))}, {"Y": (FLOAT, (None, 4))},
    )  # fmt: skip
    add_sub(model("streams", BATCHES + "instance_group { count: 3 }\n"), ("N", 4), FLOAT)
    hints = parameters(PERFORMANCE_HINT="LATENCY", NUM_STREAMS="1", INFERENCE_NUM_THREADS="1", TARGET_DEVICE="cpu")
    add_sub(model("hints", BATCHES + hints), ("N", 4), FLOAT)
    save(
        model("sum_state", OPENVINO + SEQUENCE),
        [node("Add", ["X", "BEFORE"], ["AFTER"]), node("Identity", ["AFTER"], ["Y"])],
        {"X": (FLOAT, ("N", 1)), "BEFORE": (FLOAT, ("N", 1))}, {"Y": (FLOAT, ("N", 1)), "AFTER": (FLOAT, ("N", 1))},
    )  # fmt: skip


SEQUENCE = """max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching { state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ]
  initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } }
"""
ENSEMBLE = """platform: "ensemble" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling { step { model_name: "from_triton" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "scores" value: "s" } }
  step { model_name: "onnx" model_version: -1 input_map { key: "A" value: "s" } input_map { key: "B" value: "s" }
    output_map { key: "SUM" value: "SUM" } } }
"""


#: OpenVINO's format, with several names for each tensor, as in Triton's qa/openvino_models
NAMES = """<net name="n" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1,4" element_type="f32"/>
<output><port id="0" precision="FP32" names="x:0,Func/input/_0:0"><dim>1</dim><dim>4</dim></port></output></layer>
<layer id="1" name="y" type="ReLU" version="opset1"><input><port id="0"><dim>1</dim><dim>4</dim></port></input>
<output><port id="1" precision="FP32" names="y,Func/output/_1:0"><dim>1</dim><dim>4</dim></port></output></layer>
<layer id="2" name="r" type="Result" version="opset1"><input><port id="0"><dim>1</dim><dim>4</dim></port></input>
</layer></layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>
"""


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return backends_with("openvino", tmp_path_factory.mktemp("backends"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, backends: Path) -> Path:
    root = tmp_path_factory.mktemp("models")
    write(root, backends)
    return root


@pytest.fixture(scope="module")
def server(models: Path, backends: Path) -> Iterator[Running]:
    with running(f"--model-repository={models}", f"--backend-directory={backends}", limit=60) as started:
        yield started


@pytest.mark.parametrize(("model", "name"), [("graph", "x"), ("saved", "x"), ("from_triton", "x"), ("ir", "x:0")])
def test_each_format_computes_the_same(server: Running, model: str, name: str) -> None:
    (scores,) = infer(server, model, {name: X}).values()
    np.testing.assert_allclose(scores, expected(X, WEIGHTS), atol=1e-6)


def test_a_configuration_is_completed_as_in_triton(server: Running) -> None:
    """As in Triton (qa/L0_model_config). A model that batches only by its configuration gets no dynamic batcher."""
    with http.InferenceServerClient(server.url) as client:
        config = client.get_model_config("names")
        batched = client.get_model_config("names_to_eight")
    assert [tensor["name"] for side in ("input", "output") for tensor in config[side]] == [
        "Func/input/_0:0", "Func/output/_1:0",
    ]  # fmt: skip
    assert (batched["max_batch_size"], batched["input"][0]["dims"]) == (8, [4])
    assert "dynamic_batching" not in batched
    (answer,) = infer(server, "names_to_eight", {"Func/input/_0:0": X[:, :4]}).values()
    np.testing.assert_array_equal(answer, np.maximum(X[:, :4], 0))


def test_a_tensor_inside_a_graph_may_be_an_output(server: Running) -> None:
    """As in Triton's quickstart, whose inception_graphdef has another node behind the output of its configuration."""
    found = infer(server, "inside", {"x": X[:2]})
    assert list(found) == ["product"]
    np.testing.assert_allclose(found["product"], X[:2] @ WEIGHTS, atol=1e-5)


def test_a_model_of_tensorflow_lite(server: Running) -> None:
    (y,) = infer(server, "lite", {LITE_INPUT: np.ones((1, 4), np.float32)}).values()
    np.testing.assert_allclose(y, [[2.5, 3.0]])


def test_configurations_are_completed(server: Running) -> None:
    config = json.loads(server.get("/v2/models/onnx/config")[1])
    assert (config["backend"], config["max_batch_size"], config["dynamic_batching"] is not None) == (
        "openvino",
        4,
        True,
    )
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["input"]] == [
        ("A", "TYPE_FP32", [4]), ("B", "TYPE_FP32", [4]),
    ]  # fmt: skip
    config = json.loads(server.get("/v2/models/saved/config")[1])
    assert (config["platform"], config["input"][0]["name"], config["output"][0]["name"]) == (
        "tensorflow_savedmodel", "x", "scores",
    )  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_each_type_makes_the_round_trip(server: Running, name: str) -> None:
    if name == "BF16":
        values = np.array([[1.0, -2.5, 0.0, 3.0, 100.0]], ml_dtypes.bfloat16)
    else:
        kind = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"}.get(name, name.lower())
        values = np.array([[0, 1, 2, 3, 100]]).astype(kind)
    (found,) = infer(server, f"type_{name.lower()}", {"X": values}, type_X=name).values()
    np.testing.assert_array_equal(found, values)


def test_strings_make_the_round_trip(server: Running) -> None:
    values = np.array([[b"a", "größer".encode()], [b"", b"x" * 1000]], object)
    (found,) = infer(server, "text", {"X": values}).values()
    assert found.tolist() == values.tolist()


def test_a_string_that_would_be_cut_off_is_refused(server: Running) -> None:
    with pytest.raises(InferenceServerException, match="a string ends in a zero byte"):
        infer(server, "text", {"X": np.array([[b"a\0b", b"ab\0"]], object)})


def test_an_output_may_be_an_input(server: Running) -> None:
    for rows in (1, 4, 3):
        values = np.arange(-2, 2 * rows - 2, dtype=np.float32).reshape(rows, 2)
        found = infer(server, "through", {"X": values})
        np.testing.assert_array_equal(found["X"], values)
        np.testing.assert_array_equal(found["Y"], np.maximum(values, 0))


def test_a_tensor_may_have_no_strings(server: Running) -> None:
    for values in (np.empty(0, object), np.array([b"a"], object)):
        (found,) = infer(server, "texts_of_any_count", {"X": values}).values()
        assert found.tolist() == values.tolist()


@pytest.mark.parametrize("model", ["onnx", "padded", "fixed", "streams", "hints"])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_batches_of_any_size(server: Running, model: str, rows: int) -> None:
    a = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    found = infer(server, model, {"A": a, "B": a + 1})
    np.testing.assert_array_equal(found["SUM"], 2 * a + 1)
    np.testing.assert_array_equal(found["DIFFERENCE"], np.full_like(a, -1))


@pytest.mark.parametrize("model", ["onnx", "padded", "streams"])
def test_requests_at_once_get_their_own_rows(server: Running, model: str) -> None:
    def ask(number: int) -> bool:
        a = np.full((1 + number % 2, 4), number, np.float32)
        found = infer(server, model, {"A": a, "B": a})
        return bool((found["SUM"] == 2 * number).all()) and len(found["SUM"]) == len(a)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(200)))


@pytest.mark.parametrize("rows", [1, 3])
def test_an_output_with_other_rows_than_its_batch_fails_its_request_only(server: Running, rows: int) -> None:
    with pytest.raises(
        InferenceServerException, match="an output has other rows than its batch: write max_batch_size: 0"
    ):
        infer(server, "other_rows", {"X": np.ones((rows, 4), np.float32)})
    a = np.ones((rows, 4), np.float32)
    assert infer(server, "onnx", {"A": a, "B": a})["SUM"].tolist() == [[2] * 4] * rows


def test_the_precision_is_fp32_unless_asked_otherwise(server: Running) -> None:
    """On a processor with bfloat16 the library's own choice is that, which is 1e-2 off here."""
    x = np.random.default_rng(10).normal(size=(4, 256)).astype(np.float32)
    wanted = x.astype(np.float64) @ LARGE.astype(np.float64)
    off = {name: float(np.abs(infer(server, name, {"X": x})["Y"] - wanted).max()) for name in ("exact", "bf16")}
    assert off["exact"] < 1e-4
    assert off["bf16"] < 1
    if re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", Path("/proc/cpuinfo").read_text()):
        assert off["bf16"] > 1e-3


def test_one_output_may_be_wanted(server: Running) -> None:
    a = np.ones((1, 4), np.float32)
    found = infer(server, "onnx", {"A": a, "B": a}, outputs=[http.InferRequestedOutput("DIFFERENCE")])
    assert list(found) == ["DIFFERENCE"]


def test_types_of_the_configuration_are_converted(server: Running) -> None:
    a = np.arange(4, dtype=np.int32).reshape(1, 4)
    found = infer(server, "converted", {"A": a, "B": a})
    assert found["SUM"].dtype == np.int32
    assert found["SUM"].tolist() == [[0, 2, 4, 6]]


def test_dims_of_the_configuration_may_reshape_the_model(server: Running) -> None:
    x = np.arange(7, dtype=np.float32).reshape(1, 7)
    np.testing.assert_array_equal(infer(server, "reshaped", {"X": x})["Y"], x)


@pytest.mark.parametrize("height", [1, 5, 17])
def test_variable_heights(server: Running, height: int) -> None:
    x = np.random.default_rng(height).normal(size=(2, 3, height, 8)).astype(np.float32)
    np.testing.assert_array_equal(infer(server, "heights", {"X": x})["Y"], x)


def test_states_of_a_sequence_are_kept(server: Running) -> None:
    sums = [
        infer(
            server, "sum_state", {"X": np.array([[value]], np.float32)}, sequence_id=7, sequence_start=i == 0,
            sequence_end=i == 2,
        )["Y"].item()
        for i, value in enumerate((1.0, 10.0, 100.0))
    ]  # fmt: skip
    assert sums == [1, 11, 111]


def test_a_step_of_an_ensemble(server: Running) -> None:
    found = infer(server, "two_steps", {"x": X})["SUM"]
    np.testing.assert_allclose(found, 2 * expected(X, WEIGHTS), atol=1e-6)


def test_check_compares_the_configuration_with_the_model(
    models: Path, backends: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--backend-directory={backends}", "--infer", "--model=from_triton", "--model=onnx"]
    assert check([*arguments, str(models)]) == 0
    out = capfd.readouterr().out
    assert re.search(r"input x\s+TYPE_FP32 \[-1, 6\]\s+TYPE_FP32 \[-1, 6\]", out), out
    assert "2 of 2 models answer as their configuration says" in out


def test_a_service_that_forbids_new_code_is_told_the_line(backends: Path, models: Path) -> None:
    """As MemoryDenyWriteExecute=yes, by the kernel's own switch (PR_SET_MDWE, Linux 6.3)."""
    python = backends / "openvino/venv/bin/python"
    code = f"""
import ctypes, sys
from pathlib import Path
sys.path[:0] = [{str(Path(__file__).parents[3])!r}]
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit("no MDWE")
from edge_serve.backends.base import InstanceSpec, ModelSpec
from packs.openvino.backend import Backend
directory = Path({str(models / "exact")!r})
config = {{"name": "exact", "default_model_filename": "model.onnx"}}
spec = ModelSpec("exact", 1, directory, directory / "1", config)
config.update(Backend().complete_config(spec))
Backend().open(spec, [InstanceSpec("exact_0")])
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    if "no MDWE" in done.stderr:
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert "MemoryDenyWriteExecute=no into a drop-in of edge-serve.service" in done.stderr, done


@pytest.mark.slow
def test_no_request_fails_while_versions_are_swapped(tmp_path: Path, backends: Path) -> None:
    """An overwritten file is loaded as a new version of the model, under load."""
    path = add_sub(tmp_path / "m/1/model.onnx", ("N", 4), FLOAT)
    (tmp_path / "m/config.pbtxt").write_text(OPENVINO)
    ended = threading.Event()
    arguments = (f"--model-repository={tmp_path}", f"--backend-directory={backends}", "--model-control-mode=explicit")
    with running(*arguments, "--load-model=m", limit=60) as server:

        def ask() -> int:
            count = 0
            while not ended.is_set():
                a = np.full((1, 4), count, np.float32)
                assert infer(server, "m", {"A": a, "B": a})["SUM"].tolist() == [[2.0 * count] * 4]
                count += 1
            return count

        with ThreadPoolExecutor(4) as pool:
            askers = [pool.submit(ask) for _ in range(4)]
            for i in range(3):
                path.write_bytes(path.read_bytes())
                os.utime(path, (i, i))
                assert server.post("/v2/repository/models/m/load")[0] == 200
            ended.set()
            assert all(asker.result() > 0 for asker in askers)
        assert len(re.findall(r"model m version 1 ready", server.log())) == 4


def tensors(inputs: str = "dims: [ 4 ]", kind: str = "TYPE_FP32") -> str:
    names = [("input", "A"), ("input", "B"), ("output", "SUM"), ("output", "DIFFERENCE")]
    return BATCHES + "".join(f'{side} {{ name: "{name}" data_type: {kind} {inputs} }}\n' for side, name in names)


BROKEN = {
    "empty": ("", "model.onnx", b"", r"the file is empty \(0 bytes\): copy or export it again"),
    "cut": ("", "model.onnx", "cut", "OpenVINO .* cannot read '.*model.onnx'"),
    "text": ("", "model.xml", b"hello", "OpenVINO .* cannot read '.*model.xml'"),
    "torch": ("", "model.xml", b"PK\x03\x04" + bytes(100), 'is a ZIP archive, as PyTorch writes: name it model.pt'),
    "lfs": ("", "model.onnx", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, .*: git lfs pull"),
    "bad_graph": ("", "model.graphdef", b"\xff" * 50, "OpenVINO .* cannot read"),
    "bad_tflite": ("", "model.tflite", b"\x1c\x00\x00\x00TFL3" + bytes(10), "OpenVINO .* cannot read"),
    "operator": ("", "model.onnx", "operator", "MyOp.*export the model without these operators"),
    "dims": (tensors("dims: [ 5 ]"), "model.onnx", "good", r"model 'dims', tensor 'A': the model expects 2 dimensions"),
    "names": (tensors().replace('"A"', '"C"'), "model.onnx", "good", "unexpected inference input 'C', allowed .* A, B"),
    "kind": (tensors(kind="TYPE_STRING"), "model.onnx", "good", "expects datatype TYPE_STRING for input 'A'"),
    "threads": (tensors() + parameters(INFERENCE_NUM_THREADS="-1"), "model.onnx", "good",
                "expected the parameter 'INFERENCE_NUM_THREADS' to be a non-negative number, got -1"),
    "device": (tensors() + parameters(TARGET_DEVICE="GPU"), "model.onnx", "good",
               "TARGET_DEVICE of model 'device' is 'GPU', and OpenVINO finds the devices CPU here"),
    "extension": (tensors() + parameters(CPU_EXTENSION_PATH="/nowhere.so"), "model.onnx", "good",
                  "CPU_EXTENSION_PATH of model 'extension', '/nowhere.so', cannot be loaded"),
    "absent": (OPENVINO, "other.bin", b"x", "unable to find '.*model.xml' for model 'absent'"),
    "weights": ("", "model.xml", "weights", "put the file of weights, model.bin, beside model.xml"),
    "on_gpu": (tensors() + "instance_group { kind: KIND_MODEL }", "model.onnx", "good",
               "unable to load model 'on_gpu', Triton OpenVINO backend supports only Kind CPU and AUTO"),
}  # fmt: skip


@pytest.mark.slow
def test_bad_models_say_why_and_the_others_are_served(tmp_path: Path, models: Path, backends: Path) -> None:
    good = add_sub(tmp_path / "models/good/1/model.onnx", ("N", 4), FLOAT).read_bytes()
    for name, (config, file, content, _) in BROKEN.items():
        path = tmp_path / "models" / name / "1" / file
        path.parent.mkdir(parents=True)
        (path.parents[1] / "config.pbtxt").write_text(config or OPENVINO)
        match content:
            case bytes():
                path.write_bytes(content)
            case "operator":
                save(path, [node("MyOp", ["X"], ["Y"])], {"X": (FLOAT, (1,))}, {"Y": (FLOAT, (1,))})
            case "weights":
                path.write_bytes((models / "ir/1/model.xml").read_bytes())
            case _:
                path.write_bytes(good if content == "good" else good[: len(good) // 2])
    (tmp_path / "models/good/config.pbtxt").write_text(OPENVINO)
    with running(
        f"--model-repository={tmp_path / 'models'}",
        f"--backend-directory={backends}",
        "--exit-on-error=false",
        limit=60,
    ) as server:
        reasons = {one["name"]: one.get("reason", "") for one in json.loads(server.post("/v2/repository/index")[1])}
        wrong = {
            name: reasons[name] for name, (*_, said) in BROKEN.items() if not re.search(said, reasons[name], re.DOTALL)
        }
        assert wrong == {}
        assert all("\n" not in reason for reason in reasons.values())
        a = np.ones((1, 4), np.float32)
        assert infer(server, "good", {"A": a, "B": a})["SUM"].tolist() == [[2] * 4]
