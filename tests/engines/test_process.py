"""Answers of the process that builds an engine, as a child of another version of the program gives them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_serve.engines.process import run_build
from edge_serve.engines.request import EngineRequest
from edge_serve.errors import Internal


@pytest.mark.parametrize("answer", [{"done": {"of_a_later_version": 1}}, {"stage": "building"}])
def test_an_answer_of_another_version_advises_to_restart(answer: dict[str, Any], tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(f"import sys\nsys.stdin.read()\nprint({json.dumps(answer)!r})\n")
    request = EngineRequest.__new__(EngineRequest)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EngineRequest, "to_json", lambda _: b"{}")
        building = run_build(request, [sys.executable, str(child)], {}, lambda _: None)
        with pytest.raises(Internal, match="restart the server: its files were replaced"):
            asyncio.run(building)
