"""Demo models together on the running server: they read a line of text, and hear speech. Needs `make models`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.running import Running, running

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime")
Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")
ImageFont = pytest.importorskip("PIL.ImageFont")
http = pytest.importorskip("tritonclient.http")

REPOSITORY = Path(__file__).parents[2] / "model_repository"
SILERO = REPOSITORY / "silero_vad/1/model.onnx"
PAPER, INK = (235, 230, 220), (20, 20, 30)
RATE, PIECE, BEFORE = 16_000, 512, 64


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    if not SILERO.exists():
        pytest.skip("run `make models`")
    models = ["--model-control-mode=explicit", "--load-model=text_reader", "--load-model=silero_vad"]
    with running(f"--model-repository={REPOSITORY}", *models) as started:
        yield started


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    client = http.InferenceServerClient(server.url)
    yield client
    client.close()


# ---- reading -------------------------------------------------------------------------------------------------------


def photograph(text: str, angle: float) -> Any:
    """A line of text on paper, not quite straight, under uneven light and with the noise of a camera."""
    picture = Image.new("RGB", (640, 360), PAPER)
    ImageDraw.Draw(picture).text((120, 150), text, fill=INK, font=ImageFont.load_default(size=40))
    turned = np.asarray(picture.rotate(angle, fillcolor=PAPER, resample=Image.Resampling.BICUBIC), np.float32)
    light = np.linspace(0.75, 1.0, turned.shape[1])[None, :, None]
    noise = np.random.default_rng(7).normal(0, 4, turned.shape)
    return np.clip(turned * light + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("text", ["Serial 4711-0815", "Invoice 2026"])
@pytest.mark.parametrize("angle", [0, 3, -7, 180, 176])
def test_text_reader_reads_a_photographed_line(client: Any, text: str, angle: float) -> None:
    picture = photograph(text, angle)
    given = http.InferInput("IMAGE", list(picture.shape), "UINT8")
    given.set_data_from_numpy(picture)

    (found,) = client.infer("text_reader", [given]).as_numpy("TEXT")

    assert found.decode().replace(" ", "") == text.replace(" ", "")


def test_text_reader_reads_nothing_on_empty_paper(client: Any) -> None:
    given = http.InferInput("IMAGE", [360, 640, 3], "UINT8")
    given.set_data_from_numpy(np.full((360, 640, 3), 230, np.uint8))

    assert list(client.infer("text_reader", [given]).as_numpy("TEXT")) == [b""]


# ---- hearing -------------------------------------------------------------------------------------------------------


def speech(pitch: float, seed: int) -> Any:
    """Two seconds: quiet, then syllables (pulses of a throat through three formants), then quiet again."""
    random = np.random.default_rng(seed)
    sound = np.zeros(2 * RATE)
    time = np.arange(int(0.18 * RATE)) / RATE
    for syllable, (first, second) in enumerate([(730, 1090), (270, 2290), (570, 840), (660, 1720), (300, 870)]):
        phase = np.cumsum(pitch * (1 + 0.06 * np.sin(2 * np.pi * 4 * time))) / RATE
        voice = sum(
            np.sin(2 * np.pi * k * phase)
            * sum(np.exp(-(((k * pitch - f) / 90) ** 2)) * a for f, a in ((first, 1.0), (second, 0.6), (2500, 0.3)))
            for k in range(1, 30)
        )
        start = int((0.5 + 0.22 * syllable) * RATE)
        sound[start : start + len(time)] += voice * np.hanning(len(time))
    sound = 0.3 * sound / np.abs(sound).max() + random.normal(0, 0.001, len(sound))
    return sound.astype(np.float32)


def pieces(sound: Any) -> Iterator[Any]:
    """Yield the inputs of the network: the end of the piece before, and a new one."""
    padded = np.concatenate([np.zeros(BEFORE, np.float32), sound])
    for start in range(0, len(sound) - PIECE + 1, PIECE):
        yield padded[None, start : start + BEFORE + PIECE]


def alone(sound: Any) -> list[float]:
    """The chances of speech as the package's own wrapper gets them: the state is handed from call to call."""
    session = onnxruntime.InferenceSession(SILERO, providers=["CPUExecutionProvider"])
    state, found = np.zeros((2, 1, 128), np.float32), []
    for piece in pieces(sound):
        chance, state = session.run(["output", "stateN"], {"input": piece, "state": state})
        found.append(float(chance[0, 0]))
    return found


def test_silero_vad_decides_in_sequences_as_it_does_alone(client: Any) -> None:
    sounds = {701: speech(120, 1), 702: speech(210, 2), 703: np.zeros(2 * RATE, np.float32)}
    served: dict[int, list[float]] = {number: [] for number in sounds}
    for step in zip(*(pieces(sound) for sound in sounds.values()), strict=True):
        for number, piece in zip(sounds, step, strict=True):  # the recordings take turns
            given = http.InferInput("input", [1, 576], "FP32")
            given.set_data_from_numpy(np.ascontiguousarray(piece))
            first = not served[number]
            answer = client.infer("silero_vad", [given], sequence_id=number, sequence_start=first)
            served[number].append(float(answer.as_numpy("output")[0, 0]))

    for number, sound in sounds.items():
        expected = alone(sound)
        np.testing.assert_allclose(served[number], expected, atol=1e-5)
        assert [chance > 0.5 for chance in served[number]] == [chance > 0.5 for chance in expected]
    assert max(served[701]) > 0.5
    assert max(served[703]) < 0.5


def test_the_ensemble_is_what_the_index_shows(server: Running) -> None:
    index = {entry["name"]: entry.get("state") for entry in json.loads(server.post("/v2/repository/index")[1])}

    assert {name for name, state in index.items() if state == "READY"} == {
        "silero_vad", "text_detection", "text_direction", "text_reader", "text_recognition", "text_steps",
    }  # fmt: skip
