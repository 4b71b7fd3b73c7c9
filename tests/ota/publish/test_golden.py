"""Golden tests of bundles: inputs in each form, outputs from a real server, read by the server's own reader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_serve.golden.reader import GoldenTest, read_golden
from ota.documents.manifest import read_manifest
from ota.documents.names import blob_path
from tests.golden.golden_files import add_sub
from tests.ota.publish.publisher import Publisher, one_sentence
from tests.server.running import Running, python_model, running

MODELS = Path(__file__).parents[3] / "model_repository"
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one)]) for one in tensors]
"""
ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a model of numbers and one of strings."""
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(MODELS / "simple", models / "simple")
    python_model(models, "text", ECHO, ECHO_CONFIG)
    with running("--model-repository", str(models)) as found:
        yield found


def bundled(publisher: Publisher, model: str, release: int) -> GoldenTest:
    """Return a bundle's golden test, as the server reads it in the directory of the release."""
    bundle = publisher.base / f"{model}.{release}"
    manifest = read_manifest((bundle / "manifest.json").read_bytes(), model, release)
    place = publisher.base / "devices" / f"{model}.{release}"
    for entry in manifest.models[model]:
        (place / entry.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(bundle / blob_path(entry.sha256), place / entry.path)
    found = read_golden(place)
    assert found is not None
    return found


def test_inputs_of_the_warm_up(publisher: Publisher, server: Running) -> None:
    shutil.copytree(MODELS / "simple", publisher.base / "simple")
    flags = ("--model", "simple", "--golden-from", f"http://{server.url}", "--budget", "p95_ms=250", "--rtol", 0)
    publisher.run("bundle", "simple", "--release", 1, *flags)
    assert "without a golden test" not in publisher.out
    golden = bundled(publisher, "simple", 1)
    assert [one.name for one in golden.samples] == ["one-row"]
    assert golden.budget.p95_ms == 250
    publisher.run("bundle", "simple", "--release", 1, *flags, "--out", "again")
    first, again = (publisher.base / name / "manifest.json" for name in ("simple.1", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_inputs_in_files_and_those_that_are_there(publisher: Publisher, server: Running) -> None:
    shutil.copytree(MODELS / "simple", publisher.base / "simple")
    row = np.arange(16, dtype=np.int32).reshape(1, 16)
    np.savez(publisher.base / "row.npz", INPUT0=row, INPUT1=row)
    entry = {"datatype": "INT32", "shape": [1, 16], "data": [[1] * 16]}
    ones = {"inputs": [{"name": name, **entry} for name in ("INPUT0", "INPUT1")]}
    (publisher.base / "ones.json").write_text(json.dumps([ones, ones]))
    flags = ("--model", "simple", "--golden-from", server.url)
    inputs = ("--golden-inputs", "row.npz", "--golden-inputs", "simple=ones.json")
    publisher.run("bundle", "simple", "--release", 1, *flags, *inputs)
    golden = bundled(publisher, "simple", 1)
    assert [one.name for one in golden.samples] == ["row", "ones-1", "ones-2"]
    place = publisher.base / "devices/simple.1/golden"
    assert np.frombuffer((place / "row.out.OUTPUT0").read_bytes(), np.int32).tolist() == (2 * row[0]).tolist()
    shutil.copytree(place, publisher.base / "simple/golden")
    (publisher.base / "simple/golden/row.out.OUTPUT0").write_bytes(bytes(64))
    publisher.run("bundle", "simple", "--release", 2, *flags)
    assert len(bundled(publisher, "simple", 2).samples) == 3
    data = (publisher.base / "devices/simple.2/golden/row.out.OUTPUT0").read_bytes()
    assert np.frombuffer(data, np.int32).tolist() == (2 * row[0]).tolist()
    publisher.run("bundle", "simple", "--release", 3, "--model", "simple")
    assert len(bundled(publisher, "simple", 3).samples) == 3


def test_an_ensemble_with_inputs_for_one_model(publisher: Publisher, server: Running) -> None:
    step = 'ensemble_scheduling { step [ { model_name: "simple" model_version: -1 } ] }'
    publisher.model("all", {"config.pbtxt": f'platform: "ensemble" {step}'.encode()})
    shutil.copytree(MODELS / "simple", publisher.base / "simple")
    models = ("--model", "all", "--model", "simple", "--golden-from", server.url)
    publisher.run("bundle", "all", "--release", 1, *models)
    assert "note: all without a golden test" in publisher.out
    config = publisher.base / "simple/config.pbtxt"
    config.write_text(config.read_text().partition("model_warmup")[0])
    publisher.run("bundle", "all", "--release", 2, *models, status=2)
    assert "no inputs for any golden test of all, simple" in one_sentence(publisher.err)


def test_strings(publisher: Publisher, server: Running) -> None:
    publisher.model("text", {"config.pbtxt": ECHO_CONFIG.encode(), "1/model.py": ECHO.encode()})
    inputs = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [2], "data": ["a", "bé"]}]}
    (publisher.base / "in.json").write_text(json.dumps(inputs))
    publisher.run(
        "bundle", "text", "--release", 1, "--model", "text", "--golden-from", server.url, "--golden-inputs", "in.json"
    )
    bundled(publisher, "text", 1)
    data = (publisher.base / "devices/text.1/golden/in.out.OUT").read_bytes()
    assert data == b"\x01\0\0\0a\x03\0\0\0b\xc3\xa9"


