"""TensorRT's own texts, of several releases and as users reported them, with their cause and a fix."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edge_serve.backends.tensorrt.errors import ErrorLog, Logged, cause, failure
from edge_serve.backends.tensorrt.plan import Step

AFTERWARDS = "[runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)"
VERSION_8 = (
    "The engine plan file is not compatible with this version of TensorRT, expecting library version 8.0.0 got 8.0.1, "
    "please rebuild."
)
VERSION_10 = (
    "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is not compatible with this "
    "version of TensorRT, expecting library version 10.12.0.36 got .)"
)
DEVICE = (
    "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an "
    "incompatible device, expecting compute 8.9 got compute 8.6, please rebuild.)"
)
IMPLEMENTATION = (
    "[optimizer.cpp::computeCosts::2011] Error Code 10: Internal Error (Could not find any implementation for node "
    "{ForeignNode[onnx::Gather_72...ScatterND_170]}.)"
)
TACTIC = "Tactic Device request: {}MB Available: {}MB. Device memory is insufficient to use tactic."


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "model.plan"
    path.write_bytes(b"\x02trt" * 20)
    return path


def said(step: Step, *errors: str, plan: Path | None = None, memory: tuple[str, ...] = ()) -> str:
    return failure(step, Logged(errors, memory), "my model", plan=plan).message


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            VERSION_8,
            "the plan was built by TensorRT 8.0.1, and this is TensorRT 8.0.0: build it again on this device: "
            "edge-serve build 'my model'",
        ),
        (VERSION_10, "the plan was built by another TensorRT, and this is TensorRT 10.12.0.36: build it again"),
        (
            "[stdArchiveReader.cpp::StdArchiveReader::40] Error Code 1: Serialization (Serialization assertion "
            "stdVersionRead == serializationVersion failed.Version tag does not match. Note: Current Version: 213, "
            "Serialized Engine Version: 232)",
            "the plan is of another TensorRT (its format is 232, and this one's is 213): build it again on this device",
        ),
        (
            DEVICE,
            "the plan was built for compute capability 8.6, and this device has 8.9: build it again on this device",
        ),
        (
            "Error Code 1: Serialization (Serialization assertion plan->header.pad == expectedPlatformTag failed."
            "Platform specific tag mismatch detected. TensorRT plan files are only supported on the target runtime "
            "platform they were created on.)",
            "the plan was built on another operating system or processor: build it again on this device",
        ),
        (
            "IPluginRegistry::getCreator: Error Code 4: API Usage Error (Cannot find plugin: EfficientNMS_TRT, "
            "version: 1, namespace:.)",
            "needs the plugin EfficientNMS_TRT, which no loaded library has: start the server with --backend-config="
            "tensorrt,plugins=PATH.so",
        ),
        (
            "3: getPluginCreator could not find plugin: SequenceConstruct version: 1",
            "needs the plugin SequenceConstruct,",
        ),
        (
            "Serialization assertion creator failed.Cannot deserialize plugin since corresponding IPluginCreator not "
            "found in Plugin Registry",
            "the engine needs a plugin, which no loaded library has",
        ),
        ("Unable to load shared library: /opt/my.so: undefined symbol", "the plugin library /opt/my.so does not load"),
        ("Cannot deserialize a plan with host code", "--backend-config=tensorrt,version-compatible=true, or build it"),
        (
            "CUDA initialization failure with error: 35. Please check your CUDA installation",
            "no NVIDIA driver answers, or it is older than the library needs: see: edge-serve doctor",
        ),
        (
            "[standardEngineBuilder.cpp::initCalibrationParams::1487] Error Code 4: Internal Error (Calibration "
            "failure occurred with no scaling factors detected. This could be due to no int8 calibrator or insufficient"
            " custom scales for network layers. Please see int8 sample to setup calibration correctly.)",
            "an ONNX file without Q-DQ nodes (QuantizeLinear, DequantizeLinear) has no scales for it: quantize the",
        ),
    ],
)
def test_cause_and_advice(plan: Path, error: str, advice: str) -> None:
    text = said(Step.ENGINE, error, AFTERWARDS, plan=plan)
    assert text.startswith(f"unable to create TensorRT engine: {error}")
    assert advice.lower() in text.lower()  # it begins a sentence where the error ends with a full stop


def test_words_of_each_step() -> None:
    assert [said(step, "boom") for step in Step] == [
        "unable to create TensorRT runtime: boom",
        "unable to create TensorRT engine: boom",
        "unable to create TensorRT context: boom",
        "unable to enqueue for inference: boom",
        "unable to build TensorRT engine: boom",
    ]


@pytest.mark.parametrize(
    ("error", "sizes"),
    [
        ("[defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)", ""),
        ("[executionContext.cpp::ExecutionContext::470] Error Code 2: OutOfMemory (no further information)", ""),
        ("Error Code 2: OutOfMemory (Requested size was 268435456 bytes.)", " (asked for 268 MB)"),
    ],
)
def test_out_of_memory_at_load(error: str, sizes: str) -> None:
    assert said(Step.CONTEXT, error) == (
        f"unable to create TensorRT context: {error}; the device ran out of memory{sizes}: unload models, lower count "
        "in instance_group, build the engine for smaller shapes, or set the parameter "
        "execution_context_allocation_strategy to ON_PROFILE_CHANGE"
    )


def test_size_that_was_asked_for_stands_in_a_warning() -> None:
    warning = "Requested amount of GPU memory (17920000000 bytes) could not be allocated. There may not be enough free"
    assert "the device ran out of memory (asked for 17920 MB)" in said(
        Step.CONTEXT, "Error Code 1: Cuda Runtime (out of memory)", memory=(warning,)
    )


def test_out_of_memory_that_is_disguised_as_a_missing_kernel() -> None:
    text = said(Step.BUILD, IMPLEMENTATION, memory=(TACTIC.format(538, 166), TACTIC.format(806, 187)))
    assert text == (
        f"unable to build TensorRT engine: {IMPLEMENTATION}; the device ran out of memory (asked for 538 MB or more, "
        "and 166 MB were free): unload models or stop other programs during the build, build for smaller shapes, or "
        "give it another workspace (--workspace-mb)"
    )


def test_missing_kernel_without_a_word_of_memory() -> None:
    text = said(Step.BUILD, IMPLEMENTATION, "Error Code 2: Internal Error (Assertion enginePtr != nullptr failed. )")
    assert (
        "most often the device ran out of memory while TensorRT tried kernels for ForeignNode[onnx::Gather_72..."
        in text
    )
    assert "if there is enough, TensorRT has no kernel for this layer" in text


def test_builder_that_is_not_installed() -> None:
    text = said(Step.BUILD, "Unable to load library: libnvinfer_builder_resource.so.10.3.0: cannot open shared object")
    assert "the library libnvinfer_builder_resource.so.10.3.0 is needed to build engines, and not to serve them" in text


def test_lean_runtime_that_is_not_installed() -> None:
    text = said(Step.BUILD, "(Unable to load library: libnvinfer_lean.so.10: libnvinfer_lean.so.10: cannot open)")
    assert "carries the lean runtime, and libnvinfer_lean.so.10 is not installed" in text


def test_known_cause_precedes_its_consequences() -> None:
    assert cause((AFTERWARDS, DEVICE)) == DEVICE
    assert cause(("strange", AFTERWARDS)) == "strange"
    assert cause((AFTERWARDS, "strange")) == "strange"
    assert cause((AFTERWARDS,)) == AFTERWARDS
    assert cause(()) == ""


def test_engine_that_is_none_without_a_reason(plan: Path) -> None:
    assert said(Step.ENGINE, plan=plan) == (
        "unable to create TensorRT engine: TensorRT gave no reason; model.plan is 80 bytes, and may be cut off, or it "
        "is a plan of another TensorRT or device: copy it again, or build it again on this device: edge-serve build "
        "'my model'"
    )
    assert said(Step.RUN) == "unable to enqueue for inference: TensorRT gave no reason"


@pytest.mark.parametrize(
    "error",
    [
        "Error Code 1: Serialization (Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not "
        "match)",
        "[runtime.cpp::parsePlan::314] Error Code 1: Serialization (Serialization assertion plan->header.magicTag == "
        "rt::kPLAN_MAGIC_TAG failed.)",
        "Error Code 1: Serialization (Serialization assertion sizeRead == static_cast<uint64_t>(mEnd - mCurrent) "
        "failed.Size specified in header does not match archive size)",
    ],
)
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "is 0 bytes and is empty: copy it again, or build it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is 43 bytes and is a Git LFS pointer, not the file itself"),
        (b"../../.git/annex/objects/x", "a git-annex pointer, not the file itself: git annex get ."),
        (b"<!doctype HTML>", "a web page, not the file itself"),
        (b"\x08\x07\x12\x07pytorch", "an ONNX model: name it model.onnx, and build it again on this device:"),
        (b"\x1b\x07\x00\x00{\"description\"", "a plan after metadata of Ultralytics: cut off the first 4 bytes and"),
        (b"PK\x03\x04", "a ZIP archive: unpack it"),
        (b"\x1f\x8b\x08", "compressed by gzip: gunzip it"),
        (b"\x02trt", "is 4 bytes, and may be cut off, or it is a plan of another TensorRT or device: copy it"),
    ],
)  # fmt: skip
def test_file_that_is_no_plan(plan: Path, error: str, content: bytes, kind: str) -> None:
    plan.write_bytes(content)
    assert kind in said(Step.ENGINE, error, AFTERWARDS, plan=plan)


def test_plan_with_a_matching_description_is_not_blamed(plan: Path) -> None:
    plan.with_name("model.plan.meta.json").touch()
    assert "model.plan is 80 bytes, and may be cut off: copy it again" in said(Step.ENGINE, AFTERWARDS, plan=plan)


def test_plan_that_cannot_be_read(plan: Path) -> None:
    plan.unlink()
    assert said(Step.ENGINE, plan=plan).endswith("; model.plan cannot be read (No such file or directory)")


@pytest.mark.parametrize(
    ("error", "sticky"),
    [
        ("Error Code 1: Cuda Runtime (an illegal memory access was encountered)", True),
        ("Error Code 1: Cuda Runtime (unspecified launch failure)", True),
        ("Error Code 1: Cuda Runtime (the launch timed out and was terminated)", True),
        ("Error Code 1: Cuda Runtime (unknown error)", True),
        ("Error Code 1: Cuda Runtime (out of memory)", False),
        ("a layer of unknown error", False),
        ("Error Code 1: Cask (Cask convolution execution)", False),
    ],
)
def test_errors_after_which_the_worker_restarts(error: str, sticky: bool) -> None:
    assert Logged((error,)).is_sticky is sticky


def test_log_keeps_errors_and_warnings_about_memory() -> None:
    log = ErrorLog()
    log.record(0, " internal \n")
    log.record(1, "error")
    log.record(2, "a warning")
    log.record(2, TACTIC.format(2, 1))
    log.record(3, "out of memory, for information")

    assert log.take() == Logged(("internal", "error"), (TACTIC.format(2, 1),))
    assert log.take() == Logged()


def test_log_is_bounded_and_takes_lines_of_any_thread() -> None:
    log = ErrorLog()

    def fill() -> None:
        for _ in range(100):
            log.record(1, "x")

    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < len(log.take().errors) <= 32


def test_threads_that_take_do_not_take_each_others_lines() -> None:
    log, steps = ErrorLog(), [threading.Event() for _ in range(2)]
    found: list[Logged] = []

    def other() -> None:
        log.take()
        log.record(1, "of the other model")
        steps[0].set()
        assert steps[1].wait(10)
        found.append(log.take())

    thread = threading.Thread(target=other)
    thread.start()
    assert steps[0].wait(10)
    log.record(1, "of this model")
    assert log.take().errors == ("of this model",)
    steps[1].set()
    thread.join()
    assert found == [Logged(("of the other model",))]
