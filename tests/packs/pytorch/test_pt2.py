"""model.pt2: exported programs and packages of AOTInductor, from the file to the answers."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import BackendInstance, BackendRequest, InstanceSpec, ModelSpec, Reply, Timing
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.tensors import Array, DataType
from packs.pytorch.backend import PyTorchBackend
from tests.backends.hosting import RecordingHost, installed, model_spec, request, tensor
from tests.packs.pytorch import torch_models as models

import torch  # isort: skip
from packs.pytorch.compiled import limits_in, load as load_compiled  # isort: skip
from packs.pytorch.exported import load as load_exported, most_rows  # isort: skip

EXPORTED, COMPILED = "exported", "compiled"
KINDS = [EXPORTED, pytest.param(COMPILED, marks=pytest.mark.slow)]  # it calls a compiler
BATCH = torch.export.Dim("batch", min=1, max=8)


def io(name: str, *dims: int, data_type: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def saved(directory: Path, kind: str, module: Any, example: Sequence[Any], **more: Any) -> Path:
    """Write a model; its directory."""
    save = models.save_exported if kind == EXPORTED else models.save_compiled
    save(module, directory / "m/1/model.pt2", example, **more)
    return directory / "m"


def opened(directory: Path, made: dict[str, Any], count: int = 1) -> list[BackendInstance]:
    return PyTorchBackend().open(spec_of(directory, made), [InstanceSpec(f"m_{index}") for index in range(count)])


def spec_of(directory: Path, made: dict[str, Any]) -> ModelSpec:
    return model_spec(directory, {"platform": "torch_aoti", **made})


def execute(instance: BackendInstance, *requests: BackendRequest) -> list[Reply]:
    return instance.execute(requests, Timing())


def values(reply: Reply) -> dict[str, Any]:
    assert reply.error is None
    return {one.name: one.array().tolist() for one in reply.outputs}


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


@pytest.fixture(scope="module", params=KINDS)
def add_sub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two inputs, two outputs, and a batch dimension."""
    example = (torch.zeros(2, 4), torch.zeros(2, 4))
    shapes = {"dynamic_shapes": ({0: BATCH}, {0: BATCH})}
    return saved(tmp_path_factory.mktemp("add_sub"), request.param, models.AddSub(), example, **shapes)


@pytest.mark.parametrize(
    "names", [("ARGS[0]", "ARGS[1]", "RESULT[0]", "RESULT[1]"), ("INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1")]
)
@pytest.mark.parametrize("sharing", ["true", "false"])
def test_requests_are_joined_and_taken_apart(add_sub: Path, names: tuple[str, ...], sharing: str) -> None:
    made = {
        "max_batch_size": 8, "input": [io(name, 4) for name in names[:2]],
        "output": [io(name, 4) for name in names[2:]],
        "parameters": {"ENABLE_WEIGHT_SHARING": {"string_value": sharing}},
    }  # fmt: skip
    for instance in opened(add_sub, made, count=2):
        replies = execute(
            instance,
            *(
                request(tensor(names[0], ones(rows, 4) * 3), tensor(names[1], ones(rows, 4)), outputs=names[2:])
                for rows in (1, 2)
            ),
        )

        assert [values(reply) for reply in replies] == [
            {names[2]: [[2.0] * 4] * rows, names[3]: [[4.0] * 4] * rows} for rows in (1, 2)
        ]


@pytest.mark.parametrize(("most", "warns"), [(8, False), (9, True)])
def test_a_larger_batch_than_the_program_takes_is_a_warning(tmp_path: Path, most: int, warns: bool) -> None:
    shapes = {"dynamic_shapes": ({0: BATCH}, {0: BATCH})}
    directory = saved(tmp_path, EXPORTED, models.AddSub(), (torch.zeros(2, 4), torch.zeros(2, 4)), **shapes)
    made = {"max_batch_size": most, "input": [io("INPUT__0", 4), io("INPUT__1", 4)], "output": [io("OUTPUT__0", 4)]}
    with installed(host := RecordingHost()):
        opened(directory, made)
    text = "max_batch_size is 9, and the program takes batches of at most 8: larger ones fail"
    assert any(text in line for _, line in host.lines) is warns


def test_a_program_without_a_limit_takes_any_batch(tmp_path: Path) -> None:
    shapes = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC})}
    directory = saved(tmp_path, EXPORTED, models.AddSub(), (torch.zeros(2, 4), torch.zeros(2, 4)), **shapes)
    assert most_rows(load_exported(directory / "1/model.pt2", "m", None)) == 0


