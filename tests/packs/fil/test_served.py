"""Forests in a running server, with the environment of the pack."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http

from edge_serve.commands.check import run as check
from edge_serve.messages.tensors import Array
from tests.packs.environments import backends_with
from tests.packs.fil.libraries import need_models
from tests.server.running import Running, running

MODELS = need_models()
#: as in Triton's fil_backend docs/model_config.md
TRITON = """
backend: "fil"
max_batch_size: 32768
input [{ name: "input__0" data_type: TYPE_FP32 dims: [ 12 ] }]
output [{ name: "output__0" data_type: TYPE_FP32 dims: [ %(width)s ] }]
instance_group [{ kind: KIND_AUTO count: 2 }]
parameters [
  { key: "model_type" value: { string_value: "%(kind)s" } },
  { key: "is_classifier" value: { string_value: "true" } },
  { key: "predict_proba" value: { string_value: "%(proba)s" } },
  { key: "threshold" value: { string_value: "0.5" } },
  { key: "layout" value: { string_value: "depth_first" } },
  { key: "storage_type" value: { string_value: "AUTO" } },
  { key: "algo" value: { string_value: "ALGO_AUTO" } },
  { key: "blocks_per_sm" value: { string_value: "0" } },
  { key: "transfer_threshold" value: { string_value: "0" } },
  { key: "use_experimental_optimizations" value: { string_value: "true" } }
]
dynamic_batching {}
"""
GOOD: Mapping[str, tuple[str, str]] = {
    "plain": ("xgboost_regression", ""),
    "ubj": ("xgboost_argmax", ""),
    "text": ("lightgbm_categorical", ""),
    "forest": ("forest_classes3", 'parameters { key: "predict_proba" value { string_value: "true" } }'),
    "from_triton": ("xgboost_binary", TRITON % {"width": 2, "kind": "xgboost_json", "proba": "true"}),
    "classes": ("xgboost_class", TRITON % {"width": 1, "kind": "xgboost_json", "proba": "false"}),
}


def add_model(root: Path, name: str, source: str, config: str = "") -> Path:
    """Copy a trained model into a repository; its file there."""
    told = json.loads((MODELS / source / "case.json").read_text())
    (root / name / "1").mkdir(parents=True)
    if config:
        (root / name / "config.pbtxt").write_text(config)
    return Path(shutil.copy(MODELS / source / told["file"], root / name / "1" / told["file"]))


def ask(server: Running, model: str, rows: Array) -> Array:
    """Return output__0 of a model."""
    with http.InferenceServerClient(server.url) as client:
        tensor = http.InferInput("input__0", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(np.ascontiguousarray(rows))
        answer = client.infer(model, [tensor]).as_numpy("output__0")
    assert isinstance(answer, np.ndarray)
    return answer


def case(source: str, rows: int = 50) -> tuple[Array, Array]:
    """Return inputs, and what the library predicts."""
    return np.load(MODELS / source / "inputs.npy")[:rows], np.load(MODELS / source / "expected.npy")[:rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fil")
    backends_with("fil", root / "backends")
    for name, (source, config) in GOOD.items():
        add_model(root / "models", name, source, config)
    return root


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Running]:
    arguments = (f"--model-repository={place / 'models'}", f"--backend-directory={place / 'backends'}")
    with running(*arguments) as started:
        yield started


@pytest.mark.parametrize("name", GOOD)
def test_answers_are_those_of_the_library(server: Running, name: str) -> None:
    inputs, expected = case(GOOD[name][0])
    np.testing.assert_allclose(ask(server, name, inputs), expected, atol=1e-6, rtol=1e-6)


def test_a_file_is_enough(server: Running) -> None:
    config = json.loads(server.get("/v2/models/forest/config")[1])
    assert config["backend"] == "fil"
    assert config["max_batch_size"] == 8192
    assert [(one["name"], one["data_type"], one["dims"]) for one in (*config["input"], *config["output"])] == [
        ("input__0", "TYPE_FP32", [12]), ("output__0", "TYPE_FP32", [3]),
    ]  # fmt: skip


def test_clients_at_once_share_batches(server: Running) -> None:
    inputs, expected = case("xgboost_binary", 160)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda at: ask(server, "from_triton", inputs[at : at + 2]), range(0, 160, 2)))
    np.testing.assert_allclose(np.concatenate(answers), expected, atol=1e-6)


def test_models_share_a_process_and_print_nothing(server: Running) -> None:
    assert len(server.workers()) == 1
    assert not re.search(r"Stack trace|treelite|but (config.pbtxt|its configuration)", server.log())


def test_check_asks_a_model_whose_response_has_no_dims_of_1(place: Path) -> None:
    arguments = [f"--backend-directory={place / 'backends'}", "--infer", "--model=classes", "--model=plain"]
    assert check([*arguments, str(place / "models")]) == 0


def test_check_shows_the_model_beside_its_configuration(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    models = place / "compared"
    add_model(models, "m", "xgboost_binary", (TRITON % {"width": 2, "kind": "xgboost_json", "proba": "true"}))
    config = models / "m/config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 12 ]", "dims: [ 13 ]"))
    assert check([f"--backend-directory={place / 'backends'}", str(models)]) == 1
    out = capfd.readouterr().out
    assert re.search(
        r"input input__0 +TYPE_FP32 \[-1, 13\] +TYPE_FP32 \[-1, 12\] +<- differs, see config.pbtxt line 4", out
    )
    assert "write dims: [ 12 ]" in out


def _bad(root: Path) -> dict[str, str]:
    """Write models that do not load; each with a part of its reason."""
    json_file = (MODELS / "xgboost_binary/xgboost.json").read_bytes()
    ubj = (MODELS / "xgboost_ubj/xgboost.ubj").read_bytes()
    checkpoint = (MODELS / "forest_class/checkpoint.tl").read_bytes()
    text = (MODELS / "lightgbm_binary/model.txt").read_bytes()
    contents: dict[str, tuple[str, bytes, str]] = {
        "cut_json": ("xgboost.json", json_file[: len(json_file) // 2], "cannot be read as XGBoost's JSON"),
        "cut_ubj": ("xgboost.ubj", ubj[: len(ubj) // 2], "cannot be read as XGBoost's UBJSON"),
        "cut_text": ("model.txt", text[: len(text) // 2], "is damaged: "),
        "cut_checkpoint": ("checkpoint.tl", checkpoint[:5000], "is damaged: "),
        "empty": ("model.txt", b"", "is empty"),
        "unknown_field": ("xgboost.json", json_file.replace(b'"gbtree"', b'"gbtree","new":1', 1), "cannot be read"),
        "other_json": ("xgboost.json", b'{"a": 1}', "cannot be read as XGBoost's JSON"),
        "pickle": ("checkpoint.tl", b"\x80\x04\x95", "is a pickle, expected a checkpoint of Treelite"),
        "lightgbm_in_json": ("xgboost.json", text, "looks like LightGBM's text, expected XGBoost's JSON"),
    }
    for name, (file, content, _) in contents.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text('backend: "fil"\n')
        (root / name / "1" / file).write_bytes(content)
    return {name: reason for name, (_, _, reason) in contents.items()}


def test_bad_files_say_why_and_the_other_models_are_served(place: Path, tmp_path: Path) -> None:
    reasons = _bad(tmp_path)
    add_model(tmp_path, "good", "xgboost_regression")
    arguments = (f"--model-repository={tmp_path}", f"--backend-directory={place / 'backends'}", "--exit-on-error=false")
    with running(*arguments) as server:
        _, body = server.post("/v2/repository/index")
        index: dict[str, Any] = {entry["name"]: entry.get("reason", "") for entry in json.loads(body)}
        for name, reason in reasons.items():
            assert reason in index[name], index[name]
            assert "Stack trace" not in index[name]
        inputs, expected = case("xgboost_regression")
        np.testing.assert_allclose(ask(server, "good", inputs), expected, rtol=1e-6, atol=1e-6)
