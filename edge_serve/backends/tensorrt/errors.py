"""Errors of TensorRT: the cause found in its log, Triton's text before it, and advice after it.

TensorRT answers None or False, and logs the reason. The last line that it logs is most often only "deserialization
failed", and Triton reports that line alone. The cause stands in an earlier line.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_serve.backends.cuda.api import says_sticky
from edge_serve.backends.file_kinds import WEB_PAGE, FileKinds, find_kind, read_head
from edge_serve.backends.tensorrt.plan import Step, meta_path, rebuild_command
from edge_serve.errors import Internal, with_advice
from edge_serve.records import frozen

#: `ILogger.Severity`: internal errors and errors; some warnings are about memory that a build did without
ERROR, _WARNING = 1, 2
#: errors of one step that are kept; an engine that does not load logs a handful
_MOST_ERRORS = 32

_MEMORY = re.compile(
    r"out ?of ?memory|could not be allocated|insuff?icient memory|memory is insufficient|sufficient workspace memory"
    r"|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
#: errors that follow from another one and do not name the cause
_CONSEQUENCE = re.compile(
    r"engine deserialization failed|deserialize the cuda engine failed|assertion engineptr != nullptr|std::exception",
    re.IGNORECASE,
)


@frozen
class Logged:
    """The lines that TensorRT logged during a step.

    Attributes:
        memory: warnings that a kernel was passed over for want of memory.
    """

    errors: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()

    @property
    def is_sticky(self) -> bool:
        """Return whether an error ended the use of the device, so that the worker has to restart."""
        return any(says_sticky(text) for text in self.errors)


class ErrorLog:
    """The errors that a logger of TensorRT received and that were not taken yet.

    TensorRT keeps the first logger of a process for all that follows, so models share one log. A thread takes its own
    lines, and those of threads that take none: the library's.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, bool, str]] = deque(maxlen=_MOST_ERRORS)
        self._takers: set[int] = set()
        self._lock = threading.Lock()

    def record(self, severity: int, text: str) -> None:
        """Record a line of `ILogger.log`; others than errors and warnings about memory are passed over."""
        if severity <= ERROR or (severity == _WARNING and _MEMORY.search(text)):
            with self._lock:
                self._lines.append((threading.get_ident(), severity <= ERROR, text.strip()))

    def take(self) -> Logged:
        """Return the recorded lines, and clear them."""
        thread = threading.get_ident()
        with self._lock:
            self._takers.add(thread)
            lines = [line for line in self._lines if line[0] == thread or line[0] not in self._takers]
            for line in lines:
                self._lines.remove(line)
        return Logged(
            tuple(text for _, is_error, text in lines if is_error),
            tuple(text for _, is_error, text in lines if not is_error),
        )


@frozen
class _Case:
    """A failure that advice is looked for.

    Attributes:
        text: the cause.
        free: the memory of the device that is left, as a clause; "" = unknown.
    """

    step: Step
    text: str
    logged: Logged
    model: str
    plan: Path | None
    free: str

    @property
    def again(self) -> str:
        return f"build it again on this device: {rebuild_command(self.model)}"


def failure(step: Step, logged: Logged, model: str, *, plan: Path | None = None, free: str = "") -> Internal:
    """Return the error for a step that failed.

    Args:
        plan: the file, if the step reads one.
        free: the memory of the device that is left (`cuda.memory.free_memory`).
    """
    text = cause(logged.errors)
    case = _Case(step, text, logged, model, plan, free)
    return Internal(with_advice(f"{step.value}: {text or 'TensorRT gave no reason'}", _advice(case)))


def cause(errors: Sequence[str]) -> str:
    """Return the error that the others follow from; "" = none was logged."""
    known = (text for text in errors if any(pattern.search(text) for pattern, _ in _BY_TEXT))
    telling = (text for text in errors if not _CONSEQUENCE.search(text))
    return next(known, None) or next(telling, None) or next(iter(errors), "")


def _advice(case: _Case) -> str:
    for pattern, advise in _BY_TEXT:
        if match := pattern.search(case.text):
            return advise(match, case) if callable(advise) else advise.format(*match.groups(), again=case.again)
    if any(_MEMORY.search(text) for text in case.logged.errors):
        return _on_memory(None, case)
    return _on_content(None, case) if case.step is Step.ENGINE else ""


def _on_version(match: re.Match[str], case: _Case) -> str:
    here, built = (version.strip(".") for version in match.groups())
    version = f"TensorRT {built}" if built else "another TensorRT"
    return f"the plan was built by {version}, and this is TensorRT {here}: {case.again}"


def _on_plugin(match: re.Match[str], case: _Case) -> str:
    name = next(filter(None, match.groups()), "")
    return (
        f"the engine needs {f'the plugin {name}' if name else 'a plugin'}, which no loaded library has: start the "
        "server with --backend-config=tensorrt,plugins=PATH.so (several with ; between them)"
    )


def _on_implementation(match: re.Match[str], case: _Case) -> str:
    if case.logged.memory or any(_MEMORY.search(text) for text in case.logged.errors):
        return _on_memory(None, case)
    return (
        f"most often the device ran out of memory while TensorRT tried kernels for {match[1].strip('{}')}: "
        f"{_more_memory(case)}; if there is enough, TensorRT has no kernel for this layer: export the model otherwise"
    )


#: for INT8, whose scales TensorRT does not find
QUANTIZED_ADVICE = (
    "an ONNX file without Q-DQ nodes (QuantizeLinear, DequantizeLinear) has no scales for it: quantize the model, as "
    "with NVIDIA's Model Optimizer"
)


