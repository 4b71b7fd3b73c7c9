"""A model.py that tries what a client asks it to try, and answers with what became of it."""

from __future__ import annotations

import json
from typing import Any

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""

MODEL = '''
import ctypes, json, os, socket, subprocess, sys, tempfile
import numpy as np
import triton_python_backend_utils as pb_utils


def read(path):
    with open(path, "rb") as file:
        return str(len(file.read(4096)))


def write(path):
    os.close(os.open(path, os.O_RDWR))


def create(path):
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)


def move(path, to):
    os.rename(path, to)
    os.rename(to, path)


def spy(pid):
    """process_vm_readv of an address that is not there: who may look hears EFAULT."""
    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    libc, room = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(8)
    here, there = Vector(ctypes.addressof(room), 8), Vector(8, 8)
    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0:
        if ctypes.get_errno() != 14:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def arenas(pid):
    """Open another process's memory files, read-write."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        if "memfd" in os.readlink(f"{folder}/{number}"):
            os.close(os.open(f"{folder}/{number}", os.O_RDWR))


def kill(pid, number):
    os.kill(pid, number)


ASK = r"""
import os, socket, sys, time
if len(sys.argv) > 2:  # as a daemon: forked twice, in a session of its own, and its parents have ended
    if os.fork():
        os.wait()
        sys.exit()
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.3)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(5)
    sock.connect(sys.argv[1])
    try:
        sock.sendall(b"GET /v2 HTTP/1.1\\r\\nHost: m\\r\\nConnection: close\\r\\n\\r\\n")
    except BrokenPipeError:  # there is an answer already
        pass
    print(sock.recv(4096).decode().splitlines()[0])
"""


def unix(*arguments):
    return subprocess.run([sys.executable, "-c", ASK, *arguments], capture_output=True, text=True).stdout.strip()


def bind(address, port):
    with socket.socket() as sock:
        sock.bind((address, port))


def connect(address, port):
    socket.create_connection((address, port), timeout=5).close()


def work():
    """What models do all day."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory(dir="/tmp") as second:
        open(f"{first}/a", "w").close()
        os.rename(f"{first}/a", f"{second}/b")
    home = os.path.expanduser("~/.edge-serve-test-cache")
    os.makedirs(home, exist_ok=True)
    with open(f"{home}/a", "w") as file:
        file.write("x")
    os.unlink(f"{home}/a")
    os.rmdir(home)
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    child.wait()
    os.listdir("/")
    with open("/etc/passwd") as file, open("/proc/cpuinfo"), open("/dev/null", "w"):
        return file.readline() and "worked"


def attempt(what, arguments):
    try:
        return globals()[what](*(os.getppid() if one == "front end" else one for one in arguments)) or "done"
    except OSError as error:
        return error.strerror or str(error)


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        replies = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)
            result = [attempt(what, arguments) for what, *arguments in json.loads(tensor[0])]
            output = pb_utils.Tensor("OUT", np.array([json.dumps(result).encode()], object))
            replies.append(pb_utils.InferenceResponse([output]))
        return replies
'''


def question(attempts: list[list[Any]]) -> dict[str, Any]:
    """The body of the request: each attempt is a function of the model and its arguments."""
    return {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [json.dumps(attempts)]}]}


def results(answer: Any) -> list[str]:
    """Return the result of each attempt."""
    found: list[str] = json.loads(answer["outputs"][0]["data"][0])
    return found
