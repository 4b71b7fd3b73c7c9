"""The answers for 10,000 rows beside those of the library that trained the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.packs.fil.libraries import need_models, need_treelite
from tests.packs.fil.scene import answer, case, make_model, opened, parameters

pytestmark = pytest.mark.slow  # 10,000 rows of each kind of model

need_treelite()
MODELS = need_models()
CASES = sorted(path.parent.name for path in MODELS.glob("*/case.json"))


@pytest.mark.parametrize("name", CASES)
def test_within_a_millionth_of_the_library(name: str, tmp_path: Path) -> None:
    file, given, inputs, expected = case(MODELS / name)
    backend, (instance,) = opened(make_model(tmp_path, file, parameters(**given)))
    found = answer(instance, inputs)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    error = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    assert error.max() <= 1e-6, f"{(error > 1e-6).sum()} of {error.size} rows, at most {error.max():.2g}"
    backend.close()
