"""Which files of a release a device would run as code. Those need the role `engines`; all else needs `models-<family>`.

The rule is a list of what is data, so that what is unknown counts as code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ota.decide.config_text import Field, fields_of
from ota.documents.manifest import FileEntry
from ota.errors import Untrusted

CONFIG = "config.pbtxt"
#: endings of files that nothing executes: ONNX graphs and their weights, labels, and documents
_DATA = (".onnx", ".data", ".bin", ".weights", ".txt", ".json", ".csv", ".md", ".pbtxt")
#: directories whose files are bytes of tensors
_TENSORS = ("golden/", "warmup/")
_BACKENDS = frozenset(("", "onnxruntime"))
_PLATFORMS = frozenset(("", "onnxruntime_onnx", "onnxruntime", "ensemble"))
#: keys of `parameters` that set a number of the session (docs/onnxruntime.md)
_PARAMETERS = re.compile(
    r"intra_op_thread_count|inter_op_thread_count|execution_mode|enable_mem_arena|enable_mem_pattern"
    r"|memory\.enable_memory_arena_shrinkage|(?:session|optimization)\.(?!.*(?:path|file|library|custom)).*"
    r"|EDGE_SERVE_(?:HANG_TIMEOUT_SECS|MEMORY_MAX)"
)
#: fields that name a library or an agent, whatever their value is
_CODE_FIELDS = re.compile(
    r"model_operations\..*|model_repository_agents\..*|runtime|cc_model_filenames\..*|.*library.*"
)


def is_data(path: str) -> bool:
    """Return whether a file is data by its place and its name."""
    return path.startswith(_TENSORS) or path.lower().endswith(_DATA)


def code_in_config(data: bytes, what: str) -> str:
    """Return the field of a config.pbtxt that makes the server run code; "" = there is none.

    Raises:
        Untrusted: it cannot be read.
    """
    for field in fields_of(data, what):
        if _runs_code(field):
            return f"{field.path}: {field.value!r}"
    return ""


def _runs_code(field: Field) -> bool:
    if field.path == "backend":
        return field.value not in _BACKENDS
    if field.path == "platform":
        return field.value not in _PLATFORMS
    if field.path == "parameters.key":
        return not _PARAMETERS.fullmatch(field.value)
    return bool(_CODE_FIELDS.fullmatch(field.path))


def code_files(files: Sequence[FileEntry], configs: Mapping[str, bytes], what: str) -> list[tuple[FileEntry, str]]:
    """Return the files of a model that need the role `engines`, each with the reason.

    Args:
        configs: path -> content, of each file of the model whose name ends with .pbtxt: a server may be told to use
            another one than config.pbtxt.
    """
    found = []
    for one in files:
        if not is_data(one.path):
            found.append((one, "it is no data that edge-ota knows"))
        elif one.path.lower().endswith(".pbtxt"):
            try:
                reason = code_in_config(configs[one.path], f"{what}: {one.path}")
            except Untrusted as error:
                reason = error.message
            if reason:
                found.append((one, reason))
    return found