def test_models_that_give_no_golden_test(publisher: Publisher, server: Running) -> None:
    def refused(*flags: object, status: int = 2) -> str:
        publisher.run("bundle", "det", "--release", 1, "--model", "det", *flags, status=status)
        assert not (publisher.base / "det.1").exists()
        return one_sentence(publisher.err)

    publisher.model("det")
    ask = ("--golden-from", server.url)
    assert "there are no inputs for the golden test of det" in refused(*ask)
    (publisher.base / "in.json").write_text(
        '{"inputs": [{"name": "A", "datatype": "FP32", "shape": [2], "data": [1]}]}'
    )
    assert "A has 1 elements and the shape [2]" in refused(*ask, "--golden-inputs", "in.json")
    (publisher.base / "in.json").write_text(
        '{"inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}]}'
    )
    assert "unknown model" in refused(*ask, "--golden-inputs", "in.json", status=3)
    assert "did not answer for det" in refused("--golden-from", "127.0.0.1:1", "--golden-inputs", "in.json", status=3)
    assert "add --golden-from" in refused("--golden-inputs", "in.json")
    assert "is not a URL" in refused("--golden-from", "http://x:y", "--golden-inputs", "in.json")
    other = ("--golden-from", f"127.0.0.1:{server.metrics}", "--golden-inputs", "in.json")
    assert "(HTTP 405)" in refused(*other, status=3)
    np.savez(publisher.base / "pickled.npz", A=np.array([{}], dtype=object))
    assert "pickled.npz has no inputs" in refused(*ask, "--golden-inputs", "pickled.npz")
    assert "no golden test for a budget" in refused("--budget", "p95_ms=2")
    assert "with one of p95_ms, memory_bytes, requests" in refused("--budget", "speed=2")
    assert "does not exist" in refused(*ask, "--golden-inputs", "nothing.npz")
    (publisher.base / "det/golden").mkdir()
    golden = publisher.base / "det/golden/golden.json"
    entry = {"name": "IN", "datatype": "FP32", "shape": [1], "file": "gone"}
    golden.write_text(json.dumps({"schema": 1, "samples": [{"name": "a", "inputs": [entry], "outputs": [entry]}]}))
    assert "names 'gone', which is not in golden/" in refused()
    golden.write_text("{")
    assert "is not JSON" in refused()


BAD_OPTIONS = [
    (("--rtol", "nan"), "--rtol nan: expected a finite number"),
    (("--atol", "-1"), "--atol -1.0: expected a finite number"),
    (("--budget", "p95_ms=inf"), "'p95_ms=inf' is none"),
    (("--budget", "requests=200000"), "at most 100000 requests"),
]


@pytest.mark.parametrize(("flags", "sentence"), BAD_OPTIONS)
def test_options_that_devices_would_refuse(publisher: Publisher, flags: tuple[str, ...], sentence: str) -> None:
    add_sub(publisher.model())
    publisher.run("bundle", "det", "--release", 1, "--model", "det", *flags, status=2)
    assert sentence in one_sentence(publisher.err)


@pytest.mark.parametrize(
    ("datatype", "data", "sentence"),
    [
        ("INT8", 300, "an element of INT8 is not from -128 to 127"),
        ("INT32", 1.9, "has the element '1.9', which is no INT32"),
        ("INT32", True, "has the element 'True', which is no INT32"),
        ("FP32", 1e39, "FloatingPointError"),
        ("BYTES", 1, "has the element '1', which is no BYTES"),
        ("BOOL", 2, "has the element '2', which is no BOOL"),
    ],
)
def test_elements_that_a_datatype_does_not_have(
    publisher: Publisher, datatype: str, data: object, sentence: str
) -> None:
    publisher.model()
    inputs = {"inputs": [{"name": "A", "datatype": datatype, "shape": [1], "data": [data]}]}
    (publisher.base / "in.json").write_text(json.dumps(inputs))
    flags = ("--model", "det", "--golden-from", "127.0.0.1:1", "--golden-inputs", "in.json")
    publisher.run("bundle", "det", "--release", 1, *flags, status=2)
    assert sentence in one_sentence(publisher.err)


