"""Installs TensorFlow, a gigabyte, and writes the network in its formats: `python -m tests.packs.network.libraries`."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from tests.packs.environments import ROOT

NETWORK = Path(__file__).parents[3] / "model_repository/densenet_onnx/1/model.onnx"
VENV, MODELS = ROOT / "tensorflow", ROOT / "tensorflow-models"
REQUIREMENTS = ["tensorflow-cpu", "onnx"]


def main() -> None:
    """Do both, unless the files are there."""
    if (MODELS / "model.tflite").is_file():
        return
    python = VENV / "bin/python"
    if not python.exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS], check=True)
    MODELS.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("write_tensorflow.py")
    subprocess.run([str(python), str(script), str(NETWORK), str(MODELS)], check=True)


if __name__ == "__main__":
    main()
