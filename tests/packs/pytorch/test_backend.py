"""Where the backend finds its file, and what it sets before it imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_serve.errors import Unavailable
from packs.pytorch import backend
from packs.pytorch.backend import PyTorchBackend, model_path, set_variables
from tests.backends.hosting import model_spec


@pytest.mark.parametrize(
    ("config", "files", "chosen"),
    [
        ({}, ("model.pt",), "model.pt"),
        ({}, ("model.pt2",), "model.pt2"),
        ({}, ("model.pt", "model.pt2"), "model.pt"),
        ({"platform": "torch_aoti"}, ("model.pt", "model.pt2"), "model.pt2"),
        ({"default_model_filename": "net.pt"}, ("model.pt", "net.pt"), "net.pt"),
    ],
)
def test_the_file_is_found(tmp_path: Path, config: dict[str, Any], files: tuple[str, ...], chosen: str) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    for file in files:
        (tmp_path / "m/1" / file).touch()

    assert model_path(model_spec(tmp_path / "m", config)).name == chosen


def test_a_missing_file_is_named_with_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.pt").touch()

    with pytest.raises(Unavailable, match=r"^unable to find '.*/m/1/net.pt' for model instance 'm'; .*holds model.pt"):
        model_path(model_spec(tmp_path / "m", {"default_model_filename": "net.pt"}))


def test_variables_of_the_operator_stay() -> None:
    environ = {"AOTI_RUNTIME_CHECK_INPUTS": "0"}
    set_variables(environ)
    assert environ == {
        "AOTI_RUNTIME_CHECK_INPUTS": "0", "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "GOMP_SPINCOUNT": "5000",
    }  # fmt: skip

    environ = {"OMP_WAIT_POLICY": "ACTIVE"}
    set_variables(environ)
    assert "GOMP_SPINCOUNT" not in environ


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"),
         "^backend 'pytorch' needs the module 'torch', which is not installed: edge-serve pack install pytorch, or /"),
        (OSError("libcudart.so.13: cannot open shared object file"),
         "^backend 'pytorch' cannot load torch: libcudart.so.13: cannot open .*; install it again with all that it"),
    ],
)  # fmt: skip
def test_a_torch_that_does_not_load_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(backend, "_import", fail)

    with pytest.raises(Unavailable, match=text):
        PyTorchBackend()