def test_a_warm_up_without_a_shape(publisher: Publisher) -> None:
    value = "value { data_type: TYPE_FP32 dims: -1 random_data: true }"
    warmup = f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "I" {value} }} }}'
    publisher.model("det", {"config.pbtxt": f'backend: "onnxruntime" {warmup}'.encode(), "1/model.onnx": b"x"})
    publisher.run("bundle", "det", "--release", 1, "--model", "det", "--golden-from", "127.0.0.1:1", status=2)
    assert "gives I the shape [1, -1], expected numbers from 0" in one_sentence(publisher.err)


def test_a_new_recording_keeps_listed_outputs_and_their_tolerances(publisher: Publisher, server: Running) -> None:
    shutil.copytree(MODELS / "simple", publisher.base / "simple")
    path = add_sub(publisher.base / "simple", wrong=1, atol=0.25, budget={"p95_ms": 9})
    found = json.loads(path.read_text())
    sums, _ = found["samples"][0]["outputs"]
    found["samples"][0]["outputs"] = [{**sums, "rtol": 0.5}]
    path.write_text(json.dumps(found))
    publisher.run("bundle", "simple", "--release", 1, "--model", "simple", "--golden-from", server.url)
    golden = bundled(publisher, "simple", 1)
    (output,) = golden.samples[0].responses[0]
    assert (output.name, output.rtol, output.atol) == ("OUTPUT0", 0.5, 0.25)
    assert golden.budget.p95_ms == 9
    assert output.read().array()[0, 3] == 10


VARIANTS = {
    "variants": [
        {
            "id": "orin", "kind": "trt-engine", "priority": 10, "match": {"sm": "8.7"}, "memory_mb": 900,
            "models": {"det": "orin"},
        },
        {
            "id": "built", "kind": "onnx-build", "priority": 20,
            "build": [{"model": "det", "onnx": "1/model.onnx", "plan": "1/model.plan", "workspace_mb": 512}],
        },
        {"id": "onnx", "kind": "onnx", "priority": 90},
    ]
}  # fmt: skip


def test_variants_by_hardware(publisher: Publisher) -> None:
    publisher.model("det")
    publisher.model("orin", {"config.pbtxt": b'platform: "tensorrt_plan"', "1/model.plan": b"plan"})
    (publisher.base / "variants.json").write_text(json.dumps(VARIANTS))
    publisher.run("bundle", "det", "--release", 17, "--model", "det", "--variants", "variants.json")
    manifest = read_manifest((publisher.base / "det.17/manifest.json").read_bytes(), "det", 17)
    orin, built, onnx = manifest.variants
    assert [one.path for one in manifest.files_of(orin, "det")] == ["17/model.onnx", "17/model.plan", "config.pbtxt"]
    assert (dict(orin.match), orin.memory_bytes) == ({"sm": "8.7"}, 900 * 1024 * 1024)
    assert (built.build[0].onnx, built.build[0].plan) == ("17/model.onnx", "17/model.plan")
    assert onnx.files == {}
    publisher.init("--family", "det")
    assert "det/17/model.plan" in publisher.refused("release", "det.17")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "is nested deeper than"),
        ('{"variants": [], "variants": []}', "has the member 'variants' twice"),
        ('{"variants": [{"id": "a", "kind": "onnx-build", "priority": 1, "build": ["x"]}]}', 'build is "x", expected'),
        ("{}", "lacks the member 'variants'"),
        ('{"variants": []}', "describes no variants"),
        ('{"variants": [{"id": "a", "kind": "plan", "priority": 1}]}', "expected one of onnx, onnx-build"),
        ('{"variants": [{"id": "a", "kind": "onnx", "priority": 1, "x": 1}]}', "unknown member 'x'"),
        ('{"variants": [{"id": "a", "kind": "onnx", "priority": 1, "models": {"det": "no"}}]}', "is not a directory"),
        (
            '{"variants": [{"id": "a", "kind": "onnx", "priority": 1, "models": {"seg": "det"}}]}',
            "which the release lacks",
        ),
        (
            '{"variants": [{"id": "a", "kind": "onnx", "priority": 1}, {"id": "b", "kind": "onnx", "priority": 1}]}',
            "same priority",
        ),
    ],
)
def test_descriptions_of_variants_that_are_refused(publisher: Publisher, text: str, sentence: str) -> None:
    publisher.model("det")
    (publisher.base / "variants.json").write_text(text)
    publisher.run("bundle", "det", "--release", 1, "--model", "det", "--variants", "variants.json", status=2)
    assert sentence in one_sentence(publisher.err)
    assert not (publisher.base / "det.1").exists()
    assert not (publisher.base / "det.1").exists()


def test_variants_in_toml(publisher: Publisher) -> None:
    pytest.importorskip("tomllib", reason="needs Python 3.11 or newer")
    publisher.model("det")
    text = '[[variants]]\nid = "cpu"\nkind = "onnx"\npriority = 1\nmatch = { "label.site" = "hall-3" }\n'
    (publisher.base / "variants.toml").write_text(text)
    publisher.run("bundle", "det", "--release", 1, "--model", "det", "--variants", "variants.toml")
    assert "variants: cpu (onnx)" in publisher.out
