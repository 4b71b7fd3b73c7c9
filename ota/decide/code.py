"""Decides which files of a release run as code on a device. Code needs the role `engines`, data `models-<family>`.

The rule lists what is data, so that unknown files count as code. A device and the publisher call `find_code`, so that
a release which the publisher accepts is one that devices accept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ota.decide.config_text import MOST_BYTES, Field, fields_of
from ota.documents.manifest import FileEntry
from ota.errors import Untrusted

CONFIG = "config.pbtxt"
#: suffixes of files that are never executed: ONNX graphs and their weights, labels, and documents
_DATA = (".onnx", ".data", ".bin", ".weights", ".txt", ".json", ".csv", ".md", ".pbtxt")
#: directories with raw tensors
_TENSORS = ("golden/", "warmup/")
_ONNX = "model.onnx"
_BACKENDS = frozenset(("", "onnxruntime"))
_PLATFORMS = frozenset(("", "onnxruntime_onnx", "onnxruntime", "ensemble"))
#: keys of `parameters` that set a number of the session (docs/onnxruntime.md)
_PARAMETERS = re.compile(
    r"intra_op_thread_count|inter_op_thread_count|execution_mode|enable_mem_arena|enable_mem_pattern"
    r"|memory\.enable_memory_arena_shrinkage|(?:session|optimization)\.(?!.*(?:path|file|library|custom)).*"
    r"|EDGE_SERVE_(?:HANG_TIMEOUT_SECS|MEMORY_MAX)"
)
#: settings of an execution provider that are a number or a mode. The others are names of files (plans, plug-ins), and
#: addresses in memory, which the provider calls
_PROVIDER_PARAMETERS = re.compile(
    r"precision_mode|max_workspace_size_bytes|int8_use_native_calibration_table"
    r"|trt_(?:fp16_enable|bf16_enable|int8_enable|max_workspace_size|builder_optimization_level|min_subgraph_size"
    r"|max_partition_iterations|layer_norm_fp32_fallback|cuda_graph_enable|sparsity_enable|build_heuristics_enable"
    r"|context_memory_sharing_enable|auxiliary_streams|force_sequential_engine_build"
    r"|profile_(?:min|max|opt)_shapes)"
    r"|gpu_mem_limit|arena_extend_strategy|cudnn_conv_algo_search|cudnn_conv_use_max_workspace|cudnn_conv1d_pad_to_nc1d"
    r"|do_copy_in_default_stream|use_tf32|enable_cuda_graph|prefer_nhwc|tunable_op_enable|tunable_op_tuning_enable"
)
_PROVIDER_FIELD = "optimization.execution_accelerators."
#: ONNX Runtime's node with a compiled engine. Providers run it as code, except those below
_COMPILED_NODE = b"EPContext"
_PROVIDERS_WITHOUT_ENGINES = frozenset(("cuda",))
#: fields that name a file of the model
_FILE_FIELDS = re.compile(r"default_model_filename|(?:input|output)\.label_filename|model_warmup\..*input_data_file")
#: fields that name a library or an agent, whatever their value is
_CODE_FIELDS = re.compile(
    r"model_operations\..*|model_repository_agents\..*|runtime|cc_model_filenames\..*|.*library.*"
)

#: yields the bytes of a file of a model in pieces
FileReader = Callable[[str, FileEntry], Iterable[bytes]]


class CodeFile(NamedTuple):
    """A file of a model that runs as code, with the reason."""

    model: str
    entry: FileEntry
    reason: str


def is_data(path: str) -> bool:
    """Return whether a file is data, by its folder and name."""
    if path.startswith(_TENSORS):
        return True
    *folders, _ = path.lower().split("/")
    # the server also derives the backend from the name of a directory, such as model.py/
    return path.lower().endswith(_DATA) and all("." not in one or one.endswith(".onnx") for one in folders)


def find_code_field(data: bytes, what: str, paths: Collection[str] = (_ONNX,)) -> str:
    """Return the field of a config.pbtxt that makes the server run code; "" = none.

    Args:
        paths: the files of the model, by which the server finds a backend that the configuration does not name.

    Raises:
        Untrusted: it cannot be read.
    """
    fields = fields_of(data, what)
    for field in fields:
        if _runs_code(field):
            return f"{field.path}: {field.value!r}"
    if not any(field.path in ("backend", "platform") and field.value for field in fields):
        named = [field.value for field in fields if field.path == "default_model_filename"]
        if any(one != _ONNX for one in named) or not (named or any(_is_onnx(path) for path in paths)):
            return "it names no backend, and no model.onnx selects onnxruntime"
    return ""


def runs_engines(data: bytes) -> bool:
    """Return whether a configuration selects an execution provider that runs compiled engines from ONNX files.

    One that cannot be read may select it: the role `engines` may approve such a configuration.
    """
    try:
        fields = fields_of(data, CONFIG)
    except Untrusted:
        return True
    return any(
        field.path.startswith(_PROVIDER_FIELD)
        and field.path.endswith("_execution_accelerator.name")
        and field.value not in _PROVIDERS_WITHOUT_ENGINES
        for field in fields
    )


def _is_onnx(path: str) -> bool:
    parts = path.split("/")
    return _ONNX in parts[:2]


def _runs_code(field: Field) -> bool:
    if field.path == "backend":
        return field.value not in _BACKENDS
    if field.path == "platform":
        return field.value not in _PLATFORMS
    if field.path == "parameters.key":
        return not _PARAMETERS.fullmatch(field.value)
    if field.path.startswith(_PROVIDER_FIELD) and field.path.endswith(".parameters.key"):
        return not _PROVIDER_PARAMETERS.fullmatch(field.value)
    if _FILE_FIELDS.fullmatch(field.path):
        return field.value.startswith("/") or ".." in field.value.split("/")
    return bool(_CODE_FIELDS.fullmatch(field.path))


def find_code(models: Mapping[str, Sequence[FileEntry]], read: FileReader) -> list[CodeFile]:
    """Return the files of a release that need the role `engines`.

    Each file of a model that ends with .pbtxt counts as a configuration, because a server may be told to use another
    one than config.pbtxt. Other files are read only if a configuration selects a provider that runs compiled engines.

    Args:
        models: model -> its files in one variant.
    """
    configs = {
        (model, one.path): _read_start(read(model, one))
        for model, entries in models.items()
        for one in entries
        if one.path.lower().endswith(".pbtxt")
    }
    # one model of a release could load the files of another one
    scanned = any(map(runs_engines, configs.values()))
    found = []
    for model, entries in models.items():
        paths = [one.path for one in entries]
        for one in entries:
            reason = _reason(model, one.path, configs.get((model, one.path)), paths)
            if not reason and scanned and _contains(read(model, one), _COMPILED_NODE):
                reason = "it has a compiled engine"
            if reason:
                found.append(CodeFile(model, one, reason))
    return found


def _reason(model: str, path: str, config: bytes | None, paths: Collection[str]) -> str:
    """Return why a file is code by its name, or by its content if it is a configuration; "" = it is not."""
    if not is_data(path):
        return "not a known kind of data"
    if config is None:
        return ""
    try:
        return find_code_field(config, f"{model}: {path}", paths)
    except Untrusted as error:
        return error.message


def _read_start(pieces: Iterable[bytes]) -> bytes:
    """Return a configuration, or as much of it as shows that it is too long."""
    data = b""
    for piece in pieces:
        data += piece
        if len(data) > MOST_BYTES:
            break
    return data


def _contains(pieces: Iterable[bytes], wanted: bytes) -> bool:
    """Return whether a file has `wanted`, perhaps across the border of two pieces."""
    tail = b""
    for piece in pieces:
        if wanted in tail + piece:
            return True
        tail = (tail + piece)[-len(wanted) :]
    return False
