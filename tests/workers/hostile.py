"""A worker process of the tests' own: it sends the frames that a test has written down for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from edge_serve.workers.launch import environments
from edge_serve.workers.launch.interpreter import Interpreter

#: a kind and a payload, sent with the number of the question that they answer; or bytes that are sent as they are
Said = tuple[int, bytes] | bytes
#: what is sent when a frame of this kind arrives, in place of an honest answer; 0 = at the start
Plan = Mapping[int, Sequence[Said]]

_SCRIPT = """#!{python} -SE
import json, os, socket, struct, sys, time

HEADER = struct.Struct("<IBBHq")
HONEST = {{19: (20, b'{{}}'), 17: (18, b'{{"config": {{}}}}'), 22: (23, b'{{}}'), 24: (25, b'{{"ready": true}}')}}
control = socket.socket(fileno=int(sys.argv[2]))
number = len(os.listdir({directory!r}))
open({directory!r} + "/%d" % number, "w").close()
plans = json.load(open({plans!r}))
plan = plans[min(number, len(plans) - 1)]

def frame(kind, payload, number, count=0):
    return HEADER.pack(len(payload), 1, kind, count, number) + payload

def say(sock, said, number, count=0):
    try:
        for one in said:
            if isinstance(one, str):
                sock.sendall(bytes.fromhex(one))
            else:
                sock.sendall(frame(one[0], bytes.fromhex(one[1]), number, count))
    except OSError:
        pass

def read(sock, size):
    data = b""
    while len(data) < size:
        more, fds, _, _ = socket.recv_fds(sock, size - len(data), 16)
        if not more:
            sys.exit()
        kept.extend(fds)
        data += more
    return data

def take(sock):
    length, _, kind, count, number = HEADER.unpack(read(sock, HEADER.size))
    read(sock, length)
    return kind, count, number

kept = []
control.sendall(frame(16, b"{{}}", 0))
say(control, plan.get("0", []), 0)
while True:
    kind, _, number = take(control)
    if str(kind) in plan:
        say(control, plan[str(kind)], number)
    elif kind in HONEST:
        control.sendall(frame(*HONEST[kind], number))
    if kind == 19 and "1" in plan:
        data = socket.socket(fileno=kept[1])
        while True:
            _, count, number = take(data)
            say(data, plan["1"], number, count)
"""


def run_hostile_processes(monkeypatch: pytest.MonkeyPatch, directory: Path, *plans: Plan) -> None:
    """Let workers start the script. The first process follows the first plan, and so on; the last plan holds for all
    further processes."""
    (directory / "started").mkdir()
    written = [
        {
            str(kind): [one.hex() if isinstance(one, bytes) else (one[0], one[1].hex()) for one in said]
            for kind, said in plan.items()
        }
        for plan in plans
    ]
    (directory / "plans.json").write_text(json.dumps(written))
    script = directory / "hostile"
    text = _SCRIPT.format(
        python=sys.executable, directory=str(directory / "started"), plans=str(directory / "plans.json")
    )
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setattr(environments, "own_interpreter", lambda: Interpreter((str(script),), {}))