@pytest.mark.slow
def test_compiled_code_refuses_another_shape_or_type_before_it_reads(tmp_path: Path) -> None:
    """It would read beyond the end of the tensor. Of an exported program the server knows types and shapes itself."""
    directory = saved(tmp_path, COMPILED, models.AddSub(), (torch.zeros(1, 4), torch.zeros(1, 4)))
    made = {"input": [io("INPUT__0", 1, 4), io("INPUT__1", 1, 4)], "output": [io("OUTPUT__0", 1, 4)]}
    (instance,) = opened(directory, made)

    for array in (ones(1, 5), ones(1, 3), np.ones((1, 4), np.int64), ones(1, 4, 1), ones(4)):
        with pytest.raises(InvalidArgument, match=r"^input 'INPUT__0' is torch.* for torch.float32 of \[1, 4\]$"):
            execute(
                instance, request(tensor("INPUT__0", array), tensor("INPUT__1", ones(1, 4)), outputs=("OUTPUT__0",))
            )
    given = [tensor(f"INPUT__{index}", ones(1, 4)) for index in range(2)]
    assert values(execute(instance, request(*given, outputs=("OUTPUT__0",)))[0]) == {"OUTPUT__0": [[0.0] * 4]}


@pytest.mark.slow
def test_compiled_code_answers_a_batch_of_one_row(tmp_path: Path) -> None:
    """torch takes a variable dimension for 2 or more, and so do the code's own checks. Triton's torch_aoti models."""
    shapes = {"dynamic_shapes": ({0: BATCH}, {0: BATCH})}
    directory = saved(tmp_path, COMPILED, models.AddSub(), (torch.zeros(2, 4), torch.zeros(2, 4)), **shapes)
    made = {"max_batch_size": 9, "input": [io("INPUT__0", 4), io("INPUT__1", 4)], "output": [io("OUTPUT__1", 4)]}
    (instance,) = opened(directory, made)

    for rows in (1, 3, 8):
        given = [tensor(f"INPUT__{index}", ones(rows, 4)) for index in range(2)]
        replies = execute(instance, request(*given, outputs=("OUTPUT__1",)))
        assert values(replies[0]) == {"OUTPUT__1": [[2.0] * 4] * rows}
    for rows in (0, 9):
        with pytest.raises(
            InvalidArgument, match=rf"of the shape \[{rows}, 4\], and .* for torch.float32 of \[1 to 8, 4\]$"
        ):
            execute(
                instance,
                request(tensor("INPUT__0", ones(rows, 4)), tensor("INPUT__1", ones(rows, 4)), outputs=("OUTPUT__1",)),
            )


SOURCE = """
AOTI_NOINLINE static void check_input_0(
    ConstantHandle arg0_1 = ConstantHandle(input_handles[0]);
    int32_t arg0_1_expected_dtype = aoti_torch_dtype_float16();
        ss << "input_handles[0]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
        ss << "input_handles[0]: dim value is too large at 0, "
           << "expected to be <= 8, " << "but got: "
        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 3, " << "but got: " << arg0_1_size[1]
        ss << "input_handles[0]: dim value is too small at 2, "
           << "expected it to be >= 5, " << "but got: "
        ss << "input_handles[0]: unmatched stride value at 2, "
           << "expected: 3, " << "but got: " << arg0_1_stride[2]
"""


def test_the_limits_of_inputs_are_in_the_source_of_a_package() -> None:
    (limits,) = limits_in(SOURCE, 1)

    assert (limits.data_type, limits.least, limits.most) == ("torch.float16", {0: 1, 1: 3, 2: 5}, {0: 8, 1: 3})
    limits.check("x", torch.zeros(1, 7, 3, dtype=torch.float16).transpose(1, 2))
    with pytest.raises(InvalidArgument, match=r"\[2, 3, 4\], and .* for torch.float16 of \[1 to 8, 3, 5 or more\]$"):
        limits.check("x", torch.zeros(2, 3, 4, dtype=torch.float16))
    with pytest.raises(InvalidArgument, match=r"^input 'x' has another order in memory than the example"):
        limits.check("x", torch.zeros(2, 3, 7, dtype=torch.float16))


@pytest.mark.parametrize(
    "source", ["", SOURCE.replace("aoti_torch_dtype", "other"), SOURCE.replace("small at 0", "tiny at 0")]
)
def test_a_package_that_does_not_tell_all_limits_keeps_its_own_checks(source: str) -> None:
    assert limits_in(source, 1) == []
    assert limits_in(SOURCE, 2) == []


