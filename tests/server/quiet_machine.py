"""A machine without a way out: `unshare --net --mount python -m tests.server.quiet_machine FOLDER REPOSITORY`.

Every address leads back to this machine, and its name server writes down each question and answers it, so a program
that reports to somebody is seen doing it. strace writes down what processes do. The last line printed is JSON:

    {"questions": [...], "statuses": [of serve, of check]}
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

EDGE_SERVE = Path(sys.executable).with_name("edge-serve")
#: ONNX Runtime's first event leaves about nine seconds after the import
SECONDS = 12.0
#: is asked for by this script itself, so that a name server that hears nothing is noticed
CONTROL = "control.test"
CALLS = "connect,sendto,sendmsg,sendmmsg,open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,symlink,symlinkat"


class NameServer:
    """Answers each question with one address, and remembers what was asked."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            data, client = self._socket.recvfrom(2048)
            end = data.index(0, 12)
            self.questions.append(re.sub(r"[^\w-]+", ".", data[13:end].decode(errors="replace")))
            asked, kind = data[12 : end + 5], data[end + 1 : end + 3]
            found = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + bytes((198, 51, 100, 7)) if kind == b"\0\1" else b""
            counts = b"\0\1" + bytes((0, bool(found))) + bytes(4)
            self._socket.sendto(data[:2] + b"\x81\x80" + counts + asked + found, client)


def close_the_network(folder: Path) -> None:
    """Loopback and nothing else, for all addresses; our name server for all names."""
    subprocess.run("ip link set lo up && ip route add local 0.0.0.0/0 dev lo", shell=True, check=True)
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", folder / "resolv.conf", Path("/etc/resolv.conf").resolve()], check=True)


def traced(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `edge-serve` with its descendants under strace; the trace is `<name>.trace`, the output `<name>.log`."""
    trace = f"--output={folder / name}.trace"
    command = ["strace", "-f", "--seccomp-bpf", trace, f"--trace={CALLS}", str(EDGE_SERVE)]
    with open(folder / f"{name}.log", "wb") as log:
        work = folder / "work"
        return subprocess.Popen([*command, *arguments], cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def infer(folder: Path, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server is ready, and ask its model something."""
    log = folder / "serve.log"
    while re.search(r"edge-serve \S+ ready in", log.read_text()) is None:
        assert server.poll() is None, log.read_text()
        time.sleep(0.05)
    found = re.search(r"HTTP on 127\.0\.0\.1:(\d+)", log.read_text())
    assert found is not None
    tensor = {"datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [{"name": name, **tensor} for name in ("A", "B")]}).encode()
    urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/v2/models/m/infer", body, 30).read()


def main(folder: Path, repository: str) -> None:
    """Serve, check and examine, long enough for a report to leave."""
    close_the_network(folder)
    names = NameServer()
    (folder / "work").mkdir()
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    server = traced(folder, "serve", f"--model-repository={repository}", *ports)
    check, doctor = traced(folder, "check", "check", repository), traced(folder, "doctor", "doctor")
    infer(folder, server)
    time.sleep(SECONDS)
    front_end = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0]
    os.kill(int(front_end), 15)
    statuses = [process.wait(30) for process in (server, check)]
    doctor.wait(30)  # it may find something about this machine
    socket.gethostbyname(CONTROL)
    print(json.dumps({"questions": names.questions, "statuses": statuses}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
