"""The steps between the networks of `text_reader`, in NumPy; which one is asked for is told by the inputs.

IMAGE           -> X: the picture as `text_detection` wants it
IMAGE, MAP      -> LINE, LOOK: the line of text that was found, as long as it is, and as `text_direction` wants it
LINE, DIRECTION -> UPRIGHT: the line, turned if it stands on its head
CHARACTERS      -> TEXT: what the line says
"""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

#: longest side of the picture for the detection, and the grid that its sides lie on
LONGEST, GRID = 960, 32
#: a pixel of the map above this is text
TEXT = 0.3
#: how much larger than its core, which the map shows, a line is: PaddleOCR's unclip_ratio
UNCLIP = 1.6
STEPS = ({"IMAGE"}, {"IMAGE", "MAP"}, {"LINE", "DIRECTION"}, {"CHARACTERS"})
HEIGHT, LOOK_WIDTH, MOST_WIDTH = 48, 192, 1600


def sample(image, x, y):
    """Bilinear values of an image [height, width, 3] at x and y, which are clipped to it."""
    height, width = image.shape[:2]
    x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, bottom = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
    across, down = (x - left)[..., None], (y - top)[..., None]
    upper = image[top, left] * (1 - across) + image[top, right] * across
    lower = image[bottom, left] * (1 - across) + image[bottom, right] * across
    return upper * (1 - down) + lower * down


def as_input(image):
    """[height, width, 3] in 0..255 as the networks want it: [1, 3, height, width] in -1..1."""
    return np.ascontiguousarray(((image / 255 - 0.5) / 0.5).astype(np.float32).transpose(2, 0, 1)[None])


def resized(image, width, height):
    """The image in another size."""
    x = (np.arange(width) + 0.5) * image.shape[1] / width - 0.5
    y = (np.arange(height) + 0.5) * image.shape[0] / height - 0.5
    return sample(image, *np.meshgrid(x, y))


def for_detection(image):
    """The picture, not larger than LONGEST, its sides multiples of GRID."""
    height, width = image.shape[:2]
    scale = min(1.0, LONGEST / max(height, width))
    sides = [max(GRID, round(side * scale / GRID) * GRID) for side in (width, height)]
    return as_input(resized(image, *sides))


def cut_out(image, found):
    """The line of text: what the map shows, along the direction in which it is longest."""
    rows, columns = np.nonzero(found > TEXT)
    if len(rows) < 8:
        return np.zeros((HEIGHT, HEIGHT, 3))
    points = np.stack(
        [(columns + 0.5) * image.shape[1] / found.shape[1], (rows + 0.5) * image.shape[0] / found.shape[0]]
    )
    centre = points.mean(axis=1, keepdims=True)
    along = np.linalg.eigh(np.cov(points))[1][:, -1]
    along = along if along[0] >= 0 else -along
    across = np.array([-along[1], along[0]])
    ends = [axis @ (points - centre) for axis in (along, across)]
    (first, last), (top, bottom) = [(values.min(), values.max()) for values in ends]
    margin = (last - first) * (bottom - top) * UNCLIP / (2 * (last - first + bottom - top))
    first, last, top, bottom = first - margin, last + margin, top - margin, bottom + margin
    thick = max(bottom - top, 1.0)  # what the map shows may be a hair, which has no thickness between its pixels
    width = int(np.clip(round((last - first) / thick * HEIGHT), HEIGHT, MOST_WIDTH))
    s, t = np.meshgrid(np.linspace(first, last, width), np.linspace(top, bottom, HEIGHT))
    x, y = (centre[i] + s * along[i] + t * across[i] for i in (0, 1))
    return sample(image, x, y)


def for_direction(line):
    """The line in the size that the direction network was trained on, grey where it is shorter."""
    width = min(LOOK_WIDTH, line.shape[1])
    look = np.full((HEIGHT, LOOK_WIDTH, 3), 127.5)
    look[:, :width] = resized(line, width, HEIGHT)
    return as_input(look)


def read(scores, labels):
    """CTC: the likeliest label of each step, repeats merged, blanks (label 0) dropped."""
    best = scores.argmax(axis=1)
    kept = [label for before, label in zip([0, *best[:-1]], best, strict=True) if label and label != before]
    return "".join(labels[label] for label in kept)


class TritonPythonModel:
    """See the top of this file."""

    def initialize(self, args):
        """The labels are those of the recognition network: a copy, because a worker cannot read other models' files."""
        labels = Path(args["model_repository"]) / "labels.txt"
        self.labels = labels.read_text(encoding="utf-8").removesuffix("\n").split("\n")

    def execute(self, requests):
        """One step for each request."""
        return [pb_utils.InferenceResponse(self.step(request)) for request in requests]

    def step(self, request):
        """The outputs of the step that the inputs ask for."""
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if given.keys() not in STEPS:
            found, *wanted = (" and ".join(sorted(names)) for names in (given, *STEPS))
            raise pb_utils.TritonModelException(f"found inputs {found or 'none'}, expected {', '.join(wanted)}")
        if "CHARACTERS" in given:
            text = read(given["CHARACTERS"].reshape(-1, len(self.labels)), self.labels)
            return [pb_utils.Tensor("TEXT", np.array([text.encode()], object))]
        if "DIRECTION" in given:
            line, turned = given["LINE"], given["DIRECTION"].reshape(2).argmax() == 1
            return [pb_utils.Tensor("UPRIGHT", np.ascontiguousarray(line[..., ::-1, ::-1]) if turned else line)]
        image = given["IMAGE"]
        if not image.size:
            raise pb_utils.TritonModelException(f"IMAGE has shape {list(image.shape)}, expected at least one pixel")
        if "MAP" not in given:
            return [pb_utils.Tensor("X", for_detection(image))]
        line = cut_out(image, given["MAP"].reshape(given["MAP"].shape[-2:]))
        return [pb_utils.Tensor("LINE", as_input(line)), pb_utils.Tensor("LOOK", for_direction(line))]
