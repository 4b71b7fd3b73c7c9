"""What only PyCUDA does: contexts on stacks of threads, and errors that are texts."""

from __future__ import annotations

import ast
import re
import threading

import pytest

from edge_serve.backends.cuda.api import CudaError
from tests.backends.cuda.test_cuda_api import KIB, STAND_INS, handle_of, over_stand_in, signature_line


def test_thread_that_ends_leaves_no_context_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyCUDA ends the process if a thread ends with a context on its stack."""
    module = over_stand_in(monkeypatch, "pycuda")
    cuda, stacks = module.PyCuda(), module.driver.stacks
    seen: list[int] = []

    def work() -> None:
        for device in (0, 1, 1):
            cuda.set_device(device)
            cuda.free(cuda.malloc(KIB))
            seen.append(len(stacks[threading.get_ident()]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [1, 1, 1]
    assert stacks[thread.ident or 0] == []


def test_error_that_pycuda_reports_by_its_text_alone_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    module = over_stand_in(monkeypatch, "pycuda")
    cuda = module.PyCuda()
    cuda.set_device(0)
    module.driver.host.fail("cudaStreamSynchronize", 700)

    with pytest.raises(CudaError, match=r"cudaStreamSynchronize failed with cudaErrorIllegalAddress \(700\)") as failed:
        cuda.stream_synchronize(cuda.stream_create())

    assert failed.value.sticky
    with pytest.raises(CudaError, match="700"):
        cuda.peek_at_last_error()
    with pytest.raises(CudaError, match=r"cudaStreamBeginCapture failed with cudaErrorNotSupported \(801\)"):
        cuda.begin_capture(0)


@pytest.mark.parametrize("code", [205, 217, 304, 600, 711])
def test_refusal_with_a_text_that_is_not_in_the_table_costs_its_call_alone(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As of a client's memory that cannot be mapped: the worker and its other models serve on."""
    module = over_stand_in(monkeypatch, "pycuda")
    cuda = module.PyCuda()
    cuda.set_device(0)
    memory = cuda.malloc(KIB)
    module.driver.host.fail("cudaIpcOpenMemHandle", code)

    with pytest.raises(CudaError, match=r"failed with cudaErrorApiFailureBase \(10000\): \w+") as failed:
        cuda.ipc_open(handle_of(cuda, memory))

    assert not failed.value.sticky
    cuda.peek_at_last_error()
    cuda.free(memory)


@pytest.mark.parametrize(
    ("text", "later"),
    [("unknown error", ""), ("a text of a newer driver",) * 2, ("another text", "unspecified launch failure")],
)
def test_device_that_does_not_answer_after_an_error_is_lost(
    monkeypatch: pytest.MonkeyPatch, text: str, later: str
) -> None:
    module = over_stand_in(monkeypatch, "pycuda")
    cuda = module.PyCuda()
    cuda.set_device(0)

    def fail(called: str, why: str) -> None:
        raise module.driver.LogicError(f"{called} failed: {why}")

    monkeypatch.setattr(module.driver, "mem_alloc", lambda nbytes: fail("cuMemAlloc", text))
    if later:
        monkeypatch.setattr(module.driver, "mem_get_info", lambda: fail("cuMemGetInfo", later))

    with pytest.raises(CudaError, match=text) as failed:
        cuda.malloc(1)

    assert failed.value.sticky


def test_memory_that_is_opened_twice_is_mapped_until_it_is_closed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver counts; an object of PyCUDA closes the memory once, at the latest when it is deleted."""
    cuda = over_stand_in(monkeypatch, "pycuda").PyCuda()
    cuda.set_device(0)
    memory = cuda.malloc(KIB)
    handle = handle_of(cuda, memory)
    pointer = cuda.ipc_open(handle)
    assert cuda.ipc_open(handle) == pointer

    cuda.ipc_close(pointer)
    assert cuda.allocation_size(pointer) == KIB
    cuda.ipc_close(pointer)

    for call in (cuda.allocation_size, cuda.ipc_close):
        with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
            call(pointer)
    cuda.free(memory)


def test_stand_in_has_the_names_of_pycuda() -> None:
    genuine = pytest.importorskip("pycuda.driver", reason="pycuda needs a driver", exc_type=ImportError)
    tree = ast.parse((STAND_INS / "pycuda/driver.py").read_text())
    public = [one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name[0] != "_"]
    assert len(public) > 20
    for one in public:
        made = getattr(genuine, one.name)
        if isinstance(one, ast.ClassDef):
            methods = [inner.name for inner in one.body if isinstance(inner, ast.FunctionDef)]
            assert [name for name in methods if not hasattr(made, name)] == [], one.name
        else:
            names = re.findall(r"\)(\w+)", signature_line(made).partition("->")[0])
            assert [name for name in names if not name.startswith("arg")] in (
                [],
                [one.args.args[n].arg for n in range(len(names))],
            )
