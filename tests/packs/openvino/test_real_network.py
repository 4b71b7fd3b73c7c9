"""EfficientNet-Lite0 with its ImageNet weights (`make models`): OpenVINO computes what ONNX Runtime computes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.packs.environments import backends_with
from tests.packs.openvino.test_served import OPENVINO, convert, infer
from tests.server.running import running

NETWORK = Path(__file__).parents[3] / "model_repository/densenet_onnx/1/model.onnx"


def test_each_format_has_the_same_first_class(tmp_path: Path) -> None:
    if not NETWORK.is_file():
        pytest.skip("the network is not fetched: make models")
    backends = backends_with("openvino", tmp_path / "backends")
    for name, config in (("reference", ""), ("onnx", OPENVINO)):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        shutil.copy(NETWORK, tmp_path / "models" / name / "1")
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    convert(backends, NETWORK, tmp_path / "models/ir/1/model.xml")
    pictures = [coarse_noise(seed) for seed in range(10)]
    with running(f"--model-repository={tmp_path / 'models'}", f"--backend-directory={backends}", limit=60) as server:
        wanted, *others = (
            np.stack([infer(server, name, {"data_0": picture})["fc6_1"].ravel() for picture in pictures])
            for name in ("reference", "onnx", "ir")
        )
    assert len(set(wanted.argmax(axis=1))) > 1, "the pictures are too much alike to tell networks apart"
    for found in others:
        np.testing.assert_allclose(found, wanted, atol=2e-5)
        assert (found.argmax(axis=1) == wanted.argmax(axis=1)).all()


def coarse_noise(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return a picture of coloured squares, from -1 to 1."""
    squares = np.random.default_rng(seed).uniform(-1, 1, size=(1, 3, 7, 7)).astype(np.float32)
    return squares.repeat(32, axis=2).repeat(32, axis=3)
