"""Counts the lines that each decision in this folder costs: `python -m docs.adr.cost [NUMBER ...]`.

A code line has Python code in it: docstrings, comments, and blank lines do not count. The tests of `a/b.py` are in
`tests/a/test_b.py`, and those of a folder `a/` in `tests/a/`. Paths below `tests/` count as tests.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_WORKERS, _DOORS = "edge_serve/workers", "edge_serve/transport"
#: number of a decision -> the files and folders that exist because of it; the numbers that are missing cost no code
PATHS = {
    1: ["tests/test_layers.py"],
    2: ["tests/test_sizes.py"],
    3: ["edge_serve/doctor/libraries.py"],
    4: ["edge_serve/config/model/model_config_pb2.py", "deploy/protoc.py"],
    5: [f"{_WORKERS}/{name}" for name in ("child", "front", "launch", "memory")],
    6: [f"{_WORKERS}/wire", f"{_WORKERS}/front/frames", f"{_WORKERS}/child/batch.py"],
    7: [f"{_DOORS}/{name}" for name in ("sockets", "door/door.py", "door/listeners.py")],
    8: [f"{_WORKERS}/front/workers.py"],
    10: [f"{_WORKERS}/codec", f"{_DOORS}/v2/codec_offload.py", "edge_serve/protocol/inference/cost.py"],
    12: ["edge_serve/protocol/http2", "edge_serve/protocol/grpc", f"{_DOORS}/grpc", f"{_DOORS}/grpc_service"],
    13: ["edge_serve/access", f"{_DOORS}/sockets/tls.py", f"{_DOORS}/sockets/handshakes.py", f"{_DOORS}/http/server.py",
         *(f"{_DOORS}/door/{name}.py" for name in ("access", "body_admission", "body_memory", "reloaded"))],
    14: ["edge_serve/observe/status", f"{_DOORS}/http/page.py"],
    15: ["deploy"],
    16: ["edge_serve/supervision", "edge_serve/systemd/notify.py", f"{_WORKERS}/front/restart.py",
         f"{_WORKERS}/front/hangs.py"],
    17: [f"{_WORKERS}/front/busy_poll.py", f"{_WORKERS}/wire/polling_wait.py"],
    19: [f"{_WORKERS}/launch/landlock.py", f"{_WORKERS}/launch/sandbox.py"],
    20: ["edge_serve/observe/metrics/gpu.py"],
    21: ["ota"],
    22: ["ota/agent/device/token.py", "ota/publish/keys.py"],
    23: ["tests/test_layers.py", "tests/test_doorplates.py", "tests/test_structure.py"],
    24: ["edge_serve/models/extras/wait_for_graph.py", "edge_serve/models/extras/calls.py",
         "edge_serve/observe/log/native.py", "edge_serve/observe/log/journal.py",
         "edge_serve/supervision/crash_loop.py", "edge_serve/supervision/safe_mode.py"],
    26: [*(f"edge_serve/backends/cuda/{name}.py" for name in ("tensor_path", "registered_arena", "pinned_buffer")),
         f"{_WORKERS}/child/pipelined.py", f"{_WORKERS}/child/memory/output_room.py", f"{_WORKERS}/memory/pinned.py"],
    27: ["edge_serve/scheduling/seats.py", "tests/scheduling/device_simulation.py"],
    30: ["edge_serve/models/load/device_memory.py"],
    31: [f"image/{name}.py" for name in ("__main__", "artifacts", "bill", "build", "errors", "machine", "mkosi_tool",
                                         "packages", "stage")],
    32: [*(f"image/device/{name}.py" for name in ("decide", "health", "install", "restart", "scrub", "server", "slot",
                                                  "slots", "system")),
         *(f"tests/image/{name}.py" for name in ("machine", "test_health", "test_install", "test_root_failed",
                                                 "test_slots", "test_system"))],
    33: ["tests/image/test_root_disk.py"],
    34: ["edge_serve/backends/packs.py", "edge_serve/pack", "tests/server/test_packs.py"],
    35: ["packs/fil"],
    37: ["edge_serve/first_workers.py", f"{_WORKERS}/launch/spawn.py"],
    38: ["edge_serve/records.py"],
}  # fmt: skip

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def code_lines(source: str) -> int:
    """Count the lines that have code: no docstrings, comments, and blank lines."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            match node.body[0]:
                case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                    lines.difference_update(range(first, (last or first) + 1))
    return len(lines)


def files(path: str) -> Iterator[Path]:
    """Yield the Python files at a path; none where there is no such path."""
    found = ROOT / path
    yield from found.rglob("*.py") if found.is_dir() else [found] if found.is_file() else []


def tests_of(path: str) -> str:
    """Return where the tests of a path are."""
    folder, _, name = path.removeprefix("edge_serve/").rpartition("/")
    return f"tests/{folder}/test_{name}".replace("//", "/") if name.endswith(".py") else f"tests/{folder}/{name}"


def total(paths: Iterable[str]) -> int:
    """Count the code lines of all files at these paths, each file once."""
    return sum(code_lines(file.read_text()) for file in {file for path in paths for file in files(path)})


def missing(number: int) -> list[str]:
    """Return the paths of a decision that do not exist."""
    return [path for path in PATHS[number] if not (ROOT / path).exists()]


def cost(number: int) -> tuple[int, int]:
    """Count the code lines and the test lines of a decision.

    Raises:
        FileNotFoundError: PATHS names a path that does not exist.
    """
    if paths := missing(number):
        raise FileNotFoundError(f"decision {number}: {paths[0]} does not exist; correct PATHS in {__file__}")
    code = [path for path in PATHS[number] if not path.startswith("tests/")]
    return total(code), total({*PATHS[number]} - {*code} | {tests_of(path) for path in code})


if __name__ == "__main__":
    print("decision    code   tests")
    for number in map(int, sys.argv[1:] or PATHS):
        print("{:>8}{:>8,}{:>8,}".format(number, *cost(number)))
