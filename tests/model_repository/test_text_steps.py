"""The steps of `text_reader` in NumPy, on pictures that are hard to read."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "model_repository/text_steps/1/model.py"


class Refused(Exception):
    """Plays `TritonModelException`."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model's file, which a worker would load."""
    backend = ModuleType("triton_python_backend_utils")
    backend.__dict__.update(TritonModelException=Refused, Tensor=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    spec = importlib.util.spec_from_file_location("text_steps", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("turned", [False, True])
def test_a_line_of_one_pixel_s_thickness_is_cut_out(steps: Any, turned: bool) -> None:
    found = np.zeros((64, 64))
    found[30, 10:50] = 1.0
    line = steps.cut_out(np.full((64, 64, 3), 200.0), found.T if turned else found)

    assert line.shape == (steps.HEIGHT, steps.MOST_WIDTH, 3)
    assert (line == 200).all()


def test_a_map_that_shows_no_text_gives_an_empty_line(steps: Any) -> None:
    assert steps.cut_out(np.ones((64, 64, 3)), np.zeros((64, 64))).shape == (steps.HEIGHT, steps.HEIGHT, 3)


@pytest.mark.parametrize("names", [[], ["MAP"], ["LINE"], ["DIRECTION"], ["IMAGE", "LINE"]])
def test_inputs_of_no_step_are_reported(steps: Any, names: list[str]) -> None:
    given = [SimpleNamespace(name=lambda name=name: name, as_numpy=lambda: np.zeros(1)) for name in names]
    with pytest.raises(Refused, match=f"found inputs {' and '.join(names) or 'none'}, expected IMAGE, IMAGE and MAP, "):
        steps.TritonPythonModel().step(SimpleNamespace(inputs=lambda: given))


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0, 3)])
def test_a_picture_without_a_pixel_is_refused(steps: Any, shape: tuple[int, ...]) -> None:
    image = SimpleNamespace(name=lambda: "IMAGE", as_numpy=lambda: np.zeros(shape, np.uint8))
    with pytest.raises(Refused, match=r"IMAGE has shape \[\d, \d, 3\], expected at least one pixel"):
        steps.TritonPythonModel().step(SimpleNamespace(inputs=lambda: [image]))


def test_the_labels_are_its_own_and_those_of_the_network(steps: Any, tmp_path: Path) -> None:
    """A worker may not read files of other models (workers/launch/sandbox.py)."""
    shutil.copytree(SCRIPT.parents[1], tmp_path / "text_steps")
    model = steps.TritonPythonModel()

    model.initialize({"model_repository": str(tmp_path / "text_steps")})

    network = SCRIPT.parents[2] / "text_recognition/labels.txt"
    assert model.labels == network.read_text(encoding="utf-8").removesuffix("\n").split("\n")
