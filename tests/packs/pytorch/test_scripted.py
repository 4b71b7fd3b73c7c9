"""TorchScript models, from the file to the answers. Texts: Triton's pytorch_backend."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from edge_serve.backends.base import BackendInstance, BackendRequest, DeviceLost, InstanceSpec, Reply, Timing
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.messages.tensors import Array, DataType, InferTensor
from edge_serve.workers.child.states import with_states
from packs.pytorch.backend import PyTorchBackend
from tests.backends.hosting import RecordingHost, installed, model_spec, request, tensor
from tests.packs.pytorch import torch_models as models

import torch  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, about scripts

Open = Callable[..., list[BackendInstance]]


def io(name: str, *dims: int, data_type: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def config(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], most: int = 8, **more: Any) -> dict[str, Any]:
    return {"max_batch_size": most, "input": inputs, "output": outputs, **more}


ADD_SUB = config([io("INPUT0", 4), io("INPUT1", 4)], [io("OUTPUT__0", 4), io("OUTPUT__1", 4)])
BOTH = ("OUTPUT__0", "OUTPUT__1")
ONE = config([io("INPUT__0", -1)], [io("OUTPUT__0", -1)])
OUT = ("OUTPUT__0",)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the model's file belongs."""
    return tmp_path / "m/1/model.pt"


@pytest.fixture
def open_model(file: Path) -> Open:
    """Opens instances of the model at `file`."""

    def opened(made: dict[str, Any], count: int = 1, kind: str = "CPU") -> list[BackendInstance]:
        spec = model_spec(file.parent.parent, made)
        return PyTorchBackend().open(spec, [InstanceSpec(f"m_{index}", kind) for index in range(count)])

    return opened


def execute(instance: BackendInstance, *requests: BackendRequest) -> list[Reply]:
    replies = instance.execute(requests, timing := Timing())
    assert 0 < timing.input_end_ns <= timing.output_start_ns
    return replies


def values(reply: Reply) -> dict[str, Any]:
    assert reply.error is None
    return {one.name: one.array().tolist() for one in reply.outputs}


def row(*numbers: float) -> Array:
    return np.array([numbers], np.float32)


def two(a: Array, b: Array, outputs: tuple[str, ...] = BOTH) -> BackendRequest:
    return request(tensor("INPUT0", a), tensor("INPUT1", b), outputs=outputs)


