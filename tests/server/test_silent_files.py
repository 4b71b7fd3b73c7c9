"""Files of the settings on a file system that does not answer, such as a dead NFS server's: no start or stop hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.forked import program
from tests.server.bad_entries import silent_file_systems
from tests.server.running import python_model, running

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="needs root"),
    pytest.mark.slow,  # the server waits ten seconds for such a file
]
GRPC = ("--allow-grpc=true", "--grpc-port=0", "--grpc-use-ssl=true")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nothing answers."""
    with silent_file_systems([tmp_path / "mount"]):
        yield tmp_path / "mount"


@pytest.mark.parametrize(
    "flags",
    [
        ("--token-file={file}",),
        ("--certificate-role-file={file}", "--worker-sandbox=false"),
        (*GRPC, "--grpc-server-cert={file}", "--grpc-server-key={key}"),
    ],
)
def test_a_file_that_does_not_answer_ends_the_start(flags: tuple[str, ...], mount: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    pair = Authority(tmp_path).issue()
    names = {"file": mount / "file", "key": pair.key}
    options = [flag.format(**names) for flag in flags]
    began = time.monotonic()
    ended = program(
        f"--model-repository={tmp_path}/models", "--http-port=0", "--metrics-port=0", "--allow-grpc=false", *options
    )

    assert (ended.status, ended.served) == (1, False), ended.output
    assert time.monotonic() - began < 15
    said = [line for line in ended.output.splitlines() if line.startswith(("E", "edge-serve: "))]
    assert len(said) == 1, ended.output
    assert f"'{mount}/file'" in said[0]
    assert "it does not answer within 10 s; see to the file system that it lies on" in said[0]


def test_a_trace_file_that_does_not_answer_holds_up_no_stop(mount: Path, tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m")
    trace = (f"--trace-config=triton,file={mount}/t.json", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS")
    with running(f"--model-repository={tmp_path}/models", *trace) as server:
        assert server.add_sub("m")[0] == 200
        assert server.add_sub("m")[0] == 200
        began = time.monotonic()
        assert server.stop() == 0, server.log()
        assert time.monotonic() - began < 10
        assert "traces are lost: " in server.log()
