"""Files of a release that run as code, also hidden ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from edge_serve.config.model.text import parse_model_config
from ota.decide.code import find_code, find_code_field, is_data, runs_engines
from ota.decide.config_text import MOST_BYTES, fields_of
from ota.documents.manifest import FileEntry
from ota.errors import Untrusted

HARMLESS = b"""
name: "det"  # a comment with backend: "python"
platform: 'onnxruntime_onnx', max_batch_size: 8;
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 3, -1 ] }, < name: "IN2" dims: 1 > ]
output: { name: "OUT" dims: -1 label_filename: "labels.txt" }
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
parameters: { key: "session.intra_op.allow_spinning" value: { string_value: "0" } }
dynamic_batching { }
ensemble_scheduling { step [ { model_name: "a" model_version: -1 input_map { key: "IN" value: "x" } } ] }
"""


def test_a_configuration_for_data_runs_no_code() -> None:
    assert find_code_field(HARMLESS, "det") == ""


def test_every_configuration_of_the_demo_repository_is_read() -> None:
    found = {
        path.parent.name: find_code_field(path.read_bytes(), "x")
        for path in Path("model_repository").glob("*/config.pbtxt")
    }
    assert len(found) > 5
    assert found["simple"] == ""
    assert any("python" in reason for reason in found.values())


@pytest.mark.fault("U6")
@pytest.mark.parametrize(
    "line",
    [
        'backend: "python"',
        'backend: "pyt" "hon"',
        "backend: 'onnxruntime' backend: 'python'",
        'platform: "tensorrt_plan"',
        'platform: "pytorch_libtorch"',
        'parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "env.tar.gz" } }',
        'parameters: [ < key: "intra_op_thread_count" >, < key: "x" > ]',
        'parameters { key: "session.register_custom_ops_library" value: { string_value: "x" } }',
        'model_operations { op_library_filename: "x.so" }',
        'model_repository_agents { agents [ { name: "x" } ] }',
        'runtime: "model.py"',
        'backend:"python"',
        'backend :\n"python"',
        'default_model_filename: "../golden/x"',
        'output { label_filename: "/etc/edge-serve/tokens" }',
        'model_warmup [ { inputs { key: "IN" value: { input_data_file: "../../x" } } } ]',
        *(
            "optimization { execution_accelerators { gpu_execution_accelerator : [ { "
            f'name: "{name}" parameters {{ key: "{key}" value: "golden/x" }} }} ] }} }}'
            for name, key in (
                ("tensorrt", "trt_extra_plugin_lib_paths"),
                ("tensorrt", "trt_engine_cache_path"),
                ("tensorrt", "trt_onnx_model_folder_path"),
                ("cuda", "gpu_external_alloc"),
                ("cuda", "user_compute_stream"),
            )
        ),
    ],
)
def test_a_configuration_that_runs_code_is_found(line: str) -> None:
    assert find_code_field(HARMLESS.replace(b"platform: ", b"default_model_filename: ") + line.encode(), "det") != ""


@pytest.mark.fault("U6")
@pytest.mark.parametrize(
    "line",
    [
        r'backend: "\160ython"',
        r'backend: "\x70ython"',
        r'parameters { key: "session.optimized_model_\u0066ilepath" value { string_value: "x" } }',
        r'parameters { key: "session.collect_node_memory_stats_to_\U00000066ile" value { string_value: "x" } }',
        r'default_model_filename: "\u002e\u002e/\u002e\u002e/other/1/model.onnx"',
    ],
)
def test_an_escape_that_only_the_server_reads_is_code(line: str) -> None:
    config = HARMLESS.replace(b"dynamic_batching { }", b"") + line.encode()
    assert parse_model_config(config)
    with pytest.raises(Untrusted, match=r"has the escape \\.: write the character itself"):
        find_code_field(config, "det")
    [(path, reason)] = code_of({"config.pbtxt": config}).items()
    assert (path, "has the escape" in reason) == ("config.pbtxt", True)


def test_escapes_are_read_as_the_server_reads_them() -> None:
    config = rb"""default_model_filename: "a\"b\'c\\d\ne\tf\rg" """
    assert fields_of(config, "det") == [("default_model_filename", parse_model_config(config).default_model_filename)]


@pytest.mark.fault("U6")
@pytest.mark.parametrize(
    ("config", "paths", "is_code"),
    [
        (b"", ("17/model.onnx",), False),
        (b"", ("17/model.onnx/model.onnx",), False),
        (b"", ("17/other.onnx",), True),  # the model's name, such as x.python, tells the backend then
        (b"", (), True),
        (b"max_batch_size: 8", ("golden/model.onnx.txt",), True),
        (b'default_model_filename: "model.onnx"', (), False),
        (b'default_model_filename: "model.py"', ("17/model.onnx",), True),
        (b'default_model_filename: "other.onnx"', ("17/other.onnx",), True),
        (b'backend: ""', ("17/x.txt",), True),
        (b'backend: "onnxruntime" default_model_filename: "other.onnx"', ("17/other.onnx",), False),
        (b'platform: "ensemble"', (), False),
    ],
)
def test_the_server_finds_no_backend_but_onnxruntime_by_itself(
    config: bytes, paths: tuple[str, ...], is_code: bool
) -> None:
    assert bool(find_code_field(config, "det", paths)) is is_code


@pytest.mark.parametrize(("name", "found"), [("tensorrt", True), ("openvino", True), ("cuda", False)])
def test_a_provider_that_runs_engines_is_found(name: str, found: bool) -> None:
    config = f'optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {{ name: "{name}" }} ] }} }}'
    assert runs_engines(config.encode()) is found
    assert not runs_engines(HARMLESS)
    assert runs_engines(b"a: {"), "it cannot be read"


@pytest.mark.parametrize(
    "text", [b"a: {", b"a }", b'a: "', b"[x.y]: 1", b"a: [1", b"\xff", b"a {" * 99, b'a "b"', b"1: 2", b"a b"]
)
def test_unreadable_documents_are_refused(text: bytes) -> None:
    with pytest.raises(Untrusted, match=r"det.*"):
        fields_of(text, "det")


def test_fields_have_the_names_of_the_messages_around_them() -> None:
    assert fields_of(b'a { b [ { c: 1 }, { c: "x" "y" } ] } d: [ 1, 2 ]', "x") == [
        ("a.b.c", "1"), ("a.b.c", "xy"), ("d", "1"), ("d", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("17/model.onnx", True), ("17/model.onnx.data", True), ("labels.txt", True), ("golden/first.INPUT0", True),
        ("17/model.py", False), ("17/model.plan", False), ("17/libx.so", False), ("env.tar.gz", False),
        ("17/weights.pkl", False), ("17/model", False), ("17/golden/x", False), ("17/model.pt", False),
        ("17/model.py/x.txt", False), ("17/model.onnx/x.data", True), ("17/model.xml/a/w.bin", False),
    ],
)  # fmt: skip
def test_files_not_known_as_data_are_code(path: str, data: bool) -> None:
    assert is_data(path) is data


def code_of(files: Mapping[str, bytes], size: int = 1000) -> dict[str, str]:
    """Return path -> reason, for a model whose files are read in pieces of `size` bytes."""

    def read(model: str, entry: FileEntry) -> Iterator[bytes]:
        data = files[entry.path]
        return (data[at : at + size] for at in range(0, len(data), size))

    found = find_code({"det": [FileEntry(path, "0" * 64, len(data)) for path, data in files.items()]}, read)
    return {one.entry.path: one.reason for one in found}


def test_the_files_of_a_model_that_need_approval() -> None:
    files = {
        "config.pbtxt": b'backend: "python"', "17/model.py": b"", "17/w.bin": b"", "configs/a.pbtxt": b"a: {",
    }  # fmt: skip
    found = code_of(files)
    assert found.keys() == {"config.pbtxt", "17/model.py", "configs/a.pbtxt"}
    assert found["config.pbtxt"] == "backend: 'python'"


@pytest.mark.parametrize("size", [1, 2, 9, 10, 1000])
def test_an_engine_is_found_across_the_borders_of_pieces(size: int) -> None:
    tensorrt = HARMLESS + b'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    graphs = {"17/model.onnx": b"a graph with an EPContext node", "17/other.onnx": b"EPContex EPContex"}
    assert code_of({"config.pbtxt": tensorrt, **graphs}, size) == {"17/model.onnx": "it has a compiled engine"}
    assert code_of({"config.pbtxt": HARMLESS, **graphs}, size) == {}


def test_a_configuration_that_is_too_long_is_code() -> None:
    found = code_of({"config.pbtxt": HARMLESS + b" " * MOST_BYTES, "17/model.onnx": b""}, 4096)
    assert found == {"config.pbtxt": "det: config.pbtxt has more than 1048576 bytes"}
