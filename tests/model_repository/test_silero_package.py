"""`silero_vad` served as a sequence decides as the package that ships it does, on speech.

Needs the dependency group `generative` (the package computes with torch), `make models`, and espeak-ng, which speaks.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.running import running

torch = pytest.importorskip("torch", reason="needs the dependency group `generative`")
silero = pytest.importorskip("silero_vad", reason="needs the dependency group `generative`")
http = pytest.importorskip("tritonclient.http")

REPOSITORY = Path(__file__).parents[2] / "model_repository"
RATE, PIECE, BEFORE = 16_000, 512, 64
SENTENCES = ("The quick brown fox jumps over the lazy dog.", "Valve seven is open. Pressure is rising.")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng (apt-get install espeak-ng)"),
    pytest.mark.skipif(not (REPOSITORY / "silero_vad/1/model.onnx").exists(), reason="run `make models`"),
]


def spoken(sentence: str) -> Any:
    """A sentence between two pauses, 16 kHz."""
    said = subprocess.run(["espeak-ng", "--stdout", sentence], capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(said)) as sound:
        samples = np.frombuffer(sound.readframes(1 << 30), "<i2").astype(np.float32) / 32768
        times = np.arange(0, len(samples) / sound.getframerate(), 1 / RATE) * sound.getframerate()
    speech = np.interp(times, np.arange(len(samples)), samples)
    pause = np.zeros(RATE)
    whole = np.concatenate([pause, speech, pause]).astype(np.float32)
    return whole[: len(whole) // PIECE * PIECE]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_model_and_package_return_equal_decisions(sentence: str) -> None:
    sound = spoken(sentence)
    own = silero.load_silero_vad(onnx=True, opset_version=16)
    expected = [float(own(torch.from_numpy(piece), RATE)[0, 0]) for piece in sound.reshape(-1, PIECE)]

    served: list[float] = []
    padded = np.concatenate([np.zeros(BEFORE, np.float32), sound])
    flags = ("--model-control-mode=explicit", "--load-model=silero_vad")
    with running(f"--model-repository={REPOSITORY}", *flags) as server:
        client = http.InferenceServerClient(server.url)
        for start in range(0, len(sound), PIECE):
            given = http.InferInput("input", [1, BEFORE + PIECE], "FP32")
            given.set_data_from_numpy(padded[None, start : start + BEFORE + PIECE])
            answer = client.infer("silero_vad", [given], sequence_id=9, sequence_start=start == 0)
            served.append(float(answer.as_numpy("output")[0, 0]))
        client.close()

    decisions = [chance > 0.5 for chance in expected]
    assert [chance > 0.5 for chance in served] == decisions
    assert 10 < sum(decisions) < len(decisions) - 10  # it heard speech, and the pauses
    np.testing.assert_allclose(served, expected, atol=0.02)
