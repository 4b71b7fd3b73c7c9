"""New versions of each pack's models under load: no request fails, and each answer is that of the version it names."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http

from edge_serve.messages.tensors import Array
from tests.backends.onnx_models import FLOAT, node, save
from tests.packs.environments import backends_with
from tests.packs.fil.test_served import MODELS, case
from tests.packs.pytorch import torch_models
from tests.packs.scenes.repository import OPENVINO, PACKS, TORCH, tensors
from tests.server.load import Load, busy
from tests.server.running import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, about scripts
]
CONNECTIONS, SWAPS = 8, 2
#: answers of a version before the next one
ENOUGH = 20
MODES = {
    "explicit": ("--model-control-mode=explicit", "--load-model=*"),
    "poll": ("--model-control-mode=poll", "--repository-poll-secs=1"),
}
#: forests with the same features, one for every second version
FORESTS = ("xgboost_regression", "xgboost_poisson")
ROWS = case(FORESTS[0], 2)[0]
LONGEST = 60.0


def write_version(root: Path, pack: str, number: int) -> Array:
    """Write a version of a pack's model, as a user copies it; its answer."""
    directory = root / pack / str(number)
    directory.mkdir(parents=True)
    match pack:
        case "pytorch":
            torch_models.save_script(torch_models.Times(number), directory / "model.pt")
        case "openvino":
            factor = {"factor": np.array(number, np.float32)}
            nodes = [node("Mul", ["x", "factor"], ["y"])]
            save(directory / "model.onnx", nodes, {"x": (FLOAT, ("N", 12))}, {"y": (FLOAT, ("N", 12))}, factor)
        case _:
            source = MODELS / FORESTS[number % 2]
            (directory / "xgboost.json").write_bytes((source / "xgboost.json").read_bytes())
            return case(FORESTS[number % 2], len(ROWS))[1]
    answer: Array = ROWS * number
    return answer


FACES = {
    "pytorch": (TORCH + tensors({"x": "FP32 12"}, {"OUTPUT__0": "FP32 12"}), "x"),
    "openvino": (OPENVINO, "x"),
    "fil": ('backend: "fil"\n', "input__0"),
}


class Asker(Load):
    """Asks one model until the end, and compares each answer with its version's."""

    def __init__(self, url: str, pack: str, answers: Mapping[str, Array]) -> None:
        super().__init__()
        self.url, self.pack, self.answers = url, pack, answers
        self.versions: Counter[str] = Counter()

    def run(self) -> None:
        """Ask with a connection of its own."""
        tensor = http.InferInput(FACES[self.pack][1], list(ROWS.shape), "FP32")
        tensor.set_data_from_numpy(ROWS)
        with http.InferenceServerClient(self.url, network_timeout=60) as client:
            while not self.stop.is_set():
                problem, version = self._ask(client, tensor)
                with self.lock:
                    self.answered += 1
                    self.versions[version] += 1
                    self.failures += [problem] if problem else []

    def has_heard(self, version: str) -> bool:
        """Return whether a version has answered often, or a request has failed."""
        return self.versions[version] > ENOUGH or bool(self.failures)

    def _ask(self, client: http.InferenceServerClient, tensor: http.InferInput) -> tuple[str, str]:
        try:
            result = client.infer(self.pack, [tensor])
        except Exception as error:
            return repr(error), ""
        response = result.get_response()
        version, found = response["model_version"], result.as_numpy(response["outputs"][0]["name"])
        if np.allclose(found, self.answers[version], rtol=1e-5, atol=1e-5, equal_nan=True):
            return "", version
        return f"version {version} answered {found}", version


@pytest.mark.parametrize(
    ("pack", "mode"), [*((pack, "explicit") for pack in PACKS), ("pytorch", "poll"), ("fil", "poll")]
)
def test_no_request_fails_while_versions_are_swapped(tmp_path: Path, pack: str, mode: str) -> None:
    root, backends = tmp_path / "models", backends_with(pack, tmp_path / "backends")
    answers = {"1": write_version(root, pack, 1)}
    (root / pack / "config.pbtxt").write_text(FACES[pack][0])
    with running(f"--model-repository={root}", f"--backend-directory={backends}", *MODES[mode], limit=60) as server:
        load = Asker(server.url, pack, answers)

        def swap() -> None:
            wait_until(partial(load.has_heard, "1"))
            for number in range(2, 2 + SWAPS):
                answers[str(number)] = write_version(root, pack, number)
                if mode == "explicit":
                    status, body = server.post(f"/v2/repository/models/{pack}/load")
                    assert status == 200, body
                wait_until(partial(load.has_heard, str(number)))

        busy(load, [load.run] * CONNECTIONS, swap)
        wait_until(lambda: len(server.workers()) == 1)
    print(f"\n{pack}, {mode}: {load.answered} answers, {len(load.failures)} failed, by version {dict(load.versions)}")
    assert load.failures == []
    assert sorted(load.versions) == sorted(answers)


def wait_until(happened: Callable[[], bool]) -> None:
    """Look until it has."""
    end = time.monotonic() + LONGEST
    while not happened():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)
