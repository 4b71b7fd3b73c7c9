"""Shapley values beside those of XGBoost and LightGBM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.packs.fil.libraries import need_models, need_treelite
from tests.packs.fil.scene import ask, case, make_model, opened, parameters, tensors

pytestmark = pytest.mark.slow  # the libraries explain slowly

need_treelite()
MODELS = need_models()
OUTPUTS = ("output__0", "treeshap_output")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in MODELS.glob("*/shap.npy")))
def test_as_the_library(name: str, tmp_path: Path) -> None:
    expected = np.load(MODELS / name / "shap.npy")
    file, given, inputs, scores = case(MODELS / name)
    rows, inner = inputs[: len(expected)], [-1] if expected.ndim == 2 else list(expected.shape[1:])
    config = parameters(**given) | tensors(inputs.shape[1], 1 if scores.ndim == 1 else scores.shape[1])
    config["output"].append({"name": "treeshap_output", "data_type": "TYPE_FP32", "dims": inner})
    _, (instance,) = opened(make_model(tmp_path, file, config))
    first, second = ask(instance, rows[:7], rows[7:], outputs=OUTPUTS)
    assert [one.name for one in first.outputs] == list(OUTPUTS)
    found = np.concatenate([first.outputs[1].array(), second.outputs[1].array()])
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=2e-5, rtol=1e-4)
    (none,) = ask(instance, rows[:0], outputs=OUTPUTS)
    assert none.outputs[1].shape == (0, *found.shape[1:])
    (only,) = ask(instance, rows[:2], outputs=OUTPUTS[1:])
    assert [one.name for one in only.outputs] == ["treeshap_output"]
