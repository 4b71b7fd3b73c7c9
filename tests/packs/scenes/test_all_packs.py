"""Every pack beside the others: tensors, sequences, ensembles, calls from Python, and shared memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from edge_serve.messages.tensors import Array
from tests.packs.environments import backends_with
from tests.packs.scenes.client import infer, region
from tests.packs.scenes.repository import CHAIN, PACKS, PLAIN, ROWS, SCORES, STRATEGIES, TYPES, write
from tests.server.running import Running, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, about scripts
]
#: model, inputs, and options of the client -> outputs
Ask = Callable[..., dict[str, Array]]
SEQUENCES = [
    f"{library}_{strategy.split()[0]}" for library in ("torch", "exported", "openvino") for strategy in STRATEGIES
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root, backends = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("backends")
    for pack in PACKS:
        backends_with(pack, backends)
    write(root)
    places = (f"--model-repository={root}", f"--backend-directory={backends}")
    arguments = (*places, "--allow-client-shm=true", "--allow-grpc=true", "--grpc-port=0")
    with running(*arguments, limit=120) as started:
        yield started


@pytest.fixture(params=["http", "grpc"])
def ask(server: Running, request: pytest.FixtureRequest) -> Ask:
    """Sends a request over one of the protocols, as `infer`."""
    return partial(infer, server, over_grpc=request.param == "grpc")


def same(found: dict[str, Any], expected: Any) -> None:
    """The outputs are there, in their order, with their values."""
    assert [*found] == [*expected]
    for name, array in expected.items():
        assert found[name].shape == np.shape(array)
        np.testing.assert_allclose(found[name], array, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pack", PACKS)
def test_several_inputs_and_outputs(ask: Ask, pack: str) -> None:
    same(ask(PLAIN[pack].model, PLAIN[pack].inputs), PLAIN[pack].outputs)


@pytest.mark.parametrize("pack", PACKS)
def test_an_empty_batch_is_refused_as_by_triton(ask: Ask, pack: str) -> None:
    *_, last = PLAIN[pack].inputs
    text = f"input byte size mismatch for input '{last}' for model '{PLAIN[pack].model}'. Expected 48, got 0"
    with pytest.raises(InferenceServerException, match=re.escape(text)):
        ask(PLAIN[pack].model, {name: array[:0] for name, array in PLAIN[pack].inputs.items()})


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_variable_dimension_may_be_empty(ask: Ask, pack: str, rows: int) -> None:
    """Of a model without max_batch_size."""
    plain = PLAIN[pack]
    found = ask(f"rows_of_{plain.model}", {name: array[:rows] for name, array in plain.inputs.items()})
    same(found, {name: array[:rows] for name, array in plain.outputs.items()})


@pytest.mark.parametrize("pack", PACKS)
def test_a_python_model_calls_the_model(ask: Ask, pack: str) -> None:
    same(ask(f"caller_of_{PLAIN[pack].model}", PLAIN[pack].inputs), PLAIN[pack].outputs)


@pytest.mark.parametrize("pack", PACKS)
def test_shared_memory_in_and_out(server: Running, pack: str) -> None:
    plain = PLAIN[pack]
    with region(server) as memory:
        shapes = {name: array.shape for name, array in plain.outputs.items()}
        for _ in range(2):  # the model has not written into the inputs
            same(memory.infer(plain.model, plain.inputs, shapes), plain.outputs)


@pytest.mark.parametrize("pack", PACKS)
def test_the_statistics_count_the_rows(server: Running, ask: Ask, pack: str) -> None:
    def count() -> int:
        stats = json.loads(server.get(f"/v2/models/{PLAIN[pack].model}/stats")[1])["model_stats"][0]
        return int(stats["inference_count"])

    before = count()
    ask(PLAIN[pack].model, PLAIN[pack].inputs)
    assert count() == before + len(ROWS)


def test_an_ensemble_of_every_pack_and_python(server: Running, ask: Ask) -> None:
    same(ask("chain", {"X": ROWS}), {"BEST": SCORES.argmax(axis=1)[:, None], "scores": SCORES})
    for name, *_ in CHAIN:
        stats = json.loads(server.get(f"/v2/models/{name}/stats")[1])["model_stats"][0]
        assert stats["inference_stats"]["fail"]["count"] == 0


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_of_pytorch_makes_the_round_trip(ask: Ask, kind: str) -> None:
    names = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"}
    dtype = ml_dtypes.bfloat16 if kind == "BF16" else names.get(kind, kind.lower())
    values = np.array([[0, 1, 100], [3, 1, 0]]).astype(dtype)
    (found,) = ask(f"torch_{kind.lower()}", {"INPUT__0": values}, type_INPUT__0=kind).values()
    np.testing.assert_array_equal(found, values)


def test_strings(ask: Ask) -> None:
    texts, n = np.array([[b"a"], ["größer".encode()], [b""]], object), np.zeros((3, 1), np.float32)
    found = ask("torch_texts", {"texts": texts, "n": n})
    assert found["OUTPUT__0"].ravel().tolist() == [b"a!", "größer!".encode(), b"!"]
    assert found["OUTPUT__1"].ravel().tolist() == [3, 3, 3]
    pairs = np.array([[b"a", "größer".encode()]], object)
    assert ask("openvino_texts", {"X": pairs})["Y"].tolist() == pairs.tolist()


def test_dictionaries_of_torchscript(ask: Ask) -> None:
    two, three = np.array([[2]], np.float32), np.array([[3]], np.float32)
    assert ask("torch_keyed", {"left": three, "right": two})["OUTPUT__0"].tolist() == [[32]]
    found = ask("torch_keyed_result", {"x": three})
    assert {name: array.tolist() for name, array in found.items()} == {"half": [[1.5]], "twice": [[6]]}


@pytest.mark.parametrize(("model", "name"), [("torch_heights", "INPUT__0"), ("openvino_heights", "X")])
@pytest.mark.parametrize("height", [0, 1, 17])
def test_variable_heights(ask: Ask, model: str, name: str, height: int) -> None:
    image = np.random.default_rng(height).normal(size=(2, 3, height, 8)).astype(np.float32)
    (found,) = ask(model, {name: image}).values()
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("model", SEQUENCES)
def test_sequences_beside_each_other_keep_their_own_states(ask: Ask, model: str) -> None:
    name = "X" if model.startswith("openvino") else "INPUT__0"
    sums = dict.fromkeys((1, 2, 3), 0.0)
    for step in range(4):
        for number in sums:
            value = 10.0**number + step
            sums[number] += value
            (found,) = ask(
                model, {name: np.array([[value]], np.float32)}, sequence_id=number,
                sequence_start=step == 0, sequence_end=step == 3,
            ).values()  # fmt: skip
            assert found.item() == sums[number]


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_a_forest_in_a_sequence_answers_each_row_alone(server: Running, ask: Ask, strategy: str) -> None:
    """As in Triton, whose backend has no states and does not refuse them."""
    for step, row in enumerate(ROWS):
        flags = {"sequence_start": step == 0, "sequence_end": step == len(ROWS) - 1}
        found = ask(f"forest_{strategy}", {"input__0": row[None]}, sequence_id=9, **flags)
        np.testing.assert_allclose(found["output__0"], SCORES[step : step + 1], atol=1e-6)
    text = f"model 'forest_{strategy}': a forest keeps no state, so sequence_batching.state has no effect"
    assert server.log().count(text) == 1


def test_models_of_a_pack_share_a_process(server: Running) -> None:
    callers, steps = len(PACKS), 2  # models of Python have a process each
    assert len(server.workers()) == len(PACKS) + callers + steps
