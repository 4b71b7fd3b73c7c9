"""The network in TensorFlow's formats, which TensorFlow has written. It is a gigabyte, so .ci/run has no such files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packs.environments import backends_with
from tests.packs.network.libraries import MODELS
from tests.packs.network.served import add_model, add_reference, compare
from tests.server.running import Running, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FORMATS = ("savedmodel", "graphdef", "tflite")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if not (MODELS / "model.tflite").is_file():
        pytest.skip("no files of TensorFlow: python -m tests.packs.network.libraries")
    root, backends = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("backends")
    add_reference(root)
    for name in FORMATS:
        add_model(root, name, "", MODELS / f"model.{name}", f"model.{name}")
    backends_with("openvino", backends)
    with running(f"--model-repository={root}", f"--backend-directory={backends}", limit=120) as started:
        yield started


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_the_same_first_class(server: Running, name: str) -> None:
    compare(server, name, 2e-5)
