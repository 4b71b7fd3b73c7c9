"""Installs TensorFlow, a gigabyte, and writes the network in its formats: `python -m tests.packs.network.libraries`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.packs.environments import ROOT, environment_with

NETWORK = Path(__file__).parents[3] / "model_repository/densenet_onnx/1/model.onnx"
VENV, MODELS = ROOT / "tensorflow", ROOT / "tensorflow-models"
REQUIREMENTS = ["tensorflow-cpu", "onnx"]


def main() -> None:
    """Do both, unless the files are there."""
    if (MODELS / "model.tflite").is_file():
        return
    python = environment_with(VENV, REQUIREMENTS)
    MODELS.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("write_tensorflow.py")
    subprocess.run([str(python), str(script), str(NETWORK), str(MODELS)], check=True)


if __name__ == "__main__":
    main()