@pytest.mark.parametrize("kind", KINDS)
def test_nested_arguments_have_names_by_tree_and_by_number(tmp_path: Path, kind: str) -> None:
    """Triton's torch_aoti_complex_named and torch_aoti_complex_index."""
    one, two, three, four = torch.zeros(4, 1, 16, dtype=torch.int8).unbind()
    directory = saved(tmp_path, kind, models.Complex(), (one, two, {"option1": three, "option2": four}))
    named = ["ARGS[0]", "ARGS[1]", "ARGS[2][option1]", "ARGS[2][option2]"]
    shown = [
        "RESULT[AAA]",
        "RESULT[ZZZ]",
        "RESULT[BBB][0]",
        "RESULT[BBB][1]",
        "RESULT[CCC][option1]",
        "RESULT[CCC][option2]",
    ]
    arrays = [np.full((1, 16), value, np.int8) for value in (5, 3, 1, 2)]

    for inputs, outputs in (
        (named, shown), ([f"INPUT__{index}" for index in range(4)], [f"OUTPUT__{index}" for index in range(6)])
    ):  # fmt: skip
        made = {
            "input": [io(name, 1, 16, data_type="TYPE_INT8") for name in inputs],
            "output": [io(name, 1, 16, data_type="TYPE_INT8") for name in outputs],
        }
        (instance,) = opened(directory, made)
        given = [tensor(name, array) for name, array in zip(inputs, arrays, strict=True)]
        (reply,) = execute(instance, request(*given, outputs=outputs))
        found = {one.name: int(one.array()[0, 0]) for one in reply.outputs}
        assert found == dict(zip(outputs, (8, 2, 5, 3, 1, 2), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_and_keywords_reach_the_model(tmp_path: Path, kind: str) -> None:
    first, second = torch.zeros(2, 1, 4, dtype=torch.bfloat16).unbind()
    directory = saved(tmp_path, kind, models.AddSub(), (first,), kwargs={"INPUT1": second})
    made = {
        "input": [io(name, 1, 4, data_type="TYPE_BF16") for name in ("KWARGS[INPUT1]", "ARGS[0]")],
        "output": [io("RESULT[1]", 1, 4, data_type="TYPE_BF16")],
    }
    (instance,) = opened(directory, made)
    one = np.full((1, 4), 0x3F80, np.uint16)

    given = [tensor(name, one, DataType.BF16) for name in ("KWARGS[INPUT1]", "ARGS[0]")]
    (reply,) = execute(instance, request(*given, outputs=("RESULT[1]",)))

    assert values(reply) == {"RESULT[1]": [[0x4000] * 4]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_answers_as_torch_does(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(19)
    network, example = models.Network().eval(), torch.randn(2, 3, 24, 24)
    directory = saved(tmp_path, kind, network, (example,), dynamic_shapes=({0: BATCH},))
    made = {"max_batch_size": 8, "input": [io("INPUT__0", 3, 24, 24)], "output": [io("OUTPUT__0", 10)]}
    (instance,) = opened(directory, made)
    image = torch.randn(3, 3, 24, 24)

    (reply,) = execute(instance, request(tensor("INPUT__0", image.numpy()), outputs=("OUTPUT__0",)))

    np.testing.assert_allclose(reply.outputs[0].array(), network(image).detach(), rtol=0, atol=1e-5)


# ---- configuration from the file ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program with a batch dimension."""
    example = (torch.zeros(2, 4), torch.zeros(2, 4))
    shapes = {"dynamic_shapes": ({0: BATCH}, {0: BATCH})}
    return saved(tmp_path_factory.mktemp("program"), EXPORTED, models.AddSub(), example, **shapes)


def test_an_exported_program_completes_its_configuration(program: Path) -> None:
    backend, spec = PyTorchBackend(), spec_of(program, {})
    spec.config = backend.complete_config(spec)

    assert spec.config["max_batch_size"] == 4
    assert spec.config["dynamic_batching"] == {}
    assert spec.config["input"] == [io("INPUT__0", 4), io("INPUT__1", 4)]
    assert spec.config["output"] == [io("OUTPUT__0", 4), io("OUTPUT__1", 4)]
    (instance,) = backend.open(spec, [InstanceSpec("m_0")])
    given = [tensor(f"INPUT__{index}", ones(1, 4)) for index in range(2)]
    assert values(execute(instance, request(*given, outputs=("OUTPUT__1",)))[0]) == {"OUTPUT__1": [[2.0] * 4]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"data_type": "TYPE_INT32"},
            "configuration expects datatype TYPE_INT32 for input 'INPUT__0', model provides TYPE_FP32",
        ),
        ({"dims": [5]}, r"the model expects 2 dimensions \(shape \[-1,4\]\) but the model configuration specifies"),
        ({"dims": [2, 2]}, "but the model configuration specifies 3 dimensions"),
    ],
)
def test_a_configuration_that_contradicts_the_program_is_refused(
    program: Path, change: dict[str, Any], text: str
) -> None:
    made: dict[str, Any] = {"max_batch_size": 4, "output": [io("OUTPUT__0", 4)]}
    made["input"] = [{**io("INPUT__0", 4), **change}, io("INPUT__1", 4)]

    with pytest.raises(InvalidArgument, match=text):
        opened(program, made)


def test_programs_that_load_at_once(program: Path) -> None:
    """As those of a repository do when the server starts. torch itself refuses the second."""
    made = {"input": [io("INPUT__0", -1, 4), io("INPUT__1", -1, 4)], "output": [io("OUTPUT__0", -1, 4)]}
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: opened(program, made), range(8)))