def test_requests_of_a_batch_are_joined_and_taken_apart(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    (instance,) = open_model(ADD_SUB)
    ones = np.ones((2, 4), np.float32)

    first, second, third = execute(
        instance, two(row(5, 6, 7, 8), row(1, 1, 1, 1)), two(ones, ones, OUT), two(row(0, 0, 0, 0), row(2, 2, 2, 2))
    )

    assert values(first) == {"OUTPUT__0": [[4, 5, 6, 7]], "OUTPUT__1": [[6, 7, 8, 9]]}
    assert values(second) == {"OUTPUT__0": [[0] * 4] * 2}
    assert values(third) == {"OUTPUT__0": [[-2] * 4], "OUTPUT__1": [[2] * 4]}


def test_inputs_in_another_order_are_found_by_their_names(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    (instance,) = open_model(ADD_SUB)
    swapped = request(tensor("INPUT1", row(1, 1, 1, 1)), tensor("INPUT0", row(5, 6, 7, 8)), outputs=BOTH)

    replies = execute(instance, two(row(5, 6, 7, 8), row(1, 1, 1, 1)), swapped)

    assert values(replies[0]) == values(replies[1])


def test_a_single_input_and_output_are_not_copied(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)
    (instance,) = open_model(ONE)
    memory = np.arange(64, dtype=np.float32)

    (reply,) = execute(
        instance, request(InferTensor("INPUT__0", DataType.FP32, (1, 64), memory.data.cast("B")), outputs=OUT)
    )

    assert np.shares_memory(np.frombuffer(reply.outputs[0].data, np.float32), memory)


@pytest.mark.parametrize("joined", [False, True])
def test_a_model_never_writes_into_memory_that_is_not_its_own(file: Path, open_model: Open, joined: bool) -> None:
    models.save_script(models.Writing(), file)
    (instance,) = open_model(ONE)
    data = np.zeros(4, np.float32).tobytes()
    one = request(InferTensor("INPUT__0", DataType.FP32, (1, 4), data), outputs=OUT)

    replies = execute(instance, one, *([one] if joined else []))

    assert [values(reply) for reply in replies] == [{"OUTPUT__0": [[1, 1, 1, 1]]}] * (1 + joined)
    assert data == bytes(16)


def test_an_unaligned_input_is_read(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)
    (instance,) = open_model(ONE)
    data = memoryview(bytearray(b"x" + row(1, 2).tobytes()))[1:]

    (reply,) = execute(instance, request(InferTensor("INPUT__0", DataType.FP32, (1, 2), data), outputs=OUT))

    assert values(reply) == {"OUTPUT__0": [[1, 2]]}


@pytest.mark.parametrize(
    "data_type", ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64"]
)
def test_every_type_of_torch_goes_in_and_out(file: Path, open_model: Open, data_type: str) -> None:
    models.save_script(models.Identity(), file)
    datatype = DataType[data_type]
    (instance,) = open_model(
        config([io("INPUT__0", 3, data_type=f"TYPE_{data_type}")], [io("OUTPUT__0", 3, data_type=f"TYPE_{data_type}")])
    )
    array = np.array([[0, 1, 1]]).astype(datatype.numpy)

    replies = execute(instance, *[request(tensor("INPUT__0", array, datatype), outputs=OUT)] * 2)

    for reply in replies:
        assert reply.outputs[0].datatype is datatype
        assert reply.outputs[0].array().tolist() == array.tolist()


def test_bf16_is_computed_with_as_such(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    tensors = [io(name, 1, data_type="TYPE_BF16") for name in ("INPUT0", "INPUT1", "OUTPUT__0", "OUTPUT__1")]
    (instance,) = open_model(config(tensors[:2], tensors[2:]))
    one = tensor("INPUT0", np.array([[0x3F80]], np.uint16), DataType.BF16)  # 1.0

    (reply,) = execute(instance, request(one, InferTensor("INPUT1", DataType.BF16, (1, 1), one.data), outputs=BOTH))

    assert values(reply) == {"OUTPUT__0": [[0]], "OUTPUT__1": [[0x4000]]}  # 2.0


def test_an_empty_batch_and_empty_tensors_are_answered(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    (instance,) = open_model(ADD_SUB)
    nothing = np.zeros((0, 4), np.float32)

    (reply,) = execute(instance, two(nothing, nothing))
    assert [one.shape for one in reply.outputs] == [(0, 4), (0, 4)]

    replies = execute(instance, two(nothing, nothing), two(row(1, 1, 1, 1), row(1, 1, 1, 1)))
    assert [one.shape for reply in replies for one in reply.outputs] == [(0, 4), (0, 4), (1, 4), (1, 4)]


def test_images_of_any_height_are_classified_as_by_torch(file: Path, open_model: Open) -> None:
    torch.manual_seed(19)
    network = models.Network().eval()
    models.save_script(network, file, torch.zeros(1, 3, 16, 16))
    (instance,) = open_model(config([io("INPUT__0", 3, -1, -1)], [io("OUTPUT__0", 10)]))

    for height in (16, 33):
        image = torch.randn(2, 3, height, 24)
        (reply,) = execute(instance, request(tensor("INPUT__0", image.numpy()), outputs=OUT))
        np.testing.assert_allclose(reply.outputs[0].array(), network(image).detach(), rtol=0, atol=1e-5)


def test_requests_whose_shapes_differ_are_refused(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)
    (instance,) = open_model(ONE)

    with pytest.raises(
        Internal, match=r"input 'INPUT__0' cannot be joined to one batch: shapes are \[1, 2\], \[1, 3\]"
    ):
        execute(instance, *(request(tensor("INPUT__0", row(*range(n))), outputs=OUT) for n in (2, 3)))


def test_ragged_inputs_are_flattened_and_batch_inputs_are_made(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    made = config(
        [io("INPUT__0", -1, allow_ragged_batch=True)], [io("OUTPUT__0", -1)],
        batch_input=[{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["INPUT__1"], "data_type": "TYPE_FP32",
                      "source_input": ["INPUT__0"]}],
        batch_output=[{"target_name": ["OUTPUT__0"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
                       "source_input": ["INPUT__0"]}],
    )  # fmt: skip
    (instance,) = open_model(made)

    replies = execute(instance, *(request(tensor("INPUT__0", row(n)), outputs=OUT) for n in (5, 7)))

    assert [values(reply) for reply in replies] == [{"OUTPUT__0": [[4]]}, {"OUTPUT__0": [[6]]}]


# ---- containers and strings -----------------------------------------------------------------------------------------


def test_a_dictionary_of_inputs_has_their_names(file: Path, open_model: Open) -> None:
    models.save_script(models.Keyed(), file)
    (instance,) = open_model(config([io("right", 1), io("left", 1)], [io("OUTPUT__0", 1)]))

    (reply,) = execute(instance, request(tensor("right", row(2)), tensor("left", row(3)), outputs=OUT))

    assert values(reply) == {"OUTPUT__0": [[32]]}


def test_an_optional_input_of_a_dictionary_may_be_left_out(file: Path, open_model: Open) -> None:
    models.save_script(models.KeyedOptional(), file)
    (instance,) = open_model(config([io("x", 1), io("more", 1, optional=True)], [io("OUTPUT__0", 1)]))

    given = tensor("x", row(2)), tensor("more", row(3))
    found = [values(execute(instance, request(*some, outputs=OUT))[0]) for some in (given, given[:1])]
    assert found == [{"OUTPUT__0": [[5]]}, {"OUTPUT__0": [[2]]}]


def test_a_script_without_forward_is_named(file: Path, open_model: Open) -> None:
    file.parent.mkdir(parents=True)
    torch.jit.script(models.NoForward()).save(str(file))
    with pytest.raises(Internal, match=r"^the script has no method forward\(\), which is what runs"):
        open_model(ONE)


def test_a_dictionary_of_outputs_has_their_names(file: Path, open_model: Open) -> None:
    models.save_script(models.KeyedResult(), file)
    (instance,) = open_model(config([io("x", 1)], [io("half", 1), io("twice", 1)]))
    (reply,) = execute(instance, request(tensor("x", row(3)), outputs=("half", "twice")))
    assert values(reply) == {"half": [[1.5]], "twice": [[6]]}

    (instance,) = open_model(config([io("x", 1)], [io("third", 1)]))
    with pytest.raises(InvalidArgument, match=r"dictionary without 'third': name the outputs .* its keys twice, half"):
        execute(instance, request(tensor("x", row(3)), outputs=("third",)))


@pytest.mark.parametrize("data_type", ["TYPE_STRING", "TYPE_INT32"])
def test_a_dictionary_of_numbers_is_refused(file: Path, open_model: Open, data_type: str) -> None:
    models.save_script(models.KeyedNumber(), file)
    (instance,) = open_model(config([io("x", 1)], [io("count", 1, data_type=data_type)], most=0))
    with pytest.raises(Internal, match=r"output at index 0 must be of type Tensor or List\[str\], received int"):
        execute(instance, request(tensor("x", row(3)[0]), outputs=("count",)))


STRINGS = config([io("texts", -1, data_type="TYPE_STRING")], [io("OUTPUT__0", -1, data_type="TYPE_STRING")], most=0)


def text_request(text: str) -> BackendRequest:
    return request(tensor("texts", np.array([text.encode()], object), DataType.BYTES), outputs=OUT)


def test_half_a_character_is_named(file: Path, open_model: Open) -> None:
    models.save_script(models.Cut(), file)
    (instance,) = open_model(STRINGS)
    with pytest.raises(Internal, match="the model returns a string that is not UTF-8, which torch cannot hand over"):
        execute(instance, text_request("ä"))


def test_a_client_cannot_call_the_device_lost(file: Path, open_model: Open) -> None:
    models.save_script(models.Quoting(), file)
    (instance,) = open_model(STRINGS)
    with pytest.raises(Internal, match="misaligned address") as caught:
        execute(instance, text_request("misaligned address"))
    assert not isinstance(caught.value, DeviceLost)


@pytest.mark.parametrize("call", ["copy", "stream"])
def test_a_device_that_was_lost_before_the_request(
    file: Path, open_model: Open, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The copy of an input finds it, or the change of the stream; the worker has to restart."""

    def fail(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("CUDA error: unknown error\nCUDA kernel errors might be asynchronously reported")

    models.save_script(models.Identity(), file)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr("packs.pytorch.instance.own_stream", lambda device: "a stream")
    monkeypatch.setattr("packs.pytorch.instance.work_on", fail if call == "stream" else lambda stream: nullcontext())
    (instance,) = open_model(ONE)
    monkeypatch.setattr(torch.Tensor, "to", fail)

    with pytest.raises(DeviceLost, match=r"^PyTorch execute failure: CUDA error: unknown error$"):
        execute(instance, request(tensor("INPUT__0", row(3)), outputs=OUT))


def test_a_list_of_tensors_is_several_outputs(file: Path, open_model: Open) -> None:
    models.save_script(models.ListResult(), file)
    (instance,) = open_model(config([io("x", 1)], [io("OUTPUT__1", 1), io("OUTPUT__0", 1)]))

    (reply,) = execute(instance, request(tensor("x", row(3)), outputs=BOTH))

    assert values(reply) == {"OUTPUT__1": [[4]], "OUTPUT__0": [[3]]}


def test_lists_of_strings_are_joined_and_taken_apart(file: Path, open_model: Open) -> None:
    models.save_script(models.Texts(), file)
    text = {"dims": [1], "reshape": {"shape": []}}
    (instance,) = open_model(
        config(
            [io("texts", data_type="TYPE_STRING", **text), io("n", 1)],
            [io("OUTPUT__0", data_type="TYPE_STRING", **text), io("OUTPUT__1", 1)],
        )
    )

    def asked(*texts: bytes) -> BackendRequest:
        array = np.array(texts, object)
        return request(tensor("texts", array), tensor("n", np.zeros((len(texts), 1), np.float32)), outputs=BOTH)

    replies = execute(instance, asked(b"a", "ü".encode()), asked(b""), asked(b"a\0b"))

    assert [values(reply)["OUTPUT__0"] for reply in replies] == [[b"a!", "ü!".encode()], [b"!"], [b"a\0b!"]]
    assert values(replies[1])["OUTPUT__1"] == [[4]]


def test_states_of_sequences_are_carried(file: Path, open_model: Open) -> None:
    models.save_script(models.Running(), file)
    made = config(
        [io("INPUT__0", 1)], [io("OUTPUT__0", 1)],
        sequence_batching={
            "control_input": [
                {"name": f"{name}__{place}",
                 "control": [{"kind": f"CONTROL_SEQUENCE_{name}", "fp32_false_true": [0, 1]}]}
                for name, place in (("START", 2), ("READY", 3))
            ],
            "state": [{"input_name": "STATE__1", "output_name": "OUTPUT_STATE__1", **io("", 1), "name": ""}],
        },
    )  # fmt: skip
    spec = model_spec(file.parent.parent, made)
    (instance,) = with_states(open_model(made), spec)

    def step(value: float, start: bool) -> float:
        one = request(
            tensor("INPUT__0", row(value)), tensor("START__2", row(start)), tensor("READY__3", row(1)), outputs=OUT
        )
        one.sequence_slot, one.flags = 0, int(start)
        (reply,) = instance.execute([one], Timing())
        assert [output.name for output in reply.outputs] == ["OUTPUT__0"]
        return float(reply.outputs[0].array()[0, 0])

    assert [step(2, True), step(3, False), step(4, False), step(1, True)] == [2, 5, 9, 1]


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "made", "expected", "text"),
    [
        (models.AddSub(), config([io("INPUT0", 1), io("INPUT1", 1)], [io("OUTPUT__2", 1)]), InvalidArgument,
         "^The output OUTPUT__2 in the model configuration refers to an output index which doesn't exist. This model "
         "has 2 outputs"),
        (models.Identity(), config([io("x", 1)], [io("OUTPUT__0", 1, data_type="TYPE_INT32")]), InvalidArgument,
         "^configuration expects datatype TYPE_INT32 for output 'OUTPUT__0', model provides TYPE_FP32"),
        (models.Scalar(), config([io("x", 1)], [io("OUTPUT__0", 1)]), InvalidArgument,
         "^output 'OUTPUT__0' is a scalar which is not supported."),
        (models.Number(), config([io("x", 1)], [io("OUTPUT__0", 1)]), Internal,
         r"output must be of type Tensor, List\[str\] or Tuple containing one of these two types."),
        (models.Rows(), config([io("x", 1)], [io("OUTPUT__0", 1)]), Internal,
         "failed to split the output tensor 'OUTPUT__0' in responses: expected batch size of atleast 1 in model"),
        (models.Refusing(), config([io("x", 1)], [io("OUTPUT__0", 1)]), Internal,
         "^PyTorch execute failure: (?s:.*)much"),
    ],
)  # fmt: skip
def test_a_batch_that_fails_says_why(
    file: Path, open_model: Open, module: Any, made: dict[str, Any], expected: type[EdgeServeError], text: str
) -> None:
    models.save_script(module, file)
    (instance,) = open_model(made)
    names = tuple(entry["name"] for entry in made["output"])

    with pytest.raises(expected, match=text):
        execute(instance, request(*(tensor(one["name"], row(200)) for one in made["input"]), outputs=names))


def test_a_wrong_type_or_shape_has_the_librarys_text(file: Path, open_model: Open) -> None:
    models.save_script(models.Network().eval(), file)
    (instance,) = open_model(config([io("x", 3, -1, -1)], [io("OUTPUT__0", 10)]))

    with pytest.raises(Internal, match=r"^PyTorch execute failure: (?s:.*)to have 3 channels, but got 2 channels"):
        execute(instance, request(tensor("x", np.zeros((1, 2, 8, 8), np.float32)), outputs=OUT))
    with pytest.raises(Internal, match=r"^PyTorch execute failure: "):
        execute(instance, request(tensor("x", np.zeros((1, 3, 8, 8), np.int64)), outputs=OUT))
    (reply,) = execute(instance, request(tensor("x", np.zeros((1, 3, 8, 8), np.float32)), outputs=OUT))
    assert reply.outputs[0].shape == (1, 10)


def test_a_missing_file_is_named(file: Path, open_model: Open) -> None:
    (file.parent).mkdir(parents=True)
    (file.parent / "net.pt").write_bytes(b"")

    with pytest.raises(Unavailable, match=r"^unable to find '.*/1/model.pt' for model instance 'm'"):
        open_model(ADD_SUB)


@pytest.mark.parametrize("damage", ["middle", "end"])
def test_a_damaged_file_is_refused(file: Path, open_model: Open, damage: str) -> None:
    models.save_script(models.Network(64), file)
    data = bytearray(file.read_bytes())
    if damage == "middle":
        place = data.index(b"constants.pkl") + 100
        data[place : place + 400] = bytes(400)
    else:
        data = data[: len(data) * 2 // 3]
    file.write_bytes(data)

    with pytest.raises(Internal, match=r"^failed to load model 'm': "):
        open_model(config([io("x", 3, -1, -1)], [io("OUTPUT__0", 10)]))


def test_a_missing_operator_is_named_with_the_remedy(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)
    replace_code(file, b"return x", b"return ops.mine.absent(x)")
    with pytest.raises(Internal, match=r"(?s)^failed to load model 'm': .*no operator mine::absent: name the library"):
        open_model(ONE)

    models.save_script(models.Identity(), file)
    replace_code(file, b"return x", b"return ops.torchvision.nms(x, x, 0.5)")
    with pytest.raises(
        Internal, match=r"(?s)^failed to load model 'm': .*operators of torchvision: install that beside"
    ):
        open_model(ONE)


def replace_code(path: Path, old: bytes, new: bytes) -> None:
    """Replace a part of the source in a script."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data.replace(old, new) if entry.endswith(".py") else data)


def test_a_library_of_operators_that_does_not_load_is_named(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)

    with pytest.raises(Internal, match=r"op_library_filename '/nowhere/libmine\.so': "):
        open_model({**ONE, "model_operations": {"op_library_filename": ["/nowhere/libmine.so"]}})


# ---- parameters and instances ---------------------------------------------------------------------------------------


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def test_weights_are_shared_where_the_configuration_asks(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    host = RecordingHost()
    with installed(host):
        open_model(ADD_SUB, count=3)
        assert not [text for _, text in host.lines if "Reusing" in text]
        instances = open_model({**ADD_SUB, **parameters(ENABLE_WEIGHT_SHARING="true")}, count=3)

    reused = [text for level, text in host.lines if "Reusing" in text and level == "INFO"]
    assert reused == [f"Reusing TorchScript model for instance 'm_{index}'" for index in (1, 2)]
    for instance in instances:
        assert values(execute(instance, two(row(1, 1, 1, 1), row(1, 1, 1, 1), OUT))[0]) == {"OUTPUT__0": [[0] * 4]}


def test_the_log_has_tritons_lines_once(file: Path) -> None:
    models.save_script(models.AddSub(), file)
    host, backend = RecordingHost(), PyTorchBackend()
    spec = model_spec(file.parent.parent, {**ADD_SUB, **parameters(INFERENCE_MODE="false", INTER_OP_THREAD_COUNT="2")})
    with installed(host):
        backend.open(spec, [InstanceSpec("m_0")])
        backend.open(spec, [InstanceSpec("m_1")])

    assert [text for _, text in host.lines].count("Inference Mode is disabled for model instance 'm'") == 1
    assert ("INFO", "Inference Mode is disabled for model instance 'm'") in host.lines
    assert ("VERBOSE", "Optimized execution is enabled for model instance 'm'") in host.lines
    assert [text for _, text in host.lines if text.startswith("Inter op thread count is set to ")]


@pytest.mark.parametrize("inference", ["true", "false"])
@pytest.mark.parametrize("optimized", ["true", "false"])
def test_no_mode_changes_the_answers(file: Path, open_model: Open, inference: str, optimized: str) -> None:
    network = models.Network().eval()
    models.save_script(network, file)
    more = parameters(
        INFERENCE_MODE=inference, DISABLE_OPTIMIZED_EXECUTION=optimized, ENABLE_JIT_PROFILING="true",
        ENABLE_JIT_EXECUTOR="true", ENABLE_TENSOR_FUSER="false", DISABLE_CUDNN="true", ENABLE_CACHE_CLEANING="true",
    )  # fmt: skip
    (instance,) = open_model(config([io("x", 3, -1, -1)], [io("OUTPUT__0", 10)], **more))
    image = torch.randn(1, 3, 12, 12)

    for _ in range(4):  # torch optimizes a script during its first runs
        (reply,) = execute(instance, request(tensor("x", image.numpy()), outputs=OUT))
        np.testing.assert_allclose(reply.outputs[0].array(), network(image).detach(), rtol=0, atol=1e-5)


def test_the_number_of_threads_is_that_of_the_configuration(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)
    (instance,) = open_model({**ONE, **parameters(INTRA_OP_THREAD_COUNT="1")})
    execute(instance, request(tensor("INPUT__0", row(1)), outputs=OUT))
    assert torch.get_num_threads() == 1

    (instance,) = open_model({**ONE, **parameters(INTRA_OP_THREAD_COUNT="3")})
    execute(instance, request(tensor("INPUT__0", row(1)), outputs=OUT))
    assert torch.get_num_threads() == 3


def test_a_script_in_training_mode_is_reported(file: Path, open_model: Open) -> None:
    host = RecordingHost()
    made = config([io("x", 3, -1, -1)], [io("OUTPUT__0", 10)])
    with installed(host):
        models.save_script(models.Network().train(), file)
        open_model(made, count=2)
        models.save_script(models.Network().eval(), file)
        open_model(made)

    told = [text for level, text in host.lines if level == "WARNING"]
    assert told[0].startswith("model 'm' was saved in training mode, in which body.1 (BatchNorm2d) answers otherwise")
    assert len(set(told)) == 1


def test_kind_model_leaves_the_devices_to_the_model(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)
    (instance,) = open_model(ADD_SUB, kind="MODEL")

    assert values(execute(instance, two(row(1, 1, 1, 1), row(1, 1, 1, 1), OUT))[0]) == {"OUTPUT__0": [[0] * 4]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_a_gpu_that_torch_does_not_see_is_named(file: Path, open_model: Open) -> None:
    models.save_script(models.AddSub(), file)

    text = r"instance 'm_0' is for GPU 0, and torch 2.* sees 0 GPUs: edge-serve pack install pytorch --gpu, or write"
    with pytest.raises(Unavailable, match=text):
        open_model(ADD_SUB, kind="GPU")


def test_completion_says_that_scripts_do_not_tell_their_tensors(file: Path) -> None:
    models.save_script(models.AddSub(), file)
    host, spec = RecordingHost(), model_spec(file.parent.parent, {"input": [], "output": []})
    with installed(host):
        completed = PyTorchBackend().complete_config(spec)

    assert completed == spec.config
    assert host.lines[0][1].startswith("skipping model configuration auto-complete for 'm': not supported for pytorch ")


def test_an_output_with_the_negative_bit_is_resolved(file: Path, open_model: Open) -> None:
    models.save_script(models.Negative(), file)
    (instance,) = open_model(ONE)
    (reply,) = execute(instance, request(tensor("INPUT__0", row(1, 2)), outputs=OUT))
    assert values(reply) == {"OUTPUT__0": [[-1, -2]]}


def test_cudnn_stays_off_when_another_model_loads(file: Path, open_model: Open) -> None:
    models.save_script(models.Identity(), file)
    try:
        open_model({**ONE, "parameters": {"DISABLE_CUDNN": {"string_value": "true"}}})
        open_model(ONE)
        assert not torch.backends.cudnn.enabled
    finally:
        torch.backends.cudnn.enabled = True
