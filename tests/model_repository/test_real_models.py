"""The real models do what their READMEs say; skipped until `make models` has fetched them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def session(model: str) -> Any:
    path = REPOSITORY / model / "1/model.onnx"
    if not path.exists():
        pytest.skip(f"{model}: run `make models`")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def labels(model: str) -> list[str]:
    return (REPOSITORY / model / "labels.txt").read_text().removesuffix("\n").split("\n")


def test_magika_knows_python_from_markdown() -> None:
    magika = session("magika")
    spec = importlib.util.spec_from_file_location("classify", REPOSITORY / "magika/classify.py")
    assert spec is not None
    assert spec.loader is not None
    classify = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(classify)
    files = [REPOSITORY / "fetch_models.py", REPOSITORY / "README.md"]
    rows = np.array([classify.features(path.read_bytes()) for path in files], np.int32)
    (scores,) = magika.run(["target_label"], {"bytes": rows})
    assert [labels("magika")[best] for best in scores.argmax(axis=1)] == ["python", "markdown"]


def test_text_detection_answers_a_map_of_the_picture() -> None:
    (found,) = session("text_detection").run(None, {"x": np.zeros((1, 3, 320, 640), np.float32)})
    assert found.shape == (1, 1, 320, 640)
    assert found.max() < 0.3


def test_text_direction_answers_two_classes_for_a_batch() -> None:
    (found,) = session("text_direction").run(None, {"x": np.zeros((3, 3, 48, 192), np.float32)})
    assert found.shape == (3, 2)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_text_recognition_labels_are_the_models_own() -> None:
    network = session("text_recognition")
    own = network.get_modelmeta().custom_metadata_map["character"].split("\n")
    assert labels("text_recognition") == ["blank", *own, " "]
    (found,) = network.run(None, {"x": np.zeros((2, 3, 48, 320), np.float32)})
    assert found.shape == (2, 40, 6625)
    assert set(found.argmax(axis=2).ravel()) == {0}


def test_densenet_knows_a_crossword_from_a_clock() -> None:
    """Pictures drawn here. That it knows a coffee mug by `image_client.py` was tried by hand (its README)."""
    network = session("densenet_onnx")
    names = (REPOSITORY / "densenet_onnx/densenet_labels.txt").read_text().splitlines()
    black = np.random.default_rng(1).random((14, 14)) < 0.25
    crossword = np.where(np.kron(black, np.ones((16, 16))), -1.0, 1.0)
    crossword[::16], crossword[:, ::16] = -1, -1
    across, down = np.meshgrid(np.arange(224) - 112, np.arange(224) - 112)
    distance, angle = np.hypot(across, down), np.degrees(np.arctan2(across, -down)) % 360
    clock = np.where(distance < 90, 1.0, 0.5)
    clock[(abs(distance - 86) < 5) | ((abs(distance - 74) < 6) & (angle % 30 < 4))] = -1
    clock[((distance < 60) & (abs(angle - 20) < 3)) | ((distance < 42) & (abs(angle - 120) < 5))] = -1
    found = []
    for picture in (crossword, clock):
        (scores,) = network.run(["fc6_1"], {"data_0": np.broadcast_to(picture, (1, 3, 224, 224)).astype(np.float32)})
        assert scores.shape == (1, 1000, 1, 1)
        np.testing.assert_allclose(scores.sum(), 1, rtol=1e-5)
        found.append(names[scores.argmax()])
    assert len(names) == 1000
    assert (names[504], found[0]) == ("COFFEE MUG", "CROSSWORD PUZZLE")
    assert "CLOCK" in found[1]


def test_silero_vad_hears_nothing_in_silence() -> None:
    state = np.zeros((2, 1, 128), np.float32)
    chance, new_state = session("silero_vad").run(None, {"input": np.zeros((1, 576), np.float32), "state": state})
    assert chance.shape == (1, 1)
    assert chance[0, 0] < 0.1
    assert new_state.shape == state.shape
    assert np.abs(new_state).sum() > 0
