"""A stand-in for `edge-serve build`: writes a plan that is made of its inputs, and of $STAND_IN_TENSORRT."""

import argparse
import json
import os
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["build"])
parser.add_argument("onnx", type=Path)
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--cache", type=Path, required=True)
parser.add_argument("--timing-cache", type=Path, required=True)
parser.add_argument("--workspace-mb", type=int, required=True)
parser.add_argument("--json", action="store_true", required=True)
parser.add_argument("--fp16", action="store_true")
arguments = parser.parse_args()
data = arguments.onnx.read_bytes()
if data == b"breaks":
    print(json.dumps({"ok": False, "error": "node 7: no implementation"}))
    sys.exit(1)
if data == b"full":
    print(json.dumps({"ok": False, "error": "plan cannot be written: No space left on device; the disk is full"}))
    sys.exit(1)
if data == b"dies":
    sys.exit(137)
with arguments.cache.with_name("builds.log").open("a") as log:
    log.write(f"{arguments.onnx}\n")
version = os.environ.get("STAND_IN_TENSORRT", "")
if version and version in data.decode():  # the ONNX file names the versions that cannot build it
    print(json.dumps({"ok": False, "error": f"TensorRT {version} has no such operator"}))
    sys.exit(1)
made = f"TensorRT {version}: ".encode() if version else b""
arguments.output.write_bytes(made + b"plan of " + data + b" fp16" * arguments.fp16)
print(json.dumps({"ok": True, "seconds": 1.5}))