def _on_memory(match: re.Match[str] | None, case: _Case) -> str:
    return f"the device ran out of memory{_sizes(case.logged, case.free)}: {_more_memory(case)}"


def _sizes(logged: Logged, free: str) -> str:
    """Return the memory that was asked for, if TensorRT logged it, and the memory that was free."""
    lines = [*logged.errors, *logged.memory]
    asked = [re.search(r"request: (\d+) ?MB Available: (\d+) ?MB", line) for line in lines]
    if pairs := [(int(found[1]), int(found[2])) for found in asked if found]:
        least = min(pairs)
        return f" (asked for {least[0]} MB or more, and {least[1]} MB were free)"
    sizes = [re.search(r"GPU memory \((\d+) bytes|[Rr]equested size was (\d+) bytes", line) for line in lines]
    found = [int(one[1] or one[2]) for one in sizes if one]
    figures = [f"asked for {found[0] / 1e6:.0f} MB"] if found else []
    figures += [free] if free else []
    return f" ({', and '.join(figures)})" if figures else ""


#: for memory that edge-serve takes for an engine
MEMORY_ADVICE = (
    "unload models, lower count in instance_group, build the engine for smaller shapes, or set the parameter "
    "execution_context_allocation_strategy to ON_PROFILE_CHANGE"
)


def _more_memory(case: _Case) -> str:
    if case.step is Step.BUILD:
        return (
            "unload models or stop other programs during the build, build for smaller shapes, or give it another "
            "workspace (--workspace-mb)"
        )
    return MEMORY_ADVICE


def _on_content(match: re.Match[str] | None, case: _Case) -> str:
    """The file is no plan: name its kind."""
    if case.plan is None:
        return ""
    try:
        head, size = read_head(case.plan)
    except OSError as error:
        return f"{case.plan.name} cannot be read ({error.strerror})"
    start = f"{case.plan.name} is {size} bytes"
    if found := find_kind(head, _KINDS):
        kind, fix = found
        return f"{start} and is {kind}: {fix.replace('BUILD', case.again)}"
    expected = "" if meta_path(case.plan).exists() else ", or it is a plan of another TensorRT or device"
    return f"{start}, and may be cut off{expected}: copy it again, or {case.again}"


#: first bytes, the kind of the file, and the fix; BUILD stands for the command that builds a plan
_KINDS: FileKinds = (
    (rb"\Z", "empty", "copy it again, or BUILD"),
    (rb"\s*<\?xml", *WEB_PAGE),  # as of an error
    (rb"\x08[\x03-\x20]\x12", "an ONNX model", "name it model.onnx, and BUILD"),
    (rb"..\x00\x00\s*\{\s*\"", "a plan after metadata of Ultralytics",
     "cut off the first 4 bytes and the JSON that follows them, whose length they are, or BUILD"),
    (rb"PK\x03\x04", "a ZIP archive", "unpack it"),
)  # fmt: skip

#: a pattern of the text, and the advice, or the function that returns it; {0} is the first group of the pattern
_BY_TEXT: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str], _Case], str]], ...] = (
    (re.compile(r"expecting library version ([\d.]+) got ([\d.]*)"), _on_version),
    (
        re.compile(r"Current Version: (\d+), Serialized Engine Version: (\d+)"),
        "the plan is of another TensorRT (its format is {1}, and this one's is {0}): {again}",
    ),
    (
        re.compile(r"expecting compute ([\d.]*\d) got compute ([\d.]*\d)"),
        "the plan was built for compute capability {1}, and this device has {0}: {again}; plans for several devices go "
        "side by side with cc_model_filenames",
    ),
    (
        re.compile(r"Platform specific tag mismatch|target runtime platform"),
        "the plan was built on another operating system or processor: {again}",
    ),
    (re.compile(r"find plugin:? (\S+?),? version|IPluginCreator not found|Plugin not found"), _on_plugin),
    (
        re.compile(r"unable to load (?:shared|plugin) library:? '?([^\s':]+)", re.IGNORECASE),
        "the plugin library {0} does not load: see: ldd {0}",
    ),
    (
        re.compile(r"host ?code|version[- ]compatible", re.IGNORECASE),
        "the plan is version-compatible and carries code: if you trust it, start the server with "
        "--backend-config=tensorrt,version-compatible=true, or {again}",
    ),
    (
        re.compile(r"CUDA initialization failure|insufficient for CUDA|no CUDA-capable device"),
        "no NVIDIA driver answers, or it is older than the library needs: see: edge-serve doctor",
    ),
    (
        re.compile(r"Unable to load library: (\S*builder_resource\S*?)[:,]?(?=\s|$)"),
        "the library {0} is needed to build engines, and not to serve them: install it, or build the plan on another "
        "machine of the same kind",
    ),
    (
        re.compile(r"Unable to load library: (\S*nvinfer_lean\S*?)[:,]?(?=\s|$)"),
        "a version-compatible plan carries the lean runtime, and {0} is not installed: install TensorRT's lean runtime "
        "in the same version (pip install tensorrt-lean), or build without --version-compatible",
    ),
    (re.compile(r"Could not find any implementation for (?:node )?(.*?)\.?\)?\s*\Z", re.DOTALL), _on_implementation),
    (re.compile(r"no scaling factors detected|Could not find scales for tensor"), QUANTIZED_ADVICE),
    (_MEMORY, _on_memory),
    (
        re.compile(r"magic ?tag|archive size|expected size of serialized|empty memory|Version tag", re.IGNORECASE),
        _on_content,
    ),
)