def test_a_program_without_a_batch_dimension_does_not_batch(tmp_path: Path) -> None:
    directory = saved(tmp_path, EXPORTED, models.Identity(), (torch.zeros(2, 4),))
    spec = spec_of(directory, {})
    assert PyTorchBackend().complete_config(spec)["max_batch_size"] == 0
    assert PyTorchBackend().complete_config(spec)["input"] == [io("INPUT__0", 2, 4)]

    made = {"max_batch_size": 4, "input": [io("INPUT__0", 4)], "output": [io("OUTPUT__0", 4)]}
    with pytest.raises(InvalidArgument, match="for the model to support batching the shape should have at least 1 dim"):
        opened(directory, made)


def test_results_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    directory = saved(tmp_path, EXPORTED, models.OrNothing(), (torch.zeros(3),))
    inputs, output = [io("INPUT__0", 3)], io("OUTPUT__0", 3)
    with pytest.raises(Internal, match=r"'OUTPUT__1' .* of type NoneType, .* or list only the other outputs in config"):
        PyTorchBackend().complete_config(spec_of(directory, {"max_batch_size": 0, "input": inputs, "output": []}))
    (instance,) = opened(directory, {"max_batch_size": 0, "input": inputs, "output": [output]})
    (reply,) = execute(instance, request(tensor("INPUT__0", ones(3)), outputs=("OUTPUT__0",)))
    assert values(reply) == {"OUTPUT__0": [2, 2, 2]}


# ---- bad files ------------------------------------------------------------------------------------------------------


def bad(directory: Path, data: bytes, expected: type[EdgeServeError], text: str) -> None:
    path = directory / "m/1/model.pt2"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(expected, match=text):
        opened(path.parent.parent, {"input": [io("INPUT__0", 4)], "output": [io("OUTPUT__0", 4)]})


def test_damaged_programs_are_refused(program: Path, tmp_path: Path) -> None:
    data = (program / "1/model.pt2").read_bytes()
    bad(tmp_path, data[: len(data) // 2], Internal, "is a damaged archive, or not all of one")
    place = data.index(b'"graph_module"')
    bad(tmp_path, data[:place] + b"?" * 20 + data[place + 20 :], Internal, "^failed to load model 'm': ")


def test_damaged_machine_code_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "whole.pt2"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("model/data/aotinductor/model/x.so", b"machine code")
        made.writestr("model/data/aotinductor/model/x_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')
    damaged = path.read_bytes().replace(b"machine code", b"machine cod!")
    bad(tmp_path, damaged, Internal, "is a damaged archive, or not all of one: copy or export it again")
    bad(tmp_path, path.read_bytes(), Internal, "^failed to load model 'm': (?!.*damaged)")


@pytest.mark.parametrize("tmpdir", [None, "/tmp"])
def test_nothing_stays_of_an_unpacked_package(
    tmp_path: Path, tmpdir: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, places = tmp_path / "model.pt2", list[Path]()
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("model/data/aotinductor/model/x_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')

    def unpack(*_: object) -> str:
        places.append(Path(os.environ["TMPDIR"]))
        (places[0] / "x.so").touch()
        return "loaded"

    if tmpdir is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", tmpdir)
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", unpack)
    assert load_compiled(path, "m", None, 1) == "loaded"
    assert not places[0].exists()
    assert os.environ.get("TMPDIR") == tmpdir


def test_a_program_with_a_pickle_is_not_unpickled(tmp_path: Path) -> None:
    """torch itself would run it: torch.export.load asks for weights_only=False."""
    import io as memory
    import pickle
    import zipfile

    directory = saved(tmp_path, EXPORTED, models.Network().eval(), (torch.zeros(1, 3, 8, 8),))
    path, witness = directory / "1/model.pt2", tmp_path / "witness"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (witness,))

    pickled = memory.BytesIO()
    torch.save(Evil(), pickled)
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in entries.items():
            if entry.endswith("weights_config.json"):
                data = data.replace(b'"use_pickle": false', b'"use_pickle": true').replace(
                    b'"use_pickle":false', b'"use_pickle":true'
                )
                assert b"true" in data
            archive.writestr(entry, pickled.getvalue() if "/weights/weight_" in entry else data)

    with pytest.raises(Internal, match=r"^failed to load model 'm': (?s:.*)[Ww]eights.only"):
        opened(directory, {"input": [io("INPUT__0", 1, 3, 8, 8)], "output": [io("OUTPUT__0", 1, 10)]})
    assert not witness.exists()
    assert pickle.dumps(Evil())
