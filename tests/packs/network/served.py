"""The network's files in a model repository, and its answers about the photographs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edge_serve.messages.tensors import Array
from tests.packs.network.libraries import NETWORK
from tests.packs.network.photographs import pictures
from tests.packs.scenes.client import infer
from tests.server.running import Running

REFERENCE = "reference"


def add_model(root: Path, name: str, config: str, source: Path, file: str) -> None:
    """Copy a file, or the directory of a SavedModel, into a model."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, root / name / "1" / file)


def add_reference(root: Path) -> None:
    """Copy the ONNX file for ONNX Runtime, or skip the test."""
    if not NETWORK.is_file():
        pytest.skip("the network is not fetched: make models")
    add_model(root, REFERENCE, "", NETWORK, "model.onnx")


def probabilities(server: Running, model: str) -> Array:
    """Return the answers of a model for each picture: [20, 1000]."""
    (tensor,) = json.loads(server.get(f"/v2/models/{model}")[1])["inputs"]
    found = [infer(server, model, {tensor["name"]: picture}) for picture in pictures()]
    return np.stack([next(iter(one.values())).ravel() for one in found])


def compare(server: Running, model: str, largest: float, least: int = 20) -> None:
    """Compare a model with ONNX Runtime. Print the largest difference of a probability.

    Args:
        largest: the difference is smaller.
        least: so many of 20 photographs have the same first class.
    """
    reference, found = probabilities(server, REFERENCE), probabilities(server, model)
    same = int((found.argmax(axis=1) == reference.argmax(axis=1)).sum())
    difference = float(np.abs(found - reference).max())
    print(f"\n{model:12} same first class {same} of {len(found)}, largest difference {difference:.1e}")
    assert len(found) == 20
    assert same >= least
    assert difference < largest
    assert len(set(reference.argmax(axis=1))) >= 8, "the photographs are too much alike to tell networks apart"
