"""A server in a directory where others may write imports nothing from there, in none of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.running import ADD_SUB_CONFIG, python_model, running
from tests.workers.venvs import make_environment, pack

#: says that it was imported, and by whom; then fails as a module of another kind would
HOSTILE = """
import os
with open({marker!r}, "a") as file:
    file.write(__name__ + " " + open("/proc/self/cmdline").read().replace("\\0", " ") + "\\n")
raise ImportError("this is the hostile one")
"""
#: of the server, of the worker's side, of the codec, of `unpack`, and of the standard library
NAMES = ("edge_serve/__init__", "numpy", "orjson", "tarfile", "json", "logging", "usercustomize")


@pytest.mark.slow  # makes a virtual environment, and packs it
def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    work, marker = tmp_path / "work", tmp_path / "imported"
    for name in NAMES:
        path = work / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HOSTILE.format(marker=str(marker)))
    python_model(tmp_path / "models", "plain")
    archive = pack(make_environment(tmp_path / "environment"), tmp_path / "environment.tar.gz")
    for name, place in (("folder", tmp_path / "environment"), ("archive", archive)):
        parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{place}" }} }}'
        python_model(tmp_path / "models", name, config=ADD_SUB_CONFIG + parameter)
    flags = (f"--model-repository={tmp_path / 'models'}", f"--execution-env-directory={tmp_path / 'cache'}")

    with running(*flags, cwd=work) as server:
        assert [server.add_sub(name)[0] for name in ("plain", "folder", "archive")] == [200, 200, 200]
        many = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1] * 200_000}]}
        assert server.post("/v2/models/plain/infer", many)[0] != 200  # too many; a codec has read them
        assert "edge_serve.workers.codec.main" in "".join(
            Path(f"/proc/{pid}/cmdline").read_text() for pid in server.workers()
        )

    assert not marker.exists(), marker.read_text()
