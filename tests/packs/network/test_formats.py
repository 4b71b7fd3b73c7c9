"""Every format of one network computes what ONNX Runtime computes of its ONNX file, for 20 photographs.

`pytest -m slow -s tests/packs/network` prints the largest difference of each.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packs.environments import backends_with
from tests.packs.network.libraries import NETWORK
from tests.packs.network.served import add_model, add_reference, compare
from tests.packs.network.torch_network import write
from tests.packs.openvino.test_served import OPENVINO, convert, parameters
from tests.server.running import Running, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, about scripts
]
FACE = """
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1, 3, 224, 224 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1, 1000, 1, 1 ] }
"""
TORCH = {
    "torchscript": (f'platform: "pytorch_libtorch"\n{FACE}', "model.pt"),
    "exported": ("", "model.pt2"),
    "aotinductor": (f'platform: "torch_aoti"\n{FACE}', "model.pt2"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root, backends = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("backends")
    for pack in ("openvino", "pytorch"):
        backends_with(pack, backends)
    add_reference(root)
    add_model(root, "onnx", OPENVINO, NETWORK, "model.onnx")
    add_model(root, "bf16", OPENVINO + parameters(HINT_BF16="YES"), NETWORK, "model.onnx")
    convert(backends, NETWORK, root / "ir/1/model.xml")
    for name, (config, _) in TORCH.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    write(NETWORK, *(root / name / "1" / file for name, (_, file) in TORCH.items()))
    with running(f"--model-repository={root}", f"--backend-directory={backends}", limit=120) as started:
        yield started


@pytest.mark.parametrize("model", ["onnx", "ir", *TORCH])
def test_each_format_has_the_same_first_class(server: Running, model: str) -> None:
    compare(server, model, 2e-5)


def test_bfloat16_is_coarser(server: Running) -> None:
    """On a processor that has it."""
    compare(server, "bf16", 0.3, least=18)
