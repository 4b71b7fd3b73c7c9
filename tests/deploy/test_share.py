"""The manual page and the completion for bash, as the package installs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edge_serve.commands.help import COMMANDS
from ota.commands import COMMANDS as OTA
from ota.commands import OF_UNITS

SHARE = Path(__file__).parents[2] / "deploy" / "share"


def completed(*words: str, of: str = "edge-serve") -> list[str]:
    """Return what bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"source {SHARE}/{of}.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
    script += f'_{of.replace("-", "_")} {words[0]}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_options_and_values_are_completed() -> None:
    assert completed("edge-serve", "") == list(COMMANDS)
    assert completed("edge-serve", "che") == ["check", "check-config"]
    assert completed("edge-serve", "check", "--inf") == ["--infer", "--infer-timeout"]
    assert completed("edge-serve", "init", "m", "--o") == ["--onnx"]
    assert completed("edge-serve", "build", "--fp") == ["--fp16"]
    assert completed("edge-serve", "build", "--b") == ["--bf16", "--best"]
    assert completed("edge-serve", "convert", "m", "--sam") == ["--samples"], "though the help leaves it out"
    assert completed("edge-serve", "--http-po") == ["--http-port"]
    assert completed("tritonserver", "--model-sto") == ["--model-store"]
    assert completed("edge-serve", "--model-control-mode", "e") == ["explicit"]
    assert completed("edge-serve", "--model-control-mode", "=", "p") == ["poll"]
    assert completed("edge-serve", "--allow-grpc", "=") == ["true", "false"]
    assert completed("edge-serve", "check", f"{SHARE}/edge-serve.b") == [f"{SHARE}/edge-serve.bash"]


def test_edge_ota_commands_are_completed() -> None:
    assert set(completed("edge-ota", "", of="edge-ota")) == {name for name in OTA if not name.startswith(OF_UNITS)}
    assert completed("edge-ota", "r", of="edge-ota") == ["rollback", "resume", "retry"]
    assert completed("edge-ota", "apply", "--no", of="edge-ota") == ["--now"]
    assert completed("edge-ota", "publish", "rollout", "st", of="edge-ota") == ["start", "step"]
    assert "--passphrase-file" in completed("edge-ota", "publish", "release", "--", of="edge-ota")
    assert completed("edge-ota", "publish", "device", "add", "x", "--fl", of="edge-ota") == ["--fleet"]
    assert completed("edge-ota", "import", f"{SHARE}/edge-ota.b", of="edge-ota") == [f"{SHARE}/edge-ota.bash"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
@pytest.mark.parametrize("name", ["edge-serve", "edge-ota"])
def test_manual_page_has_no_troff_warnings(name: str) -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", f"{SHARE}/{name}.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)

    assert done.stderr == ""
