"""Compares the outputs that a model returns with its configuration, and reports each output that differs once.

Triton sends such outputs to the client as they are, and so does this server; the log names them. The replies of a model
look alike, so `Answers.add` finds their descriptions in `known`, and calls `check` for new ones only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends.base import ModelSpec, Reply
from edge_serve.files import read_small
from edge_serve.messages.signature import answered_dims
from edge_serve.messages.tensors import BY_CONFIG_NAME, DataType, InferTensor
from edge_serve.workers.wire.frames import MOST_REPORTED

#: descriptions that are remembered; the shapes of some models change all the time. Shared by threads, so no `Memo`
_MOST_KNOWN = 512
_CONFIG = "config.pbtxt"

#: description of the outputs of a reply, rows of the request, number of outputs that it lists (-1 = it lists none)
Key = tuple[bytes, int, int]


class Mismatches:
    """The outputs of one model version that differ from its configuration.

    Args:
        report: takes the name of an output and a text, once for each output.

    Attributes:
        known: descriptions that have been looked at.
    """

    def __init__(self, spec: ModelSpec, report: Callable[[str, str], None]) -> None:
        config = spec.config
        self._spec = spec
        self._report = report
        self._reported: set[str] = set()
        self._batches = int(config.get("max_batch_size", 0)) > 0
        self._decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled", False))
        self._outputs: dict[str, dict[str, Any]] = {str(one["name"]): one for one in config.get("output", [])}
        states = (config.get("sequence_batching") or {}).get("state", [])
        self._states = {str(state["output_name"]) for state in states}
        self._scattered = {name for one in config.get("batch_output", []) for name in one.get("target_name", [])}
        self.known: set[Key] = set()

    def check(self, key: Key, reply: Reply, outputs: Sequence[InferTensor], names: Sequence[str] | None) -> None:
        """Check a reply whose description is new, or which has dropped outputs.

        Args:
            outputs: those of the reply that the request wants.
            names: the outputs that the request lists; None = it lists none and gets all.
        """
        for name in reply.dropped:
            self._check_name(name)
        if key in self.known:
            return
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        self.known.add(key)
        rows = key[1]
        returned = [tensor.name for tensor in outputs]
        for name in dict.fromkeys(returned) if len(set(returned)) < len(returned) else ():
            if returned.count(name) > 1:
                self._report_once(name, self._repeated, name, returned.count(name))
        for tensor in outputs:
            self._check_name(tensor.name)
            output = self._outputs.get(tensor.name)
            if output is not None and not self._agrees(tensor, output, rows):
                self._report_once(tensor.name, self._differs, tensor, output, rows)
        # Each response of a decoupled model may have other outputs. Stored ones are in a client's memory.
        if not self._decoupled and not reply.stored:
            for name in self._outputs if names is None else names:
                if name not in returned:
                    self._report_once(name, self._missing, name)

    def _check_name(self, name: str) -> None:
        if name not in self._outputs and name not in self._states:
            self._report_once(name, self._unknown, name)

    def _report_once(self, name: str, text_of: Callable[..., str], *about: object) -> None:
        if name not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(name)
            self._report(name, f"model '{self._spec.name}' version {self._spec.version}: {text_of(*about)}")

    # ---- what differs ---------------------------------------------------------------------------------------------

    def _agrees(self, tensor: InferTensor, output: dict[str, Any], rows: int) -> bool:
        if output.get("is_shape_tensor") or tensor.name in self._scattered:
            return True
        return _datatype(output) in (None, tensor.datatype) and _fits(tensor.shape, self._expected(output, rows))

    def _expected(self, output: dict[str, Any], rows: int) -> list[int]:
        """Return the shape that the model should return, with -1 for any size."""
        inner = (output.get("reshape") or {}).get("shape", output.get("dims", []))
        dims = answered_dims(str(self._spec.config.get("backend")), [int(dim) for dim in inner])
        return [*([rows or -1] if self._batches else []), *dims]

    def _differs(self, tensor: InferTensor, output: dict[str, Any], rows: int) -> str:
        found, advice = [], []
        if _datatype(output) not in (None, tensor.datatype):
            found.append(f"{self._where(tensor.name, 'data_type')} says data_type: {output['data_type']}")
            advice.append(f"convert it in the model, or write data_type: {tensor.datatype.config_name}")
        expected = self._expected(output, rows)
        if not _fits(tensor.shape, expected):
            dims = f"dims: {[int(dim) for dim in output.get('dims', [])]}"
            if output.get("reshape"):
                dims += f" and reshape: {[int(dim) for dim in output['reshape'].get('shape', [])]}"
            batch = f", behind a batch dimension of {rows or -1}" if self._batches else ""
            found.append(f"{self._where(tensor.name, 'dims')} says {dims}{batch}: {expected}")
            advice.append("return that shape from the model, or change dims")
        return (
            f"output '{tensor.name}' is {tensor.datatype.name} {list(tensor.shape)}, but {' and '.join(found)}. "
            f"Clients receive it as it is; {'; '.join(advice)}"
        )

    def _missing(self, name: str) -> str:
        return (
            f"a response has no output '{name}', which the request asked for and {self._where(name, 'name')} declares. "
            "Clients receive the response without it; return it from the model, or remove it from the configuration"
        )

    def _repeated(self, name: str, times: int) -> str:
        return (
            f"a response has output '{name}' {times} times. Clients receive all of them, and most use one; "
            "return it once from the model"
        )

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._outputs, 1)
        guess = f"; did you mean '{close[0]}'?" if close else "."
        line = _line_of(self._model_file(), rf"""["']{re.escape(name)}["']""")
        place = f" ({self._model_file().name} line {line})" if line else ""
        declared = ", ".join(f"'{one}'" for one in self._outputs)
        return (
            f"the model returned an output '{name}'{place}, but its configuration declares {declared or 'none'}{guess} "
            f"Clients do not receive it; rename it in the model, or declare it in {_CONFIG}"
        )

    def _model_file(self) -> Path:
        return self._spec.version_directory / str(self._spec.config.get("default_model_filename") or "model.py")

    def _where(self, name: str, field: str) -> str:
        """Return the line of config.pbtxt that declares a field of an output, or the configuration in general."""
        line = _line_of_field(_read(self._spec.model_directory / _CONFIG), name, field)
        return f"{_CONFIG} line {line}" if line else "its configuration"


def _datatype(output: dict[str, Any]) -> DataType | None:
    return BY_CONFIG_NAME.get(str(output.get("data_type")))


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    return len(shape) == len(expected) and all(dim in (-1, size) for size, dim in zip(shape, expected, strict=True))


def _read(path: Path) -> str:
    try:
        return read_small(path).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _line_of(path: Path, pattern: str) -> int:
    """Return the number of the first line that has the pattern; 0 = none has."""
    found = re.search(pattern, _read(path)) if path.suffix == ".py" else None
    return found.string.count("\n", 0, found.start()) + 1 if found is not None else 0


def _line_of_field(text: str, name: str, field: str) -> int:
    """Return the line of an output's field in the text of a configuration, or of its name; 0 = it is not there."""
    text = re.sub(r"#.*", lambda comment: " " * len(comment[0]), text)
    named = [*re.finditer(rf"""\bname\s*:\s*["']{re.escape(name)}["']""", text)]
    if not named:
        return 0
    at = named[-1].start()
    found = re.compile(rf"\b{field}\b").search(text, *_braces_around(text, at))
    return text.count("\n", 0, found.start() if found is not None else at) + 1


def _braces_around(text: str, at: int) -> tuple[int, int]:
    """Return where the innermost braces around a place begin and end."""
    start, end = at, at
    depth = 0
    while start > 0 and depth >= 0:
        start -= 1
        depth += {"}": 1, "{": -1}.get(text[start], 0)
    depth = 0
    while end < len(text) and depth >= 0:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return start, end
