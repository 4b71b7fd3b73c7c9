"""New versions of models with implicit state: each sequence ends in the version that started it, with its own state."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http

from tests.packs.environments import backends_with
from tests.packs.scenes.repository import write_sequences
from tests.packs.scenes.test_swaps import CONNECTIONS, SWAPS, wait_until
from tests.server.load import Load, busy
from tests.server.running import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, about scripts
]
LENGTH = 10
#: of a version, before the next one
SEQUENCES = 20


class Sequences(Load):
    """Sends one sequence after the other, and compares each answer with the sum so far."""

    def __init__(self, url: str, model: str, tensor: str) -> None:
        super().__init__()
        self.url, self.model, self.tensor = url, model, tensor
        self.ended: Counter[str] = Counter()

    def run(self) -> None:
        """Send sequences on a connection of its own."""
        with self.lock:
            self.sequences += 1
            number = self.sequences
        with http.InferenceServerClient(self.url, network_timeout=60) as client:
            while not self.stop.is_set():
                try:
                    versions = [self._step(client, number, step) for step in range(LENGTH)]
                except Exception as error:
                    self.failures.append(repr(error))
                    return
                with self.lock:
                    self.ended[versions[0]] += 1
                    self.failures += [f"one sequence in versions {versions}"] if len(set(versions)) > 1 else []

    def _step(self, client: http.InferenceServerClient, number: int, step: int) -> str:
        given = http.InferInput(self.tensor, [1, 1], "FP32")
        given.set_data_from_numpy(np.array([[number + step]], np.float32))
        flags = {"sequence_start": step == 0, "sequence_end": step == LENGTH - 1}
        result = client.infer(self.model, [given], sequence_id=number, **flags)
        response = result.get_response()
        found = result.as_numpy(response["outputs"][0]["name"]).item()
        assert found == sum(number + before for before in range(step + 1)), f"step {step}: {found}"
        version: str = response["model_version"]
        return version


@pytest.mark.parametrize(("pack", "model", "tensor"), [("pytorch", "torch", "INPUT__0"), ("openvino", "openvino", "X")])
def test_each_sequence_ends_in_its_version(tmp_path: Path, pack: str, model: str, tensor: str) -> None:
    root, backends = tmp_path / "models", backends_with(pack, tmp_path / "backends")
    write_sequences(root)
    name = f"{model}_direct"
    flags = ("--model-control-mode=explicit", f"--load-model={name}")
    with running(f"--model-repository={root}", f"--backend-directory={backends}", *flags, limit=60) as server:
        load = Sequences(server.url, name, tensor)

        def enough(version: int) -> bool:
            return load.ended[str(version)] > SEQUENCES or bool(load.failures)

        def swap() -> None:
            wait_until(partial(enough, 1))
            for version in range(2, 2 + SWAPS):
                shutil.copytree(root / name / "1", root / name / str(version))
                status, body = server.post(f"/v2/repository/models/{name}/load")
                assert status == 200, body
                wait_until(partial(enough, version))

        busy(load, [load.run] * CONNECTIONS, swap)
    print(f"\n{name}: sequences of {LENGTH} by version {dict(load.ended)}, {len(load.failures)} failed")
    assert load.failures == []
