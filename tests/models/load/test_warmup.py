"""Warm-up requests (that they run before a model is ready is shown in tests/server)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import signature_of
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, split_bytes, to_array
from edge_serve.models.load.warmup import WarmupListener, make_requests, random_data, warm_up
from edge_serve.models.run.reshape import reshape_inputs
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.workers import OpenedModel
from tests.transport.v2_scene import FakeLease


def sample(text: str, max_batch_size: int = 4) -> pb.ModelConfig:
    inputs = "input { name: 'X' data_type: TYPE_FP32 } input { name: 'S' data_type: TYPE_FP32 }"
    return parse_model_config(
        f"name: 'm' max_batch_size: {max_batch_size} {inputs} model_warmup {{ name: 's' {text} }}"
    )


def requests(config: pb.ModelConfig, directory: Path = Path()) -> list[InferRequest]:
    return make_requests(config, config.model_warmup[0], directory)


ZERO = "inputs { key: 'X' value { data_type: TYPE_FP32 dims: [2, 3] zero_data: true } }"


def test_a_sample_is_batch_size_requests_of_one_row() -> None:
    made = requests(sample("batch_size: 3 " + ZERO))

    assert len(made) == 3
    assert made[0].inputs[0].shape == (1, 2, 3)
    assert bytes(24) == bytes(made[0].inputs[0].data)


def test_a_model_without_batches_gets_one_request_of_the_bare_shape() -> None:
    assert [r.inputs[0].shape for r in requests(sample("batch_size: 1 " + ZERO, max_batch_size=0))] == [(2, 3)]


@pytest.mark.parametrize(("max_batch_size", "shape"), [(0, (1, 2, 3)), (4, (1, 1, 2, 3))])
def test_a_sample_has_the_shape_of_the_model_behind_reshape(max_batch_size: int, shape: tuple[int, ...]) -> None:
    """As in Triton 2.51: the dims of a sample are those that clients send."""
    config = sample("batch_size: 1 " + ZERO, max_batch_size)
    config.input[0].dims.extend([2, 3])
    config.input[0].reshape.shape.extend([1, 2, 3])
    (made,) = requests(config)

    reshape_inputs(made, signature_of(config, config.name, 1, {}))

    assert made.inputs[0].shape == shape


def test_batch_size_zero_is_skipped() -> None:
    assert requests(sample(ZERO)) == []


@pytest.mark.parametrize("datatype", [name for name in pb.DataType.keys() if name != "TYPE_INVALID"])  # noqa: SIM118
@pytest.mark.parametrize("kind", ["zero_data: true", "random_data: true"])
def test_every_type_makes_a_tensor_of_its_size(datatype: str, kind: str) -> None:
    config = sample(f"batch_size: 1 inputs {{ key: 'X' value {{ data_type: {datatype} dims: [5] {kind} }} }}")

    tensor = requests(config)[0].inputs[0]

    assert tensor.array().size == 5


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_random_fractions_are_from_0_to_1(datatype: str) -> None:
    data = random_data(DataType[datatype], (3, 4000), "X")
    values = to_array(data, DataType[datatype], (12000,))
    if datatype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")

    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1
    assert data == random_data(DataType[datatype], (3, 4000), "X") != random_data(DataType[datatype], (3, 4000), "Y")


def test_random_data_of_no_fractions() -> None:
    assert set(random_data(DataType.BOOL, (5000,), "X")) == {0, 1}
    assert len(set(random_data(DataType.UINT8, (5000,), "X"))) > 200
    assert len(set(split_bytes(random_data(DataType.BYTES, (5000,), "X")))) == 4096
    assert random_data(DataType.INT64, (0, 7), "X") == b""


def test_data_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "two").write_bytes(np.array([1, 2, 3], "<i4").tobytes())
    (tmp_path / "warmup" / "words").write_bytes(b"\x02\x00\x00\x00hi\x01\x00\x00\x00!\x00\x00\x00\x00")
    config = sample(
        "batch_size: 1 inputs { key: 'X' value { data_type: TYPE_INT32 dims: [2] input_data_file: 'two' } }"
        "inputs { key: 'S' value { data_type: TYPE_STRING dims: [2] input_data_file: 'words' } }"
    )

    by_name = {tensor.name: tensor for tensor in requests(config, tmp_path)[0].inputs}

    assert by_name["X"].array().tolist() == [[1, 2]]
    assert split_bytes(by_name["S"].data) == [b"hi", b"!"]


@pytest.mark.parametrize("name", ["file", "/file", "../data/file", "/../data/file"])
def test_a_data_file_may_lie_anywhere_in_the_directory_of_the_model(tmp_path: Path, name: str) -> None:
    for folder in ("warmup", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(folder[:4].encode())
    value = f"data_type: TYPE_INT32 dims: [1] input_data_file: '{name}'"
    (made,) = requests(sample(f"batch_size: 1 inputs {{ key: 'X' value {{ {value} }} }}"), tmp_path)

    assert bytes(made.inputs[0].data) == (b"data" if "data" in name else b"warm")


def test_warmup_samples_that_cannot_be_made_are_errors(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"1234")
    value = "batch_size: 1 inputs {{ key: 'X' value {{ data_type: TYPE_INT32 dims: [{}] {} }} }}"

    with pytest.raises(InvalidArgument, match="warmup input 'X' must specify 'data_type'"):
        requests(sample(value.replace("TYPE_INT32", "99").format(1, "zero_data: true")))
    with pytest.raises(InvalidArgument, match=r"warmup data file '/\.\./\.\./x' is outside the directory of the model"):
        requests(sample(value.format(1, "input_data_file: '/../../x'")), tmp_path)
    with pytest.raises(InvalidArgument, match="expects all variable-size dimensions are specified for input 'X'"):
        requests(sample(value.format(-1, "zero_data: true")))
    with pytest.raises(InvalidArgument, match="expected 8 bytes, found 4"):
        requests(sample(value.format(2, "input_data_file: 'short'")), tmp_path)
    with pytest.raises(Internal, match=r"failed to open text file for read .*absent: No such file"):
        requests(sample(value.format(2, "input_data_file: 'absent'")), tmp_path)
    with pytest.raises(InvalidArgument, match="warmup setting expects input 'X' to have input_data_type set"):
        requests(sample(value.format(1, "")))
    with pytest.raises(InvalidArgument, match="has batch_size 9, but 'm' allows at most 4"):
        requests(sample("batch_size: 9 " + ZERO))


def test_a_reply_after_the_load_was_called_off_frees_its_slot() -> None:
    lease = FakeLease(memoryview(b""), 0)

    async def work() -> None:
        listener = WarmupListener()
        listener.expect(0).cancel()
        listener.on_reply(0, BatchReply(1, 0, 0, 0, 0, [], lease))
        listener.expect(0).cancel()
        listener.on_lost({0: Internal("its worker died")})
        listener.on_reply(0, BatchReply(1, 0, 0, 0, 0, []))  # of a golden test, which had another listener

    asyncio.run(work())
    assert lease.released == 1


_S = ZERO.replace("X", "S")


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (ZERO, r"expected 2 inputs but got 1 inputs .* missing required input\(s\) \['S'\]"),
        (ZERO + _S.replace("FP32", "INT32"), "input 'S' data-type is 'INT32', but model 'm' expects 'FP32'"),
        (ZERO + _S.replace("[2, 3]", "[2, 4]"), r"unexpected shape for input 'S' .* got \[1,2,4\]"),
    ],
)
def test_a_sample_that_does_not_fit_the_model_fails_the_load(inputs: str, error: str) -> None:
    config = sample("batch_size: 1 " + inputs)
    for spec in config.input:
        spec.dims.extend([2, 3])
    with pytest.raises(InvalidArgument, match=f"{error}.*orrect model_warmup sample 's'"):
        asyncio.run(warm_up(config, signature_of(config, "m", 1), Path(), cast(OpenedModel, None), WarmupListener()))


def test_a_sample_has_control_and_state_inputs_beside_those_of_clients() -> None:
    """The check leaves them out."""
    config = sample("batch_size: 1 " + ZERO + ZERO.replace("X", "START") + ZERO.replace("X", "MEMORY"))
    del config.input[1]
    config.input[0].dims.extend([2, 3])
    config.sequence_batching.control_input.add(name="START")
    config.sequence_batching.state.add(input_name="MEMORY")
    opened = SimpleNamespace(numbers=())
    signature = signature_of(config, "m", 1)
    asyncio.run(warm_up(config, signature, Path(), cast(OpenedModel, opened), WarmupListener()))


def test_an_input_that_the_model_does_not_have_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    config = sample("batch_size: 1 " + ZERO + ZERO.replace("X", "OLD"))
    del config.input[1]
    config.input[0].dims.extend([2, 3])
    opened = cast(OpenedModel, SimpleNamespace(numbers=()))
    asyncio.run(warm_up(config, signature_of(config, "m", 1), Path(), opened, WarmupListener()))

    assert [tensor.name for tensor in requests(config)[0].inputs] == ["X"]
    assert "warmup sample 's' has input 'OLD', which model m does not have" in caplog.text
    assert "the inputs are X" in caplog.text
